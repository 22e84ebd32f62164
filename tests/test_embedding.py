"""The embedding head: regression on sentence embeddings, with scikit-learn as the reference."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_fit
from sklearn.linear_model import RidgeCV
from test_heads import PAIRS, TEXTS, learn, planted, states

from bertvision.heads import embedding as module
from bertvision.heads import heads
from bertvision.heads.base import Rows, Shape
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.embedding import Embedding
from bertvision.heads.variants import build
from bertvision.recipe import Recipe
from bertvision.states.hidden import PAIR_VIEWS, SINGLE_VIEWS, HiddenStates
from bertvision.states.sources import Memory
from bertvision.training.polish import Lesson, polish


def solved(
    shape: Shape, data: HiddenStates, targets: torch.Tensor, kind: str, weights: torch.Tensor | None = None
) -> Embedding:
    head = Embedding(shape)
    head.solve(lambda: [Rows(data, targets, weights)], kind)
    return head.eval()


def unit(values: torch.Tensor) -> np.ndarray:
    return (values / values.norm(dim=1, keepdim=True)).double().numpy()


def standardised(embeddings: np.ndarray) -> np.ndarray:
    return (embeddings - embeddings.mean(0)) / embeddings.std(0)


def classed(shape: Shape, count: int = 90, classes: int = 3) -> tuple[HiddenStates, torch.Tensor]:
    """Noise, with the class in the last layer, so weak that the strength of the regression matters."""
    data, targets = states(shape, count), torch.arange(count) % classes
    for view in range(1, len(data.views)):
        data.layers[torch.arange(count), -1, view, targets] += 1.5
    return data, targets


def expected(inputs: np.ndarray, targets: torch.Tensor, weights: np.ndarray) -> list[np.ndarray]:
    """What scikit-learn predicts for classes as zeros and ones, and the products with the classes' mean directions."""
    wanted = np.eye(int(targets.max()) + 1)[targets.numpy()]
    centred = inputs - np.average(inputs, 0, weights)
    means = (weights[:, None] * wanted).T @ centred
    closeness = centred @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    return [RidgeCV(np.logspace(-2, 6, 50)).fit(inputs, wanted, weights).predict(inputs), closeness]


def explained(said: np.ndarray, parts: list[np.ndarray]) -> float:
    """The share of the variance of a head's logits that mixes of these parts explain."""
    columns, said = np.concatenate([*parts, np.ones((len(said), 1))], 1), said - said.mean(0)
    left = said - columns @ np.linalg.lstsq(columns, said)[0]
    return 1 - float((left**2).sum() / (said**2).sum())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_texts_are_classed_as_by_scikit_learn(classes: int, weighted: bool) -> None:
    shape = Shape(layers=4, features=16, outputs=classes, paired=False, pooled=False)
    data, targets = classed(shape, classes=classes)
    weights = torch.linspace(0.5, 1.5, 90).double() if weighted else None
    inputs = standardised(unit(data.layers[:, -1, SINGLE_VIEWS.index("mean")]))
    other = expected(inputs, targets, np.ones(90) if weights is None else weights.numpy())
    said = solved(shape, data, targets, "class", weights)(data).detach().numpy()
    assert explained(said, other) > 0.99
    assert 0.6 < (said.argmax(1) == targets.numpy()).mean() < 1


def test_pairs_are_read_as_two_embeddings_their_difference_and_product() -> None:
    shape = Shape(layers=4, features=16, outputs=3, paired=True, pooled=False)
    data, targets = classed(shape)
    first, second = (unit(data.layers[:, -1, PAIR_VIEWS.index(name)]) for name in ("first", "second"))
    inputs = standardised(np.concatenate([first, abs(first - second), second, first * second], 1))
    said = solved(shape, data, targets, "class")(data).detach().numpy()
    assert explained(said, expected(inputs, targets, np.ones(90))) > 0.99


def test_scores_are_those_of_ridge_regression() -> None:
    shape = Shape(layers=4, features=16, outputs=1, paired=False, pooled=False)
    data = states(shape, 60)
    inputs = standardised(unit(data.layers[:, -1, 1]))
    targets = torch.from_numpy(inputs[:, 2]) + torch.randn(60, generator=torch.Generator().manual_seed(1))
    expected = RidgeCV(np.logspace(-1, 3.5, 10)).fit(inputs, targets.numpy()).predict(inputs)
    said = solved(shape, data, targets, "score")(data)[:, 0].detach().numpy()
    assert np.corrcoef(said, expected)[0, 1] > 0.98


