"""`fit --budget`: what a time allows, and that what was decided stays."""

import signal
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Command, info_of, tiny_fit

import bertvision
from bertvision.errors import UserError
from bertvision.heads.closed_form import ClosedForm
from bertvision.options import ALL_MARKS, Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.training import budget, measuring
from bertvision.training.budget import within_time
from bertvision.training.deadline import Clock
from bertvision.training.measuring import MarkSeconds, Measured

ASKED = Recipe(budget=10.0, lead="closed-form", polish_until="3/10")
WITHOUT_LEAD = Recipe(budget=10.0, lead="own")


def decided(rest: float, epoch: float, recipe: Recipe = ASKED, start: float = 0.0, **mark: float) -> Recipe:
    """`mark`: seconds of a mark by way to read pairs, of which a fifth are for answers, all but a twentieth to dev."""
    by_way = {way: MarkSeconds(0.5 * s, 0.3 * s, 0.05 * s, 0.15 * s) for way, s in mark.items()}
    return within_time(recipe, rest, Measured(epoch, by_way, 1000, start))


def marks_of(chosen: Recipe) -> str:
    assert chosen.marks.split(",")[-1] == chosen.epochs
    return chosen.marks


def test_a_look_at_the_encoder_as_it_is_and_then_as_much_fine_tuning_as_fits() -> None:
    assert marks_of(decided(300, 100, joint=100)) == f"0,{Fraction(9, 5)}"  # 300 - 100 - 20 for the last answers
    assert marks_of(decided(300, 100, joint=50, separate=50)) == f"0,{Fraction(19, 10)}"  # which read pairs joint
    assert marks_of(decided(9000, 100, joint=10)) == "0,3"


def test_where_a_look_takes_too_long_fine_tuning_begins_at_once_if_it_is_worth_it() -> None:
    assert marks_of(decided(100, 100, joint=60, start=10.0)) == str(Fraction(78, 100))
    assert marks_of(decided(100, 200, joint=60, start=10.0)) == "0"  # 0.39 epochs are not
    assert marks_of(decided(100, 130, joint=55, start=10.0)) == str(Fraction(60, 100))  # after a look, only 0.26
    chosen = decided(100, 100, joint=140, start=10.0)
    assert (marks_of(chosen), chosen.limit) == (str(Fraction(62, 100)), None)


def test_marks_that_are_to_be_polished_take_their_time() -> None:
    for until in ("3", ALL_MARKS):
        assert marks_of(decided(300, 100, replace(ASKED, polish_until=until), joint=100)) == "0,1"


def test_without_a_lead_heads_are_polished_in_the_end() -> None:
    assert marks_of(decided(300, 100, WITHOUT_LEAD, joint=100)) == "2"
    assert marks_of(decided(100, 100, WITHOUT_LEAD, joint=90)) == str(Fraction(1, 10))
    assert marks_of(decided(100, 100, WITHOUT_LEAD, joint=96)) == "0"


def test_spans_are_fine_tuned_and_not_polished(tmp_path: Path) -> None:
    given = {"backbone": "tiny", "limit": 60, "dev_limit": 20, "quiet": True}
    run = bertvision.fit("squad2-invented", budget=0.25, out=tmp_path / "run", **given)
    last = run.results.last
    assert Fraction(last.mark) > 0
    assert {"encoder"} < {name for name in last.models if name in run.record.parameters}
    assert not [name for name in last.models if name.endswith("+polish")]


def test_a_frozen_encoder_is_not_fine_tuned() -> None:
    frozen = Recipe(budget=10.0, lead="own", freeze="all")
    assert marks_of(decided(900, 100, frozen, joint=10)) == "0"


def test_too_little_time_for_all_examples_means_fewer() -> None:
    chosen = decided(49, 1000, joint=100)  # less 15 for dev; of fewer examples, fewer are held out
    assert (chosen.epochs, chosen.marks, chosen.limit) == ("0", "0", 400)


def test_where_dev_takes_most_of_the_time_a_part_of_it_is_reported_on() -> None:
    measured = Measured(1000, {"joint": MarkSeconds(50, 30, 5, 500)}, 1000)
    assert within_time(ASKED, 30, measured).limit == 1  # all of dev, as asked
    assert within_time(ASKED, 30, replace(measured, dev_share=0.01)).limit == 235  # 20 s of 85
    few = Measured(1000, {"joint": MarkSeconds(2, 1, 1, 500)}, 100, dev_share=0.01)
    assert within_time(replace(ASKED, limit=100), 30, few).limit == 100  # and never more than there are


