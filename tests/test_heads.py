"""The contract of every registered head, for every kind of input it accepts; a new file is tested by existing."""

import pytest
import torch
from bertvision.backbones.top import TopLayers
from bertvision.training.sources import Collected
from torch.nn import functional
from transformers import BertConfig, BertModel

from bertvision.errors import UserError
from bertvision.heads import heads
from bertvision.heads.base import Head, Shape, parameters
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.pooling import LearnedPooling
from bertvision.heads.variants import build, expand
from bertvision.states.hidden import PAIR_VIEWS, SINGLE_VIEWS, HiddenStates, Sequences, pool, pooling_weights
from bertvision.training.head_trainer import HeadTrainer, predict
from bertvision.training.polish import polish

SHAPES = [
    Shape(layers=4, features=16, outputs=outputs, pairs=pairs, pooled=pooled)
    for outputs, pairs, pooled in ((1, False, False), (3, False, True), (3, True, False), (1, True, True))
]
SHAPES.append(Shape(layers=4, features=16, outputs=2, pairs=True, pooled=False, span=True))
TEXTS = Shape(layers=4, features=16, outputs=2, pairs=False, pooled=False)
PAIRS = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=False)
TOKENS = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=False, span=True)
CASES = [
    pytest.param(
        name,
        shape,
        id=f"{name}-{shape.outputs}{'-pairs' * shape.paired}{'-pooled' * shape.pooled}{'-span' * shape.span}",
    )
    for name in heads
    for shape in SHAPES
    if heads[name].fits(shape)
]


def donor(count: int) -> TopLayers:
    """The last layers of an encoder of the tests' shape."""
    config = BertConfig(vocab_size=9, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TopLayers(BertModel(config), count)


def states(shape: Shape, count: int = 6, seed: int = 0) -> HiddenStates:
    draw = torch.Generator().manual_seed(seed)
    if shape.span:
        return token_states(torch.randn(count, shape.layers, 9, shape.features, generator=draw), [9, 4, 7, 9, 5, 6])
    views = PAIR_VIEWS if shape.paired else SINGLE_VIEWS
    layers = torch.randn(count, shape.layers, len(views), shape.features, generator=draw)
    pooled = torch.randn(count, shape.features, generator=draw) if shape.pooled else None
    return HiddenStates(layers, views, pooled, sequences=sequences(shape, count, draw))


def sequences(shape: Shape, count: int, draw: torch.Generator) -> Sequences:
    """Texts of two to six tokens between special ones, in both texts of a pair; nine places."""
    lengths = torch.randint(4, 9, (count, 1), generator=draw)
    place = torch.arange(9)[None]
    segments = torch.where((place > 0) & (place < lengths), 1 + (shape.paired & (place > 2)).long(), 0)
    layers = {number: torch.randn(count, 9, shape.features, generator=draw) for number in range(shape.layers)}
    return Sequences(layers, place < lengths, segments)


def token_states(layers: torch.Tensor, lengths: list[int]) -> HiddenStates:
    """Windows of a [CLS], two tokens of question and then context, padded with zeros."""
    mask = torch.arange(layers.shape[2])[None] < torch.tensor(lengths * len(layers))[: len(layers), None]
    places = mask & (torch.arange(layers.shape[2]) >= 3)
    places[:, 0] = True
    return HiddenStates(layers * mask[:, None, :, None], ("tokens",), None, mask, places)


def head_of(name: str, shape: Shape, seed: int = 0) -> Head:
    return build([name], shape, seed, donor=donor)[name]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_logits_are_finite_and_every_parameter_has_a_gradient(name: str, shape: Shape) -> None:
    head = head_of(name, shape).eval()
    logits = head(states(shape))
    if shape.span:  # no chance outside the places, and finite in all of them
        places = states(shape).places
        assert places is not None
        assert (torch.isfinite(logits) == places[..., None]).all()
        logits = logits[places]
    else:
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
    together = head(batch)
    for i in range(6):
        one = batch.take(torch.tensor([i]))
        if shape.span:  # without the padding that its neighbours asked for
            assert one.mask is not None
            assert one.places is not None
            length = int(one.mask.sum())
            one = HiddenStates(one.layers[:, :, :length], one.views, None, one.mask[:, :length], one.places[:, :length])
            assert torch.allclose(together[i : i + 1, :length], head(one), atol=1e-5)
            assert (together[i, length:] == -torch.inf).all()
        else:
            assert torch.allclose(together[i : i + 1], head(without_padding(one)), atol=1e-5)


def without_padding(one: HiddenStates) -> HiddenStates:
    kept = one.sequences
    length = int(kept.mask.sum())
    layers = {number: layer[:, :length] for number, layer in kept.layers.items()}
    cut = Sequences(layers, kept.mask[:, :length], kept.segments[:, :length])
    return HiddenStates(one.layers, one.views, one.pooled, sequences=cut)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_saved_and_loaded_heads_answer_identically(name: str, shape: Shape) -> None:
    one, two = head_of(name, shape).eval(), head_of(name, shape, seed=9).eval()
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(states(shape)), two(states(shape)))


