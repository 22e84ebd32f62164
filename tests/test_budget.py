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
from bertvision.training.budget import recipe

ASKED = FitOptions(budget=10.0)


def test_as_much_fine_tuning_as_fits_beside_the_marks() -> None:
    chosen = recipe(ASKED, rest=300, epoch=100, mark={"joint": 100})
    assert (chosen.epochs, chosen.marks) == ("2", "2")
    chosen = recipe(ASKED, rest=300, epoch=100, mark={"joint": 40})  # the encoder as it is costs little: look at it too
    assert (chosen.epochs, chosen.marks) == (str(Fraction(11, 5)), f"0,{Fraction(11, 5)}")
    assert recipe(ASKED, rest=9000, epoch=100, mark={"joint": 10}).epochs == "3"


def test_little_time_means_no_fine_tuning_and_one_way_to_read_pairs() -> None:
    chosen = recipe(ASKED, rest=100, epoch=1000, mark={"joint": 30, "separate": 40})
    assert (chosen.epochs, chosen.marks, chosen.pairs) == ("7/100", "7/100", "joint")
    chosen = recipe(ASKED, rest=60, epoch=1000, mark={"joint": 30, "separate": 40})
    assert (chosen.epochs, chosen.marks, chosen.pairs) == ("0", "0", "joint")
    assert recipe(FitOptions(budget=10.0, freeze="all"), 900, 100, {"joint": 10}).epochs == "0"


def test_too_little_time_is_said() -> None:
    with pytest.raises(UserError, match=r"--budget 10: .* takes about 10\.8 minutes here"):
        recipe(ASKED, rest=50, epoch=100, mark={"joint": 100})


def test_a_run_keeps_its_budget_and_says_what_it_decided(table: Path, tmp_path: Path) -> None:
    run = bertvision.fit("table", train=table, backbone="tiny", budget=0.2, out=tmp_path / "run", quiet=True)
    assert run.info["costs"]["seconds"] < 0.2 * 60 * 1.15
    options = run.info["options"]
    assert options["budget"] == 0.2
    assert options["marks"].split(",")[-1] == options["epochs"] == run.scores["marks"][-1]["epoch"]


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