def test_folds_take_their_time() -> None:
    """Five folds train on four fifths each: five times as much as one fit. At mark 0 all read the same states."""
    measured = Measured(10, {"joint": MarkSeconds(5, 3, 1, 1)}, 1000)
    once, five = (within_time(replace(ASKED, folds=folds), 100, measured) for folds in ("0", "5"))
    assert (once.marks, five.marks) == ("0,3", f"0,{Fraction(154, 100)}")  # (100 - 5 - 5 * 3 - 1 - 2) / 50


def test_a_budget_uses_as_many_folds_as_leave_time_for_enough_epochs() -> None:
    measured = Measured(10, {"joint": MarkSeconds(5, 3, 5, 1)}, 1000)
    found = {}
    for rest in (200, 100, 70, 55, 40):
        _, _, chosen = budget._folded(replace(ASKED, folds="5"), measured, rest, 1.0)
        found[rest] = chosen.folds
        assert Fraction(chosen.epochs) >= (budget.ENOUGH if chosen.folds != "0" else 1)
    assert found == {200: "5", 100: "3/5", 70: "2/5", 55: "1/5", 40: "0"}
    _, _, chosen = budget._folded(replace(ASKED, folds="5"), replace(measured, rows=150), 40, 1.0)
    assert chosen.folds == "5"  # a tenth of 150 rows is too little to choose on
    assert Fraction(1, 2) <= Fraction(chosen.epochs) < budget.ENOUGH


@pytest.mark.parametrize(("heads", "led"), [("closed-form", True), ("adapter-64", False)])
def test_a_lead_that_mark_0_does_not_solve_takes_its_time(heads: str, led: bool, table: Path) -> None:
    request = Request(train=str(table), backbone="tiny", heads=heads, lead="closed-form", budget=1.0)
    found = measuring.measured(prepare(request, Progress(quiet=True)), 60.0, Clock.start())
    assert (found.led, found.shared, found.words) == (led, True, 0.0)
    measured = replace(Measured(10, {"joint": MarkSeconds(5, 3, 1, 1)}, 1000, start=20.0), led=led)
    assert within_time(ASKED, 50, measured).marks == ("0,3" if led else "0,9/5")
    assert ("last lead" in budget.pieces(replace(ASKED, epochs="1", marks="0,1"), measured, 1.0)) is not led


def test_words_are_fitted_again_in_every_fold_that_is_used() -> None:
    measured = Measured(10, {"joint": MarkSeconds(5, 3, 5, 1)}, 150, words=10.0)
    asked = replace(ASKED, folds="5")
    few, none = (within_time(replace(ASKED, folds=folds), 100, measured) for folds in ("2/5", "0"))
    assert Fraction(none.epochs) > Fraction(few.epochs) > Fraction(within_time(asked, 100, measured).epochs)
    work = budget.pieces(replace(few, folds="2/5"), measured, 1.0)
    assert [name for name in work if name.endswith("words")] == ["fold 1 words", "fold 2 words"]


def test_folds_without_heads_at_mark_0_share_nothing() -> None:
    """Where dev alone takes too long and nothing is polished, fewer examples do not help, but nothing breaks."""
    measured = Measured(10, {"joint": MarkSeconds(5, 3, 5, 100)}, 1000, shared=False)
    chosen = within_time(replace(ASKED, folds="5", polish=0), 50, measured)
    assert (chosen.marks, chosen.limit is not None) == ("0", True)


def test_few_examples_are_seen_more_often() -> None:
    assert [measuring.most_epochs(steps) for steps in (1, 13, 40, 60, 100, 5000)] == [10, 10, 8, 5, 3, 3]


