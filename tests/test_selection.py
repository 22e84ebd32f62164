"""What ships: models are compared on the same resamples, a tie goes to the safer one, folds stand in for few rows."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Command, info_of, scores_of, sentences, tiny_fit, write_csv

import bertvision
from bertvision.errors import UserError
from bertvision.inference.select import choose, constant, majority, shipped
from bertvision.kinds import Judge, Predictions, kinds
from bertvision.options import Request, folds_of
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.records import GREEDY, MAJORITY, MATCHED, Results
from bertvision.tasks.sampling import folds
from bertvision.types import HELD_OUT, TRAIN, Examples, Windows


def judge_of(targets: np.ndarray) -> Judge:
    rows = np.arange(len(targets))
    windows = Windows(rows, rows, rows, np.arange(len(rows) + 1), 0, rows)
    kind = "class" if targets.dtype.kind == "i" else "score"
    return kinds[kind].judge(Examples([""] * len(rows), None, targets), windows, Recipe())


def guesses(targets: np.ndarray, right: float, seed: int = 0, sure: float = 0.8) -> np.ndarray:
    """Probabilities of two classes that are on the right side for a share of the rows."""
    draw = np.random.default_rng(seed)
    said = np.where(draw.random(len(targets)) < right, targets, 1 - targets)
    return np.eye(2)[said] * (2 * sure - 1) + (1 - sure)


def with_majority(outputs: dict[str, np.ndarray], judge: Judge) -> dict[str, np.ndarray]:
    return outputs | {MAJORITY: constant(majority(judge, 2), len(judge.targets))}


def test_a_rare_class_does_not_ship_a_threshold_that_costs_accuracy() -> None:
    """One in eight, hardly separable: predicting the rare class as often as it occurs is mostly wrong."""
    draw = np.random.default_rng(1)
    targets = (draw.random(600) < 0.12).astype(int)
    rare = np.clip(0.12 + 0.05 * draw.standard_normal(600) + 0.03 * targets, 0.01, 0.6)
    judge = judge_of(targets)
    outputs = with_majority({"encoder": np.stack([1 - rare, rare], 1), "head": np.stack([1 - rare, rare], 1)}, judge)
    found = choose(outputs, judge, "accuracy")
    assert MATCHED in found.ensembles
    assert judge.measure(found.predictions[MATCHED].values, "accuracy") < np.mean(targets == 0) - 0.03
    assert found.goodness >= np.mean(targets == 0) - 0.005
    # The same threshold is worth it where the user asks for a metric that rare classes count in.
    assert choose(outputs, judge, "matthews").selected == MATCHED


def test_nothing_ships_that_is_likely_worse_than_the_majority_class() -> None:
    targets = (np.arange(300) % 3 == 0).astype(int)
    misled = with_majority({"encoder": guesses(targets, 0.3), "head": guesses(targets, 0.35, 1)}, judge_of(targets))
    assert judge_of(targets).measure(misled["head"], "accuracy") < 0.6
    assert choose(misled, judge_of(targets), "accuracy").goodness == pytest.approx(2 / 3)


def test_noise_is_averaged_towards_the_majority_class_in_ensembles() -> None:
    targets = (np.random.default_rng(0).random(400) < 0.3).astype(int)
    outputs = with_majority(
        {"encoder": guesses(targets, 0.5, sure=0.6), "head": guesses(targets, 0.5, 1, 0.6)}, judge_of(targets)
    )
    assert MAJORITY in choose(outputs, judge_of(targets), "accuracy").ensembles[GREEDY].weights


def test_the_last_mark_ships_unless_an_earlier_one_is_likely_better() -> None:
    targets = np.arange(200) % 2
    judge = judge_of(targets)
    early, late = guesses(targets, 0.75, 0), guesses(targets, 0.75, 0)
    wrong = np.flatnonzero(early.argmax(1) != targets)
    late[wrong[1:]] = 0.5 + 0.1 * (late[wrong[1:]] - 0.5)  # less sure where it is wrong
    late[:1] = 1 - late[:1]  # but a row more is wrong, which is noise
    assert judge.measure(late, "accuracy") < judge.measure(early, "accuracy")
    assert shipped([Predictions(early), Predictions(late)], judge, "accuracy") == 1
    # Level by the metric and worse by the loss: nothing speaks for the later one.
    assert shipped([Predictions(early), Predictions(guesses(targets, 0.75, 0, 0.95))], judge, "accuracy") == 0
    late[:40] = 1 - early[:40]
    assert shipped([Predictions(guesses(targets, 0.95)), Predictions(late)], judge, "accuracy") == 0
    assert shipped([Predictions(late)], judge, "accuracy") == 0


def test_the_constant_model_gives_frequencies_or_the_mean() -> None:
    assert majority(judge_of(np.array([0, 0, 0, 1])), 2).constant == pytest.approx((3.5 / 5, 1.5 / 5))
    assert majority(judge_of(np.array([1.0, 2.0, 6.0])), 1).constant == pytest.approx((3.0,))
    assert constant(majority(judge_of(np.array([0, 1, 1, 1])), 3), 5).shape == (5, 3)


@pytest.mark.parametrize("asked", ["-1", "x", "3/2", "1/1", "1/", "/5", "2.5"])
def test_folds_that_make_no_sense_are_refused(asked: str) -> None:
    with pytest.raises(UserError, match="--folds"):
        Request(folds=asked)


def test_folds_are_a_number_or_some_of_them() -> None:
    assert [folds_of(text) for text in (None, "0", "1", "5", "2/5")] == [(0, 0), (0, 0), (0, 0), (5, 5), (2, 5)]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> bertvision.Run:
    folder = tmp_path_factory.mktemp("crossed")
    write_csv(folder / "train.csv", ("text", "label"), sentences(60))
    write_csv(folder / "dev.csv", ("text", "label"), sentences(40, seed=5))
    options = {"heads": "closed-form,adapter-64", "folds": "3", "polish": 2}
    return tiny_fit(folder / "train.csv", folder / "run", dev=folder / "dev.csv", **options)


def test_every_row_is_trained_on_and_judged_by_models_that_left_it_out(crossed: bertvision.Run) -> None:
    data = info_of(crossed)["data"]
    assert (data["train"]["examples"], data["held_out"]["examples"]) == (60, 60)
    assert [mark["epoch"] for mark in scores_of(crossed)["marks"]] == ["0", "1"]
    held = crossed.predictions("0")[HELD_OUT]
    assert all(len(values) == 60 and np.isfinite(values).all() for values in held.outputs.values())
    # The heads that ship have seen these rows, so they answer them differently.
    model = crossed.model("closed-form+polish", mark="0")
    examples = prepare(crossed.record.recipe, Progress(quiet=True)).parts[TRAIN]
    assert not np.allclose(model.outputs(examples)["closed-form+polish"], held.outputs["closed-form+polish"])


def test_a_fold_is_judged_by_exactly_the_models_of_the_other_folds(crossed: bertvision.Run, tmp_path: Path) -> None:
    """Parity: a run without folds on the rows of two folds says the same about the third."""
    recipe = crossed.record.recipe
    train = prepare(recipe, Progress(quiet=True)).parts[TRAIN]
    fold, names = folds(train, 3), np.array(crossed.record.labels)
    rest, left = train.take(np.flatnonzero(fold != 1)), train.take(np.flatnonzero(fold == 1))
    options = {"heads": "closed-form", "epochs": "0", "limit": len(rest)}
    both = [(list(part.texts), list(names[part.targets])) for part in (rest, left)]
    alone = tiny_fit(both[0][0], tmp_path / "alone", both[0][1], dev=both[1], folds="3", **options)
    held = crossed.predictions("0")[HELD_OUT].outputs["closed-form+polish"][fold == 1]
    assert alone.predictions("0")["dev"].outputs["closed-form+polish"] == pytest.approx(held, abs=1e-6)


def test_some_folds_judge_some_rows_but_all_are_trained_on(tmp_path: Path) -> None:
    texts, labels = zip(*sentences(60), strict=True)
    run = tiny_fit(list(texts), tmp_path / "run", list(labels), folds="1/3", heads="closed-form", epochs="0")
    sizes = {name: part.examples for name, part in run.record.data.items()}
    assert sizes[TRAIN] == 54  # the rest is dev
    assert 15 <= sizes[HELD_OUT] <= 21


def test_a_mark_so_early_that_folds_have_no_step_before_it_has_one_in_all_fits(tmp_path: Path) -> None:
    """A tenth of an epoch is 0.5 steps of 36 rows, and less than that of a fold."""
    texts, labels = zip(*sentences(40), strict=True)
    run = tiny_fit(list(texts), tmp_path / "run", list(labels), folds="5", heads="closed-form", epochs="1/10")
    assert "closed-form" in run.results.last.models


@pytest.mark.parametrize("mode", ["memory", "recompute"])
def test_folds_say_the_same_whether_they_share_their_states_or_not(mode: str, pair_table: Path, tmp_path: Path) -> None:
    options = {"text": "one", "text_pair": "two", "heads": "closed-form", "folds": "3", "epochs": "0"}
    run = tiny_fit(pair_table, tmp_path / "run", mode=mode, **options)
    other = tiny_fit(pair_table, tmp_path / "other", mode="auto", **options)
    for name, values in run.predictions("0")[HELD_OUT].outputs.items():
        assert other.predictions("0")[HELD_OUT].outputs[name] == pytest.approx(values, abs=1e-5), name


def test_folds_of_too_few_rows_or_of_questions_are_refused(tmp_path: Path) -> None:
    texts, labels = zip(*sentences(12), strict=True)
    with pytest.raises(UserError, match="--folds 20: 10 rows cannot be split into 20 folds"):
        tiny_fit(list(texts), tmp_path / "run", list(labels), folds="20")
    with pytest.raises(UserError, match="--folds is not for answer spans"):
        tiny_fit("squad2-invented", tmp_path / "run", folds="2")
    assert not list(tmp_path.iterdir())


def test_few_rows_are_cross_fitted_by_default_and_many_are_not(table: Path) -> None:
    few = prepare(Request(train=str(table), backbone="tiny"), Progress(quiet=True))
    assert few.recipe.folds == "5"
    assert len(few.parts[TRAIN]) == len(few.parts[HELD_OUT])
    none = prepare(Request(train=str(table), backbone="tiny", heads="none"), Progress(quiet=True))
    assert none.recipe.folds == "0"


def test_an_interrupted_run_keeps_what_its_folds_found(table: Path, tmp_path: Path) -> None:
    """Killed after cross-fitting, it goes on with the same numbers, and does not cross-fit again."""
    arguments = ["fit", str(table), "--backbone", "tiny", "--heads", "closed-form", "--folds", "2", "--dropout"]
    whole = tiny_fit(table, tmp_path / "whole", heads="closed-form", folds="2", dropout=True, polish=None)
    code = f"""
