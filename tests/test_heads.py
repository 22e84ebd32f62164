"""The contract of every registered head, for every kind of input it accepts; a new file is tested by existing."""

from itertools import product

import pytest
import torch
from torch.nn import functional

from bertvision.errors import UserError
from bertvision.heads import expand, heads
from bertvision.heads.base import Head, Shape, parameters
from bertvision.heads.pooling import LearnedPooling
from bertvision.states import PAIR_VIEWS, SINGLE_VIEWS, HiddenStates, pool, pooling_weights
from bertvision.training.heads import build, predict
from bertvision.training.polish import polish

SHAPES = [
    Shape(layers=4, features=16, outputs=outputs, pairs=pairs, pooled=pooled)
    for outputs, pairs, pooled in product((1, 3), (False, True), (False, True))
]
CASES = [
    pytest.param(name, shape, id=f"{name}-{shape.outputs}{'-pairs' * shape.pairs}{'-pooled' * shape.pooled}")
    for name in heads
    for shape in SHAPES
    if shape.pairs or not heads[name].pairs_only
]


def states(shape: Shape, count: int = 6, seed: int = 0) -> HiddenStates:
    draw = torch.Generator().manual_seed(seed)
    views = PAIR_VIEWS if shape.pairs else SINGLE_VIEWS
    layers = torch.randn(count, shape.layers, len(views), shape.features, generator=draw)
    return HiddenStates(layers, views, torch.randn(count, shape.features, generator=draw) if shape.pooled else None)


def head_of(name: str, shape: Shape) -> Head:
    return build([name], shape, seed=0)[name]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_logits_are_finite_and_every_parameter_has_a_gradient(name: str, shape: Shape) -> None:
    head = head_of(name, shape).eval()
    logits = head(states(shape))
    assert logits.shape == (6, shape.outputs)
    assert torch.isfinite(logits).all()
    functional.mse_loss(logits, torch.randn(logits.shape)).backward()
    for key, value in head.named_parameters():
        assert value.grad is not None, key
        assert value.grad.abs().sum() > 0, key


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_a_row_is_answered_as_if_it_were_alone(name: str, shape: Shape) -> None:
    head = head_of(name, shape).eval()
    batch = states(shape)
    alone = torch.cat([head(batch.take(torch.tensor([i]))) for i in range(6)])
    assert torch.allclose(head(batch), alone, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_saved_and_loaded_heads_answer_identically(name: str, shape: Shape) -> None:
    one, two = head_of(name, shape).eval(), build([name], shape, seed=9)[name].eval()
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(states(shape)), two(states(shape)))


@pytest.mark.parametrize("name", [n for n in heads if n not in ("cosines", "last-layer", "last-layer-views")])
def test_a_label_hidden_in_one_layer_is_found(name: str) -> None:
    shape = Shape(layers=4, features=16, outputs=2, pairs=False, pooled=False)
    train, targets = planted(shape, layer=2, count=600, seed=0)
    test, truth = planted(shape, layer=2, count=200, seed=1)
    found = {name: head_of(name, shape)}
    polish(found, train, targets, "class", epochs=30, lr=5e-3, seed=0)
    accuracy = (predict(found, test)[name].argmax(1) == truth).float().mean()
    assert accuracy > 0.9
    if isinstance(found[name].body, LearnedPooling):
        assert int(found[name].body.weights.argmax()) == 2


def planted(shape: Shape, layer: int, count: int, seed: int) -> tuple[HiddenStates, torch.Tensor]:
    noise = states(shape, count, seed)
    targets = torch.arange(count) % 2
    noise.layers[:, layer, :, 3] += 6.0 * (2 * targets[:, None] - 1)
    return noise, targets


def test_cosines_find_similarity() -> None:
    shape = Shape(layers=4, features=16, outputs=1, pairs=True, pooled=False)
    parts = []
    for seed in (0, 1):
        data = states(shape, 300, seed)
        near = torch.rand(300, generator=torch.Generator().manual_seed(seed))
        first, second = PAIR_VIEWS.index("first"), PAIR_VIEWS.index("second")
        blend = near[:, None, None]
        data.layers[:, :, second] = blend * data.layers[:, :, first] + (1 - blend) * data.layers[:, :, second]
        parts.append((data, near - near.mean()))
    found = {"cosines": head_of("cosines", shape)}
    polish(found, *parts[0], "score", epochs=20, lr=1e-2, seed=0)
    answers = predict(found, parts[1][0])["cosines"][:, 0]
    assert torch.corrcoef(torch.stack([answers, parts[1][1]]))[0, 1] > 0.9


