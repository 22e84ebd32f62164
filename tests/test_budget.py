"""`fit --budget`: what a time allows, and that what was decided stays."""

import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from conftest import Command

import bertvision
from bertvision.errors import UserError
from bertvision.options import FitOptions
from bertvision.runs import Run
from bertvision.training import budget
from bertvision.training.budget import Mark, recipe

ASKED = FitOptions(budget=10.0)


def decided(rest: float, epoch: float, options: FitOptions = ASKED, **mark: float) -> FitOptions:
    """`mark`: seconds of a mark by way to read pairs, of which a fifth are for answers."""
    return recipe(options, rest, epoch, {way: Mark(0.8 * s, 0.2 * s) for way, s in mark.items()}, rows=1000)


def test_as_much_fine_tuning_as_fits_beside_the_marks() -> None:
    chosen = decided(300, 100, joint=100)
    assert (chosen.epochs, chosen.marks, chosen.limit) == ("2", "2", None)
    chosen = decided(300, 100, joint=40)  # the encoder as it is costs little: look at it too
    assert (chosen.epochs, chosen.marks) == (str(Fraction(11, 5)), f"0,{Fraction(11, 5)}")
    assert decided(9000, 100, joint=10).epochs == "3"


def test_pairs_are_read_in_one_way_where_that_leaves_enough_to_fine_tune() -> None:
    chosen = decided(100, 100, joint=40, separate=40)
    assert (chosen.epochs, chosen.pairs) == ("3/5", "joint")
    chosen = decided(100, 1000, joint=40, separate=40)
    assert (chosen.epochs, chosen.pairs) == ("0", "auto")
    chosen = decided(300, 100, joint=40, separate=40)
    assert (chosen.epochs, chosen.pairs) == (str(Fraction(11, 5)), "auto")
    frozen = FitOptions(budget=10.0, freeze="all")
    assert (decided(100, 10, frozen, joint=40, separate=40).epochs, decided(900, 100, frozen, joint=10).epochs) == (
        "0",
        "0",
    )


def test_too_little_time_for_all_examples_means_fewer() -> None:
    chosen = decided(60, 1000, joint=100)
    assert (chosen.epochs, chosen.marks, chosen.limit) == ("0", "0", 500)
    with pytest.raises(UserError, match=r"--budget 10: even with few examples .* about 10\.1 minutes"):
        decided(20, 100, joint=100)


def test_a_run_keeps_its_budget_and_says_what_it_decided(table: Path, tmp_path: Path) -> None:
    run = bertvision.fit("table", train=table, backbone="tiny", budget=0.2, out=tmp_path / "run", quiet=True)
    assert run.info["costs"]["seconds"] < 0.2 * 60 * 1.15
    options = run.info["options"]
    assert options["budget"] == 0.2
    assert options["marks"].split(",")[-1] == options["epochs"] == run.scores["marks"][-1]["epoch"]


def test_a_short_budget_takes_fewer_examples(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if reading were slow: half of the time goes to answers, so some of the examples fit."""
    monkeypatch.setattr(budget, "mark_seconds", lambda setting: {"joint": Mark(60.0, 6.0)})
    run = bertvision.fit("table", train=table, backbone="tiny", budget=0.5, out=tmp_path / "run", quiet=True)
    options, data = run.info["options"], run.info["data"]
    assert (options["epochs"], options["marks"]) == ("0", "0")
    assert options["limit"] == data["train"]["examples"] + data["held_out"]["examples"]


def test_what_was_decided_stays_when_resumed(table: Path, tmp_path: Path, command: Command) -> None:
    given = [
        "fit",
        "table",
        "--train",
        str(table),
        "--backbone",
        "tiny",
        "--budget",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    code = "import os, signal\nfrom bertvision.training import marks\n" + (
        "def end(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\nmarks.report = end\n"
        f"from bertvision import cli\nimport sys\nsys.argv = {['bertvision', *given]!r}\ncli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    decided = Run(tmp_path / "run.partial").info["options"]
    code_, _, err = command(*given, "--resume")
    assert code_ == 0, err
    assert Run(tmp_path / "run").info["options"] == decided


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
