"""The contract of every registered head, for every kind of input it accepts; a new file is tested by existing."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional

from bertvision.errors import UserError
from bertvision.heads import heads
from bertvision.heads.base import Head, Shape, parameters
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.pooling import LearnedPooling
from bertvision.heads.variants import build, expand
from bertvision.recipe import Recipe
from bertvision.states.hidden import PAIR_VIEWS, SINGLE_VIEWS, HiddenStates, pool, pooling_weights
from bertvision.states.sources import Memory
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.polish import Lesson, polish

SHAPES = [
    Shape(layers=4, features=16, outputs=outputs, paired=paired, pooled=pooled)
    for outputs, paired, pooled in ((1, False, False), (3, False, True), (3, True, False), (1, True, True))
]
TEXTS = Shape(layers=4, features=16, outputs=2, paired=False, pooled=False)
PAIRS = Shape(layers=4, features=16, outputs=2, paired=True, pooled=False)
TOKENS = Shape(layers=4, features=16, outputs=2, paired=True, pooled=False, span=True)
SHAPES.append(TOKENS)


def cases() -> Iterator[tuple[str, Shape]]:
    """Every head with every shape it fits."""
    return ((name, shape) for name in heads for shape in SHAPES if heads[name].fits(shape))


def broken(check: Callable[[str, Shape], str | None]) -> list[str]:
    """What a contract says against any head: all of them are tried, and the message names each."""
    return [f"{name} on {shape}: {found}" for name, shape in cases() if (found := check(name, shape))]


def states(shape: Shape, count: int = 6, seed: int = 0) -> HiddenStates:
    draw = torch.Generator().manual_seed(seed)
    if shape.span:
        return token_states(torch.randn(count, shape.layers, 9, shape.features, generator=draw), [9, 4, 7, 9, 5, 6])
    views = PAIR_VIEWS if shape.paired else SINGLE_VIEWS
    layers = torch.randn(count, shape.layers, len(views), shape.features, generator=draw)
    pooled = torch.randn(count, shape.features, generator=draw) if shape.pooled else None
    return HiddenStates(layers, views, pooled)


def token_states(layers: torch.Tensor, lengths: list[int]) -> HiddenStates:
    """Windows of a [CLS], two tokens of question and then context, padded with zeros."""
    mask = torch.arange(layers.shape[2])[None] < torch.tensor(lengths * len(layers))[: len(layers), None]
    places = mask & (torch.arange(layers.shape[2]) >= 3)
    places[:, 0] = True
    return HiddenStates(layers * mask[:, None, :, None], ("tokens",), None, mask, places)


def head_of(name: str, shape: Shape, seed: int = 0) -> Head:
    return build([name], shape, seed)[name]


def learn(found: dict[str, Head], data: HiddenStates, targets: torch.Tensor, kind: str, epochs: int, lr: float) -> None:
    polish(found, Lesson(Memory(data, 0), targets, kind), Recipe(polish=epochs, head_lr=lr))


def test_logits_are_finite_and_every_parameter_has_a_gradient() -> None:
    def check(name: str, shape: Shape) -> str | None:
        head, batch = head_of(name, shape).eval(), states(shape)
        logits = head(batch)
        if shape.span:  # no chance outside the places, and finite in all of them
            assert batch.places is not None
            if not (torch.isfinite(logits) == batch.places[..., None]).all():
                return "finite where no answer may be, or the other way round"
            logits = logits[batch.places]
        elif logits.shape != (6, shape.outputs):
            return f"logits of shape {tuple(logits.shape)}"
        if not torch.isfinite(logits).all():
            return "logits that are not finite"
        functional.mse_loss(logits, torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))).backward()
        lacking = [key for key, value in head.named_parameters() if value.grad is None or not value.grad.abs().sum()]
        return f"no gradient for {lacking}" if lacking else None

    assert broken(check) == []


def test_a_row_is_answered_as_if_it_were_alone() -> None:
    def check(name: str, shape: Shape) -> str | None:
        head, batch = head_of(name, shape).eval(), states(shape)
        together = head(batch)
        for i in range(6):
            one = batch.take(torch.tensor([i]))
            if shape.span:
                one = without_padding(one)
                length = one.layers.shape[2]
                if not (together[i, length:] == -torch.inf).all():
                    return f"row {i}: an answer in the padding"
                same = torch.allclose(together[i : i + 1, :length], head(one), atol=1e-5)
            else:
                same = torch.allclose(together[i : i + 1], head(one), atol=1e-5)
            if not same:
                return f"row {i} depends on its neighbours"
        return None

    assert broken(check) == []


def without_padding(one: HiddenStates) -> HiddenStates:
    """A single window, less the padding that its neighbours asked for."""
    assert one.mask is not None
    assert one.places is not None
    length = int(one.mask.sum())
    return HiddenStates(one.layers[:, :, :length], one.views, None, one.mask[:, :length], one.places[:, :length])


def test_saved_and_loaded_heads_answer_identically() -> None:
    def check(name: str, shape: Shape) -> str | None:
        one, two = head_of(name, shape).eval(), head_of(name, shape, seed=9).eval()
        two.load_state_dict(one.state_dict())
        return None if torch.equal(one(states(shape)), two(states(shape))) else "other answers after loading"

    assert broken(check) == []


@pytest.mark.slow
def test_a_label_hidden_in_one_layer_is_found() -> None:
    train, targets = planted(TEXTS, layer=2, count=600, seed=0)
    test, truth = planted(TEXTS, layer=2, count=200, seed=1)
    failures = []
    for name in heads:
        if not heads[name].fits(TEXTS) or name.startswith(("last-layer", "embedding")):
            continue
        head = head_of(name, TEXTS)
        large = parameters(head) > 1e6  # learns in fewer steps, each of which takes long
        learn({name: head}, train, targets, "class", 2 if large else 8, 1e-3 if large else 5e-3)
        with torch.no_grad():
            accuracy = float((head.eval()(test).argmax(1) == truth).float().mean())
        if accuracy <= 0.95:
            failures.append(f"{name}: accuracy {accuracy:.2f}")
        if isinstance(head.body, LearnedPooling) and int(head.body.weights.argmax()) != 2:
            failures.append(f"{name}: weights {head.body.weights.tolist()}")
        if isinstance(head, ClosedForm) and (int(head.profile.argmax()) != 2 or head.profile.max() <= 0.95):
            failures.append(f"{name}: profile {head.profile.tolist()}")
    assert failures == []


@pytest.mark.slow
def test_a_span_hidden_in_one_layer_is_found() -> None:
    draw, answers = torch.Generator().manual_seed(0), torch.tensor([[4, 6], [3, 3], [5, 8], [0, 0]]).repeat(100, 1)
    layers = torch.randn(400, 4, 9, 16, generator=draw)
    for column in (0, 1):
        layers[torch.arange(400), 2, answers[:, column], column] += 8.0
    failures = []
    for name in heads:
        if not heads[name].fits(TOKENS) or name == "last-layer":
            continue
        head = head_of(name, TOKENS)
        trainer = HeadTrainer({name: head}, "span", lr=5e-3, seed=0)
        for step in range(150 if parameters(head) < 1e6 else 30):
            rows = torch.arange(step * 16, step * 16 + 16) % 300
            trainer.accumulate(token_states(layers[rows], [9]), answers[rows])
            trainer.step(1.0)
        with torch.no_grad():
            logits = head.eval()(token_states(layers[300:], [9]))
        right = float((logits.argmax(1) == answers[300:]).float().mean())
        if right <= 0.75:  # chance is one in seven
            failures.append(f"{name}: {right:.2f}")
    assert failures == []


def planted(shape: Shape, layer: int, count: int, seed: int) -> tuple[HiddenStates, torch.Tensor]:
    """Noise, with the label in one feature of one layer."""
    noise = states(shape, count, seed)
    targets = torch.arange(count) % 2
    noise.layers[:, layer, :, 3] += 6.0 * (2 * targets[:, None] - 1)
    return noise, targets


def test_cosines_find_similarity() -> None:
    shape = Shape(layers=4, features=16, outputs=1, paired=True, pooled=False)
    parts = []
    for seed in (0, 1):
        data = states(shape, 300, seed)
        near = torch.rand(300, generator=torch.Generator().manual_seed(seed))
        first, second = PAIR_VIEWS.index("first"), PAIR_VIEWS.index("second")
        blend = near[:, None, None]
        data.layers[:, :, second] = blend * data.layers[:, :, first] + (1 - blend) * data.layers[:, :, second]
        parts.append((data, near - near.mean()))
    found = {"cosines": head_of("cosines", shape)}
    learn(found, *parts[0], "score", 20, 1e-2)
    with torch.no_grad():
        answers = found["cosines"].eval()(parts[1][0])[:, 0]
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


def test_span_heads_have_the_papers_share_of_parameters() -> None:
    shape = Shape(layers=25, features=1024, outputs=2, paired=True, pooled=False, span=True)
    with torch.device("meta"):
        found = {name: round(100 * parameters(heads[name].build(shape)) / 335_141_888, 3) for name in SPAN_SHARES}
    assert found == SPAN_SHARES


def test_classification_heads_have_the_papers_number_of_parameters() -> None:
    shape = Shape(layers=25, features=1024, outputs=2, paired=True, pooled=True)
    found = {}
    for name in CLASS_COUNTS:
        with torch.device("meta"):
            head = heads[name].build(shape)
        running = sum(value.numel() for key, value in head.named_buffers() if "running" in key)
        found[name] = parameters(head) + running
    assert found == CLASS_COUNTS


def test_the_papers_sets_are_complete() -> None:
    assert set(expand("paper", TOKENS)) == set(SPAN_SHARES)
    assert set(expand("paper", PAIRS)) | set(SPAN_SHARES) == set(SPAN_SHARES) | set(CLASS_COUNTS)


@pytest.mark.slow
def test_heads_trained_together_equal_heads_trained_alone() -> None:
    shape = Shape(layers=4, features=16, outputs=2, paired=True, pooled=True)
    names = [name for name in heads if heads[name].fits(shape)]
    data, targets = planted(shape, layer=1, count=96, seed=0)
    together = build(names, shape, seed=3)
    recipe = Recipe(polish=2, head_lr=1e-3, seed=3)
    polish(together, Lesson(Memory(data, 0), targets, "class"), recipe)
    for name in names:
        alone = build([name], shape, seed=3)
        polish(alone, Lesson(Memory(data, 0), targets, "class"), recipe)
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
    shape = Shape(layers=4, features=16, outputs=2, paired=True, pooled=False)
    data = HiddenStates(pool([torch.randn(1, 3, 16) for _ in range(4)], weights), PAIR_VIEWS)
    for name in (name for name in heads if heads[name].fits(shape)):
        assert torch.isfinite(head_of(name, shape)(data)).all(), name


def test_sets_and_names_expand_and_mistakes_are_explained() -> None:
    assert expand("none", PAIRS) == []
    assert "cosines" in expand("default", PAIRS)
    assert "cosines" not in expand("default", TEXTS)
    assert expand("adapter-64, learned-pooling,adapter-64", TEXTS) == ["adapter-64", "learned-pooling"]
    assert set(expand("paper", PAIRS)) | set(expand("ours", PAIRS)) == set(expand("all", PAIRS))
    assert set(expand("all", PAIRS)) | set(expand("all", TOKENS)) == set(heads)
    assert len(expand("default", TOKENS)) == 6
    with pytest.raises(UserError, match=r"no head called 'adaptor-64'. Did you mean 'adapter-64'.*lists all"):
        expand("adaptor-64", TEXTS)
    with pytest.raises(UserError, match="'cosines' is for tasks with two texts per example"):
        expand("cosines", TEXTS)
    with pytest.raises(UserError, match="'adapter-64-ngram' is for tasks with an answer per token"):
        expand("adapter-64-ngram", TEXTS)