def test_probabilities_are_as_sure_as_rows_left_out_allow() -> None:
    """Noise gives nearly even probabilities, a clear signal gives sure ones; on fresh rows both are calibrated."""
    shape = Shape(layers=4, features=16, outputs=2, paired=False, pooled=False)
    for signal, low, high in ((0.0, 0.45, 0.62), (6.0, 0.9, 1.001)):
        data, targets = states(shape, 400), torch.arange(400) % 2
        data.layers[torch.arange(400), -1, 1, targets] += signal
        half = torch.arange(200)
        head = solved(shape, data.take(half), targets[half], "class")
        said = head(data.take(half + 200)).softmax(1).detach()
        assert low < said.max(1).values.mean() < high
        right = (said.argmax(1) == targets[half]).double().mean()
        assert abs(right - said.max(1).values.mean()) < 0.1


def test_more_rows_than_it_takes_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 40)
    data, targets = planted(TEXTS, layer=3, count=301, seed=0)
    order = targets.argsort()  # sorted by class, as tables often are
    head, parts = Embedding(TEXTS), order.split(20)
    found = head._gathered(lambda: [Rows(data.take(rows), targets[rows]) for rows in parts])
    assert 20 <= len(found[0]) <= 40
    assert abs(found[1].double().mean() - 0.5) < 0.1


def test_the_cosine_of_two_texts_is_found_among_many_features() -> None:
    """The score is the cosine: on 60 pairs, a regression on 1,536 features alone does not find it."""
    shape = Shape(layers=3, features=384, outputs=1, paired=True, pooled=False)
    draw, rows = torch.Generator().manual_seed(0), 120
    data = HiddenStates(torch.randn(rows, 3, 4, 384, generator=draw), PAIR_VIEWS)
    share = torch.rand(rows, 1, generator=draw)
    first, second = (PAIR_VIEWS.index(name) for name in ("first", "second"))
    data.layers[:, -1, second] = share * data.layers[:, -1, first] + (1 - share) * data.layers[:, -1, second]
    scores = data.cosines()[:, -1]
    train, test = torch.arange(60), torch.arange(60, rows)
    said = solved(shape, data.take(train), scores[train], "score")(data.take(test))[:, 0].detach()
    assert torch.corrcoef(torch.stack([said, scores[test]]))[0, 1] > 0.99


def test_missing_classes_a_single_class_and_single_rows_are_no_trouble() -> None:
    shape = Shape(layers=4, features=16, outputs=5, paired=False, pooled=False)
    data = states(shape, 40)
    for targets in (torch.zeros(40), torch.arange(40) % 2 * 3, torch.arange(40) % 3 + 2):
        logits = solved(shape, data, targets.long(), "class")(data)
        assert torch.isfinite(logits).all()
        assert set(logits.argmax(1).tolist()) <= set(targets.long().tolist())
    for targets in (torch.tensor([1]), torch.tensor([0, 4]), torch.tensor([3, 0, 1, 2, 4])):  # no row to leave out
        few = data.take(torch.arange(len(targets)))
        assert (solved(shape, few, targets, "class")(few).argmax(1) == targets).all()
    constant = HiddenStates(torch.ones(6, 4, 2, 16), SINGLE_VIEWS)
    assert torch.isfinite(solved(shape, constant, torch.arange(6) % 2, "class")(constant)).all()


def test_two_kinds_of_solved_heads_do_not_share_a_solution() -> None:
    labels = ["closed-form:views=mean:normalised=no", "embedding:views=mean", "embedding:views=mean:seed=1"]
    found = build(labels, PAIRS, 0)
    data, targets = planted(PAIRS, layer=3, count=64, seed=0)
    polish(found, Lesson(Memory(data, 0), targets, "class"), Recipe(polish=1))
    for head in found.values():
        assert (head.eval()(data).argmax(1) == targets).float().mean() > 0.9
    assert torch.equal(found[labels[1]].output.weight, found[labels[2]].output.weight)
    assert isinstance(found[labels[0]], ClosedForm)


def test_it_reads_the_last_layer_only_unless_told_otherwise() -> None:
    data, targets = planted(TEXTS, layer=1, count=200, seed=0)
    found = build(["embedding", "embedding:layers=0-1"], TEXTS, 0)
    learn(found, data, targets, "class", 1, 0.0)
    right = [float((head.eval()(data).argmax(1) == targets).float().mean()) for head in found.values()]
    assert right[0] < 0.75 < 0.95 < right[1]


def test_it_is_a_default_head_but_not_for_spans_and_can_lead(table: Path, tmp_path: Path) -> None:
    assert heads["embedding"].kinds == ("class", "score")
    run = tiny_fit(table, tmp_path / "run", heads="embedding", lead="embedding", marks="0,1")
    first, last = run.results.marks
    assert "embedding+polish" in first.models
    assert last.scores["dev"]["embedding"]["accuracy"].value > 0.9
