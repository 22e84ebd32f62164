"""Metrics against scikit-learn and scipy, intervals against plain resampling, ensembles against their equations."""

import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from bertvision.inference.select import choose, combined, greedy, matching_shift
from bertvision.kinds.labels import LabelJudge
from bertvision.metrics import intervals
from bertvision.metrics.glue import CLASS_METRICS, METRICS, SCORE_METRICS, decide
from bertvision.metrics.intervals import compare, measure, resampled, score
from bertvision.options import Request
from bertvision.records import Ensemble
from bertvision.types import Examples, Windows

RANDOM = np.random.default_rng(0)
REFERENCES = {
    "accuracy": lambda d, t: reference.accuracy_score(t, d),
    "f1": lambda d, t: reference.f1_score(t, d, average="binary" if t.max() < 2 else "macro"),
    "macro-f1": lambda d, t: reference.f1_score(t, d, average="macro"),
    "balanced-accuracy": lambda d, t: reference.balanced_accuracy_score(t, d),
    "matthews": lambda d, t: reference.matthews_corrcoef(t, d),
    "pearson": lambda d, t: stats.pearsonr(d, t).statistic,
    "spearman": lambda d, t: stats.spearmanr(d, t).statistic,
    "r2": lambda d, t: reference.r2_score(t, d),
}


def judge_of(targets: np.ndarray) -> LabelJudge:
    """One window per example."""
    none, rows = np.empty(0), np.arange(len(targets))
    windows = Windows(none, none, none, np.arange(len(targets) + 1), 0, rows)
    return LabelJudge(Examples([""] * len(targets), None, targets), windows, Request(), kind="class")


def answers(metric: str, classes: int, count: int = 300) -> tuple[np.ndarray, np.ndarray]:
    if metric in SCORE_METRICS:
        targets = np.round(RANDOM.normal(size=count), 1)  # rounded: ties occur
        return (targets + RANDOM.normal(size=count)).round(1)[:, None], targets
    targets = RANDOM.integers(0, classes, count)
    outputs = RANDOM.dirichlet(np.ones(classes), count)
    outputs[np.arange(count), targets] += 0.3
    return outputs / outputs.sum(1, keepdims=True), targets


@pytest.mark.parametrize("metric", METRICS)
def test_values_and_their_resampled_forms_equal_the_reference(metric: str) -> None:
    for classes in (2, 3):
        outputs, targets = answers(metric, classes)
        decisions = decide(outputs)
        assert measure(outputs, targets, metric) == pytest.approx(REFERENCES[metric](decisions, targets), abs=1e-12)
        draws = RANDOM.integers(0, len(targets), (20, len(targets)))
        weights = np.stack([np.bincount(row, minlength=len(targets)) for row in draws]).astype(float)
        expected = [REFERENCES[metric](decisions[row], targets[row]) for row in draws]
        found = METRICS[metric].weighted(decisions, targets, weights, outputs.shape[1])
        assert found == pytest.approx(expected, abs=1e-6), classes