def test_a_run_keeps_its_budget_and_says_what_it_decided(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", budget=0.5, polish=None)
    record, recipe = run.record, run.record.recipe
    assert record.costs is not None
    assert record.costs.seconds < 0.5 * 60
    assert recipe.budget == 0.5
    assert Fraction(recipe.epochs) > 0
    assert recipe.marks.split(",")[-1] == recipe.epochs == run.results.last.mark
    assert (record.request.epochs, record.request.marks) == (Request.epochs, None)


def test_a_short_budget_takes_fewer_examples(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if reading were slow: half of the time goes to answers, so some of the examples fit."""
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: {"joint": MarkSeconds(30.0, 30.0, 1.0, 5.0)})
    monkeypatch.setattr(measuring, "epoch_seconds", lambda setting: pytest.fail("tried, though it cannot fit"))
    run = tiny_fit(table, tmp_path / "run", budget=0.5, polish=None)
    recipe, data = run.record.recipe, run.record.data
    assert (recipe.epochs, recipe.marks) == ("0", "0")
    assert recipe.limit == data["train"].examples + data["held_out"].examples
    assert run.record.request.limit is None


def test_a_budget_that_is_too_short_says_how_much_is_needed(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: {"joint": MarkSeconds(30.0, 30.0, 1.0, 600.0)})
    with pytest.raises(UserError, match=r"--budget 0\.5: even with few examples .* about 10\.\d minutes"):
        tiny_fit(table, tmp_path / "run", budget=0.5)
    assert not list(tmp_path.glob("run*"))


def test_where_two_ways_to_read_pairs_take_too_long_the_better_one_is_found(
    pair_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if reading all pairs took 22 seconds in either way, of 29 there are; or answers alone 32 in both."""
    costs = MarkSeconds(10.0, 10.0, 1.0, 1.0)
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: dict.fromkeys(("joint", "separate"), costs))
    said = {"joint": 0.3, "separate": 0.9}

    def solve(head: ClosedForm, setting: object, way: str, most: int, title: str) -> None:
        head.profile[1] = said[way]

    monkeypatch.setattr(budget.lead, "solve", solve)
    given = {"text": "one", "text_pair": "two", "budget": 0.6, "freeze": "all", "polish": None}
    for best in ("separate", "joint"):
        recipe = tiny_fit(pair_table, tmp_path / best, **given).record.recipe
        assert (recipe.pairs, recipe.epochs, recipe.limit) == (best, "0", None)
        said["joint"] = 1.0
    costs = MarkSeconds(10.0, 10.0, 1.0, 15.0)
    recipe = tiny_fit(pair_table, tmp_path / "fewer", **given).record.recipe
    assert recipe.pairs == "joint"
    assert recipe.limit is not None
    assert 0 < recipe.limit < 90


def test_few_pairs_tell_which_way_to_read_them(pair_table: Path) -> None:
    """In this table a score is how alike two texts are: states of each alone say it, by difference and product."""
    options = Request(task="table", train=str(pair_table), text="one", text_pair="two", backbone="tiny")
    assert budget.better_way(prepare(options, Progress(quiet=True)), ["joint", "separate"]) == "separate"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["marks.answers_at = end", "Loop._train_step = end_after_half"])
def test_what_was_decided_stays_when_resumed(table: Path, tmp_path: Path, command: Command, killed: str) -> None:
    given = ["fit", str(table), "--backbone", "tiny", "--budget", "1", "--out", str(tmp_path / "run")]
    code = f"""
import os, signal, sys
from bertvision import cli
from bertvision.training import marks
from bertvision.training.loop import Loop
step = Loop._train_step
def end(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def end_after_half(loop, *given): return end() if loop.step > 0.7 * 3 * loop.steps_per_epoch else step(loop, *given)
{killed}
sys.argv = {["bertvision", *given]!r}
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    decided = info_of(tmp_path / "run.partial")
    code_, _, err = command(*given, "--resume")
    assert code_ == 0, err
    resumed = info_of(tmp_path / "run")
    assert (resumed["options"], resumed["request"]) == (decided["options"], decided["request"])


def test_bad_budgets(table: Path, tmp_path: Path, command: Command) -> None:
    for extra, said in (
        (("--budget", "0"), "must be above 0"),
        (("--budget", "1", "--epochs", "2"), "leave these out"),
    ):
        code, _, err = command(
            "fit", "table", "--train", table, "--backbone", "tiny", "--out", tmp_path / "run", *extra
        )
        assert code == 1
        assert said in err
    assert not list(tmp_path.glob("run*"))