@pytest.mark.parametrize("name", [n for n in heads if heads[n].fits(TEXTS) and not n.startswith("last-layer")])
def test_a_label_hidden_in_one_layer_is_found(name: str) -> None:
    shape = Shape(layers=4, features=16, outputs=2, pairs=False, pooled=False)
    found = {name: head_of(name, shape)}
    layer = found[name].sequences[0] if found[name].borrows else 2
    train, targets = planted(shape, layer, count=600, seed=0)
    test, truth = planted(shape, layer, count=200, seed=1)
    large = parameters(found[name]) > 1e6  # learns in fewer steps, each of which takes long
    polish(found, Collected(train, 0), targets, "class", epochs=2 if large else 30, lr=1e-3 if large else 5e-3, seed=0)
    accuracy = (predict(found, test)[name].argmax(1) == truth).float().mean()
    assert accuracy > 0.9
    if isinstance(found[name].body, LearnedPooling):
        assert int(found[name].body.weights.argmax()) == 2
    if isinstance(found[name], ClosedForm):
        assert int(found[name].profile.argmax()) == 2
        assert found[name].profile.max() > 0.95


@pytest.mark.parametrize("name", [n for n in heads if heads[n].fits(TOKENS) and n != "last-layer"])
def test_a_span_hidden_in_one_layer_is_found(name: str) -> None:
    found = {name: head_of(name, TOKENS)}
    planted_in = found[name].sequences[0] if found[name].borrows else 2
    draw, answers = torch.Generator().manual_seed(0), torch.tensor([[4, 6], [3, 3], [5, 8], [0, 0]]).repeat(100, 1)
    layers = torch.randn(400, 4, 9, 16, generator=draw)
    for column in (0, 1):
        layers[torch.arange(400), planted_in, answers[:, column], column] += 8.0
    trainer = HeadTrainer(found, "span", lr=5e-3, seed=0)
    for step in range(150 if parameters(found[name]) < 1e6 else 30):
        rows = torch.arange(step * 16, step * 16 + 16) % 300
        trainer.accumulate(token_states(layers[rows], [9]), answers[rows])
        trainer.step(1.0)
    logits = found[name].eval()(token_states(layers[300:], [9]))
    assert (logits.argmax(1) == answers[300:]).float().mean() > 0.75  # chance is one in seven


def planted(shape: Shape, layer: int, count: int, seed: int) -> tuple[HiddenStates, torch.Tensor]:
    noise = states(shape, count, seed)
    targets = torch.arange(count) % 2
    noise.layers[:, layer, :, 3] += 6.0 * (2 * targets[:, None] - 1)
    noise.sequences.layers[layer][..., 3] += 6.0 * (2 * targets[:, None] - 1)
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
    polish(found, Collected(parts[0][0], 0), parts[0][1], "score", epochs=20, lr=1e-2, seed=0)
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


