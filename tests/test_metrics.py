"""Metrics against scikit-learn and scipy, intervals against plain resampling, ensembles against their equations."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from bertvision.inference.ensemble import combine, greedy, matching, shifted
from bertvision.metrics.glue import METRICS, decide
from bertvision.metrics.intervals import compare, measure, resampled, score
from bertvision.training.judging import LabelJudge, goodness
from bertvision.training.selection import ensembles, preferred
from bertvision.types import Examples, Windows

RANDOM = np.random.default_rng(0)
REFERENCES = {
    "accuracy": lambda d, t: reference.accuracy_score(t, d),
    "f1": lambda d, t: reference.f1_score(t, d, average="binary" if t.max() < 2 else "macro"),
    "matthews": lambda d, t: reference.matthews_corrcoef(t, d),
    "pearson": lambda d, t: stats.pearsonr(d, t).statistic,
    "spearman": lambda d, t: stats.spearmanr(d, t).statistic,
}


def judge_of(targets: np.ndarray) -> LabelJudge:
    """One window per example."""
    none, rows = np.empty(0), np.arange(len(targets))
    windows = Windows(none, none, none, np.arange(len(targets) + 1), 0, rows)
    return LabelJudge("class", Examples([""] * len(targets), None, targets), windows)


def answers(metric: str, classes: int, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    if metric in ("pearson", "spearman"):
        targets = np.round(RANDOM.normal(size=count), 1)  # rounded: ties occur
        return (targets + RANDOM.normal(size=count)).round(1)[:, None], targets
    targets = RANDOM.integers(0, classes, count)
    outputs = RANDOM.dirichlet(np.ones(classes), count)
    outputs[np.arange(count), targets] += 0.3
    return outputs / outputs.sum(1, keepdims=True), targets


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("classes", [2, 3])
def test_values_and_their_resampled_forms_equal_the_reference(metric: str, classes: int) -> None:
    outputs, targets = answers(metric, classes)
    decisions = decide(outputs)
    assert measure(outputs, targets, metric) == pytest.approx(REFERENCES[metric](decisions, targets), abs=1e-12)
    draws = RANDOM.integers(0, len(targets), (20, len(targets)))
    weights = np.stack([np.bincount(row, minlength=len(targets)) for row in draws]).astype(float)
    expected = [REFERENCES[metric](decisions[row], targets[row]) for row in draws]
    assert METRICS[metric].weighted(decisions, targets, weights, outputs.shape[1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_a_constant_prediction_scores_zero_without_a_warning(metric: str) -> None:
    targets = RANDOM.normal(size=50) if metric in ("pearson", "spearman") else RANDOM.integers(0, 2, 50)
    constant = np.full((50, 1), 2.0) if targets.dtype.kind == "f" else np.tile([0.9, 0.1], (50, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = score(constant, targets, metric)
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for trial in range(100):
        draw = np.random.default_rng(trial)
        right = draw.random(200) < 0.8
        outputs = np.where(right[:, None], [0.1, 0.9], [0.9, 0.1])
        found = score(outputs, np.ones(200, dtype=int), "accuracy")
        covered += found.low <= 0.8 <= found.high
    assert 88 <= covered <= 100


def test_a_paired_comparison_is_sharper_than_two_intervals() -> None:
    targets = RANDOM.integers(0, 2, 400)
    one = np.where(RANDOM.random((400, 1)) < 0.75, np.eye(2)[targets], np.eye(2)[1 - targets])
    other = one.copy()
    wrong = np.flatnonzero(decide(one) != targets)[:20]
    other[wrong] = np.eye(2)[targets[wrong]]  # twenty mistakes mended, none made
    found = compare(one, other, targets, "accuracy")
    assert found.value == pytest.approx(0.05)
    assert found.low > 0
    assert score(one, targets, "accuracy").high > score(other, targets, "accuracy").low
    back = compare(other, one, targets, "accuracy")
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_resamples_are_the_same_on_every_call() -> None:
    outputs, targets = answers("accuracy", 2)
    assert np.array_equal(resampled(outputs, targets, "accuracy"), resampled(outputs, targets, "accuracy"))


def test_max_and_mean_are_the_papers_equations() -> None:
    outputs = {"a": np.array([[0.9, 0.1], [0.4, 0.6]]), "b": np.array([[0.2, 0.8], [0.3, 0.7]])}
    both = {"a": 1.0, "b": 1.0}
    assert combine(outputs, both, "max", "class") == pytest.approx(np.array([[0.9, 0.8], [0.4, 0.7]]) / [[1.7], [1.1]])
    assert combine(outputs, both, "mean", "class") == pytest.approx(np.array([[0.55, 0.45], [0.35, 0.65]]))
    assert combine(outputs, {"a": 3.0, "b": 1.0}, "mean", "class")[0, 0] == pytest.approx(0.725)


def test_greedy_selection_averages_models_that_err_apart_and_leaves_noise_out() -> None:
    targets = np.arange(300) % 2
    truth = np.eye(2)[targets] * 0.6 + 0.2
    outputs = {"noise": RANDOM.dirichlet([1, 1], 300)}
    for name, rows in (("a", slice(0, 60)), ("b", slice(60, 120)), ("c", slice(120, 180))):
        outputs[name] = truth.copy()
        outputs[name][rows] = 0.45 + 0.1 * (1 - np.eye(2)[targets[rows]])
    chosen = greedy(outputs, lambda values: goodness(judge_of(targets), values, "accuracy")[1])
    assert set(chosen) <= {"a", "b", "c"}
    assert len(chosen) >= 2
    assert sum(chosen.values()) == pytest.approx(1)
    assert (decide(combine(outputs, chosen, "mean", "class")) == targets).mean() == 1


def test_matching_says_each_class_as_often_as_it_comes() -> None:
    """Three in four are of class 1, and hard to tell: what is right on average says class 1 of all."""
    targets = (np.arange(400) % 4 > 0).astype(int)
    sure = 0.75 + 0.1 * (targets - 0.75) + RANDOM.normal(0, 0.03, 400)
    plain = np.stack([1 - sure, sure], 1)
    assert measure(plain, targets, "matthews") == 0
    matched = shifted(plain, matching(sure, 0.75))
    assert decide(matched).mean() == pytest.approx(0.75, abs=0.01)
    assert matched.sum(1) == pytest.approx(np.ones(400))
    assert measure(matched, targets, "matthews") > 0.7
    assert (np.argsort(matched[:, 1]) == np.argsort(sure)).all()
    assert np.array_equal(shifted(plain, 0.0), plain)
    assert np.isfinite([matching(sure, 0.0), matching(sure, 1.0), matching(np.ones(3), 0.5)]).all()


def test_the_ensemble_is_preferred_unless_another_is_clearly_better() -> None:
    """Of forty models that guess alike, the best on these rows was lucky; one that knows is not."""
    targets = RANDOM.integers(0, 2, 200)
    judge = judge_of(targets)

    def guess(right: float) -> np.ndarray:
        known = np.where(RANDOM.random(200) < right, targets, 1 - targets)
        return np.eye(2)[known] * 0.2 + 0.4

    outputs = {"encoder": guess(0.6), **{f"head-{i}": guess(0.6) for i in range(39)}}
    found = ensembles(outputs, judge, "accuracy")
    outputs |= {name: ensemble.of(outputs, "class") for name, ensemble in found.items()}
    assert preferred(outputs, judge, "accuracy") == "ensemble-matched"
    assert preferred(outputs | {"knows": guess(1.0)}, judge, "accuracy") == "knows"
    assert preferred({"encoder": outputs["encoder"]}, judge, "accuracy") == "encoder"


@pytest.mark.parametrize("second", [0, 4, 36, 40])
def test_a_class_that_is_hardly_held_out_gives_no_threshold(second: int) -> None:
    """All of one class: the threshold would lie above, or below, every probability that was seen."""
    targets = (np.arange(40) < second).astype(int)
    outputs = {name: RANDOM.dirichlet([1, 1], 40) for name in ("encoder", "head")}
    assert "ensemble-matched" not in ensembles(outputs, judge_of(targets), "accuracy")
    assert "ensemble-matched" in ensembles(outputs, judge_of(np.arange(40) % 2), "accuracy")


def test_ensembles_take_the_encoder_and_the_best_head() -> None:
    targets = np.arange(100) % 2
    good, poor = np.eye(2)[targets] * 0.8 + 0.1, np.full((100, 2), 0.5)
    found = ensembles({"encoder": poor, "x": poor, "y": good}, judge_of(targets), "accuracy")
    assert found["ensemble-max"].weights == {"encoder": 1.0, "y": 1.0}
    assert found["ensemble-greedy"].weights == {"y": 1.0}
    assert ensembles({"encoder": poor}, judge_of(targets), "accuracy") == {}