@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_a_constant_prediction_scores_zero_without_a_warning(metric: str) -> None:
    targets = RANDOM.normal(size=50) if metric in ("pearson", "spearman") else RANDOM.integers(0, 2, 50)
    constant = np.full((50, 1), 2.0) if targets.dtype.kind == "f" else np.tile([0.9, 0.1], (50, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = score(constant, targets, metric)
    assert (found.value, found.low, found.high) == (0, 0, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")  # scikit-learn's, about classes that are only predicted
@pytest.mark.parametrize("metric", CLASS_METRICS)
def test_rows_of_a_class_that_train_lacks_are_always_wrong(metric: str) -> None:
    """To scikit-learn they are one more class, which is never predicted."""
    for classes in (2, 4):
        outputs, targets = answers(metric, classes)
        targets[:40] = classes
        decisions = decide(outputs)
        one = (metric, classes) == ("f1", 2)
        expected = reference.f1_score(targets == 1, decisions == 1) if one else REFERENCES[metric](decisions, targets)
        assert measure(outputs, targets, metric) == pytest.approx(expected, abs=1e-12)
        assert measure(np.eye(classes)[np.minimum(targets, classes - 1)], targets, "accuracy") < 1
    judge, known = judge_of(targets), judge_of(targets[40:])
    assert judge.loss(outputs) == pytest.approx(known.loss(outputs[40:]))


def test_r2_of_constant_targets_is_that_of_scikit_learn() -> None:
    targets = np.full(20, 3.0)
    for predicted in (targets, targets + 1):
        found = measure(predicted[:, None], targets, "r2", "score")
        assert found == reference.r2_score(targets, predicted)


def test_what_is_kept_of_the_resamples_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    intervals._kept.cache_clear()
    right = np.ones(500, dtype=np.int64)
    outputs = RANDOM.dirichlet([1, 1], 500)
    plain = resampled(outputs, right, "accuracy")
    assert len(plain) == 1000
    assert sum(intervals._kept(500, first).nbytes for first in range(0, 1000, 100)) == 1000 * 500
    assert intervals._kept.cache_info().currsize == 10
    # Too many examples to keep: fewer resamples, drawn again each time, but the same ones.
    monkeypatch.setattr(intervals, "MOST_DRAWS", 20_000)
    intervals._kept.cache_clear()
    fewer = resampled(outputs, right, "accuracy")
    assert np.array_equal(fewer, plain[:200])
    assert intervals._kept.cache_info().currsize == 0


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
    highest = np.array([[0.9, 0.8], [0.4, 0.7]])
    assert combined(Ensemble("max", both), outputs, "class") == pytest.approx(highest / [[1.7], [1.1]])
    assert combined(Ensemble("max", both), outputs, "score") == pytest.approx(highest)
    assert combined(Ensemble("mean", both), outputs, "class") == pytest.approx(np.array([[0.55, 0.45], [0.35, 0.65]]))
    assert combined(Ensemble("mean", {"a": 3.0, "b": 1.0}), outputs, "class")[0, 0] == pytest.approx(0.725)


def test_greedy_selection_averages_models_that_err_apart_and_leaves_noise_out() -> None:
    targets = np.arange(300) % 2
    truth = np.eye(2)[targets] * 0.6 + 0.2
    outputs = {"noise": RANDOM.dirichlet([1, 1], 300)}
    for name, rows in (("a", slice(0, 60)), ("b", slice(60, 120)), ("c", slice(120, 180))):
        outputs[name] = truth.copy()
        outputs[name][rows] = 0.45 + 0.1 * (1 - np.eye(2)[targets[rows]])
    judge = judge_of(targets)
    chosen = greedy(outputs, lambda values: -judge.loss(values))
    assert set(chosen) <= {"a", "b", "c"}
    assert len(chosen) >= 2
    assert sum(chosen.values()) == pytest.approx(1)
    assert (decide(combined(Ensemble("mean", chosen), outputs, "class")) == targets).mean() == 1


def test_matching_says_each_class_as_often_as_it_comes() -> None:
    """Three in four are of class 1, and hard to tell: what is right on average says class 1 of all."""
    targets = (np.arange(400) % 4 > 0).astype(int)
    sure = 0.75 + 0.1 * (targets - 0.75) + RANDOM.normal(0, 0.03, 400)
    plain = np.stack([1 - sure, sure], 1)
    assert measure(plain, targets, "matthews") == 0
    matched = combined(Ensemble("mean", {"a": 1.0}, matching_shift(sure, 0.75)), {"a": plain}, "class")
    assert decide(matched).mean() == pytest.approx(0.75, abs=0.01)
    assert matched.sum(1) == pytest.approx(np.ones(400))
    assert measure(matched, targets, "matthews") > 0.7
    assert (np.argsort(matched[:, 1]) == np.argsort(sure)).all()
    assert np.array_equal(combined(Ensemble("mean", {"a": 1.0}, 0.0), {"a": plain}, "class"), plain)
    shifts = [matching_shift(sure, 0.0), matching_shift(sure, 1.0), matching_shift(np.ones(3), 0.5)]
    assert np.isfinite(shifts).all()


def test_the_ensemble_is_preferred_unless_another_is_clearly_better() -> None:
    """Of forty models that guess alike, the best on these rows was lucky; one that knows is not."""
    targets = RANDOM.integers(0, 2, 200)
    judge = judge_of(targets)

    def guess(right: float) -> np.ndarray:
        known = np.where(RANDOM.random(200) < right, targets, 1 - targets)
        return np.eye(2)[known] * 0.2 + 0.4

    outputs = {"encoder": guess(0.6), **{f"head-{i}": guess(0.6) for i in range(39)}}
    found = choose(outputs, judge, "accuracy")
    assert found.selected == "ensemble-greedy"
    assert found.goodness == pytest.approx(judge.measure(found.predictions["ensemble-greedy"].values, "accuracy"))
    assert choose({"encoder": outputs["encoder"]}, judge, "accuracy").selected == "encoder"
    # Ensembles are built by the loss, to which a head that is always right but never sure is worth little.
    unsure = 0.5 + 0.001 * (2 * np.eye(2)[targets] - 1)
    often_right = np.eye(2)[np.where(np.arange(200) % 4 == 0, 1 - targets, targets)] * 0.6 + 0.2
    with_one = {"encoder": often_right, "head": often_right, "knows": unsure}
    assert choose(with_one, judge, "accuracy").selected == "knows"


def test_a_class_that_is_hardly_held_out_gives_no_threshold() -> None:
    """All of one class: the threshold would lie above, or below, every probability that was seen."""
    outputs = {name: RANDOM.dirichlet([1, 1], 40) for name in ("encoder", "head")}
    for second, tuned in ((0, False), (4, False), (5, True), (20, True), (35, True), (36, False), (40, False)):
        targets = (np.arange(40) < second).astype(int)
        found = choose(outputs, judge_of(targets), "accuracy").ensembles
        assert ("ensemble-matched" in found) == tuned, second


def test_ensembles_take_the_encoder_and_the_best_head() -> None:
    targets = np.arange(100) % 2
    good, poor = np.eye(2)[targets] * 0.8 + 0.1, np.full((100, 2), 0.5)
    found = choose({"encoder": poor, "x": poor, "y": good}, judge_of(targets), "accuracy")
    assert found.best_head == "y"
    assert found.ensembles["ensemble-max"].weights == {"encoder": 1.0, "y": 1.0}
    assert found.ensembles["ensemble-greedy"].weights == {"y": 1.0}
    alone = choose({"encoder": poor}, judge_of(targets), "accuracy")
    assert (alone.ensembles, alone.best_head) == ({}, None)