def test_learned_pooling_is_the_papers_formula() -> None:
    body = LearnedPooling(3, 2)
    body.weights.data = torch.tensor([0.0, 1.0, -1.0])
    body.scale.data = torch.tensor(2.0)
    layers = torch.randn(5, 3, 1, 2)
    shares = torch.tensor([0.0, 1.0, -1.0]).exp()
    shares /= shares.sum()
    expected = 2.0 * sum(shares[i] * layers[:, i] for i in range(3))
    assert torch.allclose(body(layers), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("learned-pooling", 26 + 1 + 1024 * 2 + 2),  # the paper's "tenney small" has 2,077
        ("average-pooling", 1024 * 2 + 2),
        ("adapter-64", 1024 * 64 + 64 + 26 * 64 * 2 + 2),
        ("adapter-64-skip", 1024 * 64 + 64 + (26 * 64 + 1024) * 2 + 2),
        ("adapter-64-per-layer", 26 * (1024 * 64 + 64) + 26 * 64 * 2 + 2),
        ("adapter-386", 1024 * 386 + 386 + 26 * 386 * 2 + 2),
        ("adapter-386-per-layer-skip", 26 * (1024 * 386 + 386) + (26 * 386 + 1024) * 2 + 2),
    ],
)
def test_parameter_counts_at_bert_large(name: str, count: int) -> None:
    shape = Shape(layers=25, features=1024, outputs=2, pairs=True, pooled=True)
    assert parameters(head_of(name, shape)) == count


def test_heads_trained_together_equal_heads_trained_alone() -> None:
    shape = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=True)
    names = list(heads)
    data, targets = planted(shape, layer=1, count=96, seed=0)
    together = build(names, shape, seed=3)
    polish(together, data, targets, "class", epochs=2, lr=1e-3, seed=3)
    for name in names:
        alone = build([name], shape, seed=3)
        polish(alone, data, targets, "class", epochs=2, lr=1e-3, seed=3)
        for key, value in alone[name].state_dict().items():
            assert torch.allclose(value, together[name].state_dict()[key], atol=1e-6), (name, key)


def test_padding_never_reaches_a_view() -> None:
    layers = [torch.randn(2, 5, 3) for _ in range(2)]
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    segments = torch.tensor([[0, 1, 2, 0, 0], [0, 1, 1, 2, 0]])
    weights = pooling_weights(mask, segments, pairs=True)
    before = pool(layers, weights)
    for layer in layers:
        layer[0, 3:] = 1e6
    assert torch.equal(pool(layers, weights), before)
    assert torch.allclose(before[0, 1, 1], layers[1][0, :3].mean(0))
    assert torch.allclose(before[1, 0, 2], layers[0][1, 1:3].mean(0))


def test_an_empty_text_gives_a_zero_view_and_a_finite_answer() -> None:
    weights = pooling_weights(torch.ones(1, 3, dtype=torch.long), torch.tensor([[0, 1, 0]]), pairs=True)
    data = HiddenStates(pool([torch.randn(1, 3, 16)] * 4, weights), PAIR_VIEWS)
    shape = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=False)
    for name in heads:
        assert torch.isfinite(head_of(name, shape)(data)).all(), name


def test_sets_and_names_expand_and_mistakes_are_explained() -> None:
    assert expand("none", pairs=True) == []
    assert "cosines" in expand("default", pairs=True)
    assert "cosines" not in expand("default", pairs=False)
    assert expand("adapter-64, learned-pooling,adapter-64", pairs=False) == ["adapter-64", "learned-pooling"]
    assert set(expand("paper", True)) | set(expand("ours", True)) == set(expand("all", True)) == set(heads)
    with pytest.raises(UserError, match=r"no head called 'adaptor-64'. Did you mean 'adapter-64'.*lists all"):
        expand("adaptor-64", pairs=False)
    with pytest.raises(UserError, match="compares two texts"):
        expand("cosines", pairs=False)