import os, signal, sys
from bertvision import cli
from bertvision.training import cross_fit
keep = cross_fit.LeftOut.save
def end(self, folder):
    keep(self, folder)
    os.kill(os.getpid(), signal.SIGKILL)
cross_fit.LeftOut.save = end
sys.argv = ["bertvision"] + {[*arguments, "--out", str(tmp_path / "run")]!r}
cli.main()
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
    again = code.replace("LeftOut.save = end", "cross_fit = None  # would fail").replace("sys.argv = [", "sys.argv = [")
    again = again.replace("'--out'", "'--resume', '--out'")
    done = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = bertvision.Run(tmp_path / "run")
    for mark in ("0", "1"):
        for split, said in whole.predictions(mark).items():
            for name, values in said.outputs.items():
                assert np.array_equal(values, run.predictions(mark)[split].outputs[name]), (mark, split, name)
    assert not (run.path / "folds").exists()


def test_the_encoder_of_a_cross_fitted_run_holds_no_row_out(crossed: bertvision.Run, tmp_path: Path) -> None:
    recipe = crossed.record.recipe
    where = {"train": recipe.train, "dev": recipe.dev, "quiet": True}
    with pytest.raises(UserError, match="cross-fitted"):
        bertvision.extract(f"{crossed.path}@1", "table", out=tmp_path / "store", **where)
    assert not (tmp_path / "store").exists()
    bertvision.extract(f"{crossed.path}@1", "table", out=tmp_path / "dev", split="dev", **where)
    bertvision.extract(f"{crossed.path}@0", "table", out=tmp_path / "zero", **where)


def test_the_majority_class_is_scored_and_can_be_asked(crossed: bertvision.Run, command: Command) -> None:
    results = Results.read(crossed.path / "scores.json")
    assert results.last.score(MAJORITY, "accuracy").value == pytest.approx(0.5)
    code, out, _ = command("predict", crossed.path, "a great film", "--model", MAJORITY, "--json")
    assert code == 0
    assert "0.5" in out