SPAN_SHARES = {  # per cent of BERT-large's parameters, as the paper prints them
    "cnn-1xn": 0.099, "cnn-1xn-dilated": 0.121, "cnn-1xn-no-dropout": 0.099, "learned-pooling": 0.001,
    "learned-pooling-cnn-1xn": 0.093, "average-pooling-cnn-1xn": 0.093, "adapter-64": 0.021, "adapter-64-skip": 0.021,
    "adapter-64-per-layer": 0.490,  # the paper prints 0.491
    "adapter-64-per-layer-skip": 0.491, "adapter-386": 0.124, "adapter-386-skip": 0.124,
    "adapter-386-per-layer": 2.957, "adapter-386-per-layer-skip": 2.958, "learned-pooling-adapter-386": 0.119,
    "adapter-386-skip-learned-pooling": 0.242, "learned-pooling-adapter-cnn-1xn": 0.207,
    "learned-pooling-adapter-cnn-nxn": 0.332, "learned-pooling-adapter-inception": 1.994,
    "learned-pooling-adapter-xception": 1.970,
}  # fmt: skip
CLASS_COUNTS = {  # with the running means and variances of batch normalisation, as Keras counts
    "tenney-small": 2_077, "adapter-pooler-tenney": 398_499, "adapter-pooler-average": 398_472,
    "xception-abbreviated": 267_010, "xception-abbreviated-cls": 269_058, "xception": 20_716_634,
}  # fmt: skip


@pytest.mark.parametrize("name", SPAN_SHARES)
def test_span_heads_have_the_papers_share_of_parameters(name: str) -> None:
    shape = Shape(layers=25, features=1024, outputs=2, pairs=True, pooled=False, span=True)
    assert round(100 * parameters(head_of(name, shape)) / 335_141_888, 3) == SPAN_SHARES[name]


@pytest.mark.parametrize("name", CLASS_COUNTS)
def test_classification_heads_have_the_papers_number_of_parameters(name: str) -> None:
    head = head_of(name, Shape(layers=25, features=1024, outputs=2, pairs=True, pooled=True))
    running = sum(value.numel() for key, value in head.named_buffers() if "running" in key)
    assert parameters(head) + running == CLASS_COUNTS[name]


def test_the_papers_sets_are_complete() -> None:
    assert set(expand("paper", TOKENS)) == set(SPAN_SHARES)
    assert set(expand("paper", PAIRS)) | set(SPAN_SHARES) == set(SPAN_SHARES) | set(CLASS_COUNTS)


def test_heads_trained_together_equal_heads_trained_alone() -> None:
    shape = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=True)
    names = [name for name in heads if heads[name].fits(shape)]
    data, targets = planted(shape, layer=1, count=96, seed=0)
    together = build(names, shape, seed=3, donor=donor)
    polish(together, Collected(data, 0), targets, "class", epochs=2, lr=1e-3, seed=3)
    for name in names:
        alone = build([name], shape, seed=3, donor=donor)
        polish(alone, Collected(data, 0), targets, "class", epochs=2, lr=1e-3, seed=3)
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
    shape = Shape(layers=4, features=16, outputs=2, pairs=True, pooled=False)
    whole = Sequences({i: torch.randn(1, 3, 16) for i in range(4)}, torch.ones(1, 3), torch.tensor([[0, 1, 0]]))
    data = HiddenStates(pool(list(whole.layers.values()), weights), PAIR_VIEWS, sequences=whole)
    for name in (name for name in heads if heads[name].fits(shape)):
        assert torch.isfinite(head_of(name, shape)(data)).all(), name


def test_sets_and_names_expand_and_mistakes_are_explained() -> None:
    assert expand("none", PAIRS) == []
    assert "cosines" in expand("default", PAIRS)
    assert "cosines" not in expand("default", TEXTS)
    assert expand("adapter-64, learned-pooling,adapter-64", TEXTS) == ["adapter-64", "learned-pooling"]
    assert set(expand("paper", PAIRS)) | set(expand("ours", PAIRS)) == set(expand("all", PAIRS))
    assert set(expand("all", PAIRS)) | set(expand("all", TOKENS)) == set(heads) - {"top-4"}  # of three layers
    assert len(expand("default", TOKENS)) == 6
    with pytest.raises(UserError, match=r"no head called 'adaptor-64'. Did you mean 'adapter-64'.*lists all"):
        expand("adaptor-64", TEXTS)
    with pytest.raises(UserError, match="'cosines' is for tasks with two texts per example"):
        expand("cosines", TEXTS)
    with pytest.raises(UserError, match="'adapter-64-ngram' is for tasks with an answer per token"):
        expand("adapter-64-ngram", TEXTS)
