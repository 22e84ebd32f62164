"""Run directories: one process writes them, and they lie where they were asked for."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from conftest import Command, tiny_fit

import bertvision
from bertvision import locks
from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.locks import lock
from bertvision.runs import directory as runs
from bertvision.runs.directory import Run

FAST = ("--backbone", "tiny", "--heads", "none", "--epochs", "0")
WRITTEN = rf"is being written by another process \(pid {os.getpid()}, started \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process checks or removes locks while these tests run."""
    monkeypatch.setattr(locks, "PATIENCE", 0.0)
    monkeypatch.setattr(runs, "PATIENCE", 0.0)


def test_a_lock_is_for_one_and_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "x.lock"
    with lock(file, "x"):
        with (
            pytest.raises(UserError, match=rf"'x' {WRITTEN}\. Wait for it, or choose another --out\."),
            lock(file, "x"),
        ):
            pass
        with pytest.raises(UserError, match="'x' is being written"), lock(file, "x", shared=True):
            pass
        assert file.exists()
    assert left_in(tmp_path) == []
    with lock(file, "x", shared=True), lock(file, "x", shared=True):
        assert file.exists()
        with pytest.raises(UserError, match="'x' is being written"), lock(file, "x"):
            pass
    assert left_in(tmp_path) == []
    with pytest.raises(UserError, match="'x' cannot be written: No such file"), lock(tmp_path / "no" / "x.lock", "x"):
        pass
    with pytest.raises(ZeroDivisionError), lock(file, "x"):
        raise ZeroDivisionError
    assert left_in(tmp_path) == []


def test_those_who_wait_for_a_lock_hold_it_in_turn(tmp_path: Path) -> None:
    """Each removes the file, so that others may wait for one that is gone."""
    inside: list[int] = []
    together: list[int] = []

    def work(number: int) -> None:
        for _ in range(5):
            with lock(tmp_path / "x.lock", "x", wait=True):
                inside.append(number)
                together.append(len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1] * 20
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("missing", [True, False])
def test_without_locks_of_the_system_the_process_in_the_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    if missing:
        monkeypatch.setattr(locks, "fcntl", None)
    else:

        def unsupported(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("fcntl.flock", unsupported)
    file = tmp_path / "x.lock"
    file.write_text(f"pid {os.getppid()}, started today")
    with pytest.raises(UserError, match=rf"another process \(pid {os.getppid()}, started today\)"), lock(file, "x"):
        pass
    file.write_text("pid 99999999, started long ago")
    with lock(file, "x"):
        assert file.read_text().startswith(f"pid {os.getpid()}, ")
    assert left_in(tmp_path) == []


def test_the_second_writer_of_a_run_is_told_so(command: Command, table: Path, tmp_path: Path) -> None:
    call = ("fit", table, *FAST, "--out", tmp_path / "run")
    with runs.start(tmp_path / "run", False) as run:
        for begun in (False, True):
            if begun:
                (run.path / "run.json").write_text("{}")
            for extra in ((), ("--resume",)):
                code, _, err = command(*call, *extra)
                assert code == 1
                assert err.startswith(f"Error: '{tmp_path / 'run.partial'}' is being written by another process (pid ")
                assert err.endswith("Wait for it, or choose another --out.\n")
        assert left_in(run.path) == [".lock", "run.json"]
    assert left_in(run.path) == ["run.json"]


def test_a_run_that_was_begun_meanwhile_is_not_written_into(table: Path, tmp_path: Path) -> None:
    """Both passed the first check; one was faster to make the folder, or has even finished its run."""
    out = tmp_path / "run"
    runs.check(out, False)
    with runs.start(out, False) as run:
        with pytest.raises(UserError, match=WRITTEN), runs.start(out, False):
            pass
        (run.path / "run.json").write_text("{}")
        assert runs.finish(run).path == out
        with pytest.raises(UserError, match=r"'.*run' exists already"), runs.start(out, False):
            pass
    assert left_in(tmp_path) == ["reviews.csv", "run"]
    assert left_in(out) == ["run.json"]


def test_names_by_default_are_numbered_also_if_all_start_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, gate, made = runs.default_name("table", "tiny", False), threading.Barrier(4), []

    def begin() -> None:
        gate.wait()
        with runs.start(path, False, numbered=True) as run:
            (run.path / "run.json").write_text("{}")
            made.append(run.path.name)
            gate.wait()

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == {f"table-tiny{number}.partial" for number in ("", "-2", "-3", "-4")}
    assert runs.default_name("table", "tiny", False) == Path("runs/table-tiny-5")
    assert runs.default_name("table", "tiny-5", False) == Path("runs/table-tiny-5")


def test_a_finished_and_a_failed_run_leave_no_lock(command: Command, table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", epochs=0)
    assert ".lock" not in left_in(run.path)
    assert command("fit", table, *FAST[:4], "--lr", "1e30", "--out", tmp_path / "failed")[0] == 1
    assert ".lock" not in left_in(tmp_path / "failed.partial")


def test_a_run_that_fails_before_it_can_be_resumed_leaves_nothing(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "write", no_room)
    with pytest.raises(UserError, match="disk is full"):
        tiny_fit(table, tmp_path / "run")
    assert left_in(tmp_path) == ["reviews.csv"]


def test_the_lock_of_a_killed_process_does_not_bind(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from bertvision.runs import directory as runs
with runs.start(Path({str(tmp_path / "run")!r}), False) as run:
    (run.path / "run.json").write_text("{{}}")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert left_in(tmp_path / "run.partial") == [".lock", "run.json"]
    runs.check(tmp_path / "run", resume=True)
    with runs.start(tmp_path / "run", resume=True) as run:
        assert (run.path / ".lock").read_text().startswith(f"pid {os.getpid()}, ")
    assert left_in(tmp_path / "run.partial") == ["run.json"]


def test_two_cuts_of_one_run_do_not_disturb_each_other(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="last-layer", epochs=0)
    with lock(run.path / "cuts.lock", run.path), pytest.raises(UserError, match=rf"cuts' {WRITTEN}\. Wait for it\."):
        bertvision.cut(run, 1, quiet=True)
    with monkeypatch.context() as full:
        full.setattr(Encoder, "save", no_room)
        with pytest.raises(UserError, match="disk is full"):
            bertvision.cut(run, 1, quiet=True)
    assert not (run.path / "cuts").exists()
    assert bertvision.cut(run, 1, quiet=True).record.cut is not None
    assert not list(tmp_path.rglob("*.lock"))
    assert not (run.path / "cuts").exists()


def test_a_resumed_budget_with_other_options_is_refused(command: Command, table: Path, tmp_path: Path) -> None:
    call = ("fit", table, *FAST[:4], "--budget", "1", "--lr", "1e30", "--out", tmp_path / "run")
    assert command(*call)[0] == 1  # diverges
    code, _, err = command(*call, "--batch-size", "4", "--resume")
    assert (code, "other options than the run was started with: --batch-size None -> 4." in err) == (1, True)


@pytest.mark.parametrize("out", [".", "..", "/", "reviews.csv", "link", "reviews.csv/run", "x" * 300])
def test_an_out_that_cannot_be_made_is_refused_before_any_work(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    for extra in ((), ("--resume",)):
        code, _, err = command("fit", "nowhere.csv", *FAST, "--out", out, *extra)
        assert code == 1
        assert err.startswith(f"Error: --out '{out}' ") or "nothing to resume" in err
    assert left_in(tmp_path) == ["link", "reviews.csv"]


def test_a_partial_that_is_a_file_is_refused(command: Command, table: Path, tmp_path: Path) -> None:
    (tmp_path / "run.partial").write_text("")
    for extra, said in (((), "Remove it to start again"), (("--resume",), "nothing to resume")):
        code, _, err = command("fit", table, *FAST, "--out", tmp_path / "run", *extra)
        assert (code, said in err) == (1, True)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused_before_any_work(command: Command, table: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    code, _, err = command("fit", "nowhere.csv", *FAST, "--out", tmp_path / "closed" / "new" / "run")
    assert (code, "cannot be written: Permission denied" in err) == (1, True)


def test_names_with_spaces_and_other_letters_work(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, f"{tmp_path}/my rüns/é 1/", heads="none", epochs=0)
    assert run.path == tmp_path / "my rüns" / "é 1"
    assert set(run.model().predict("a film")) == {"label", "probabilities"}


def test_marks_do_not_lead_out_of_a_run(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", epochs=0)
    kept = json.loads((run.path / "scores.json").read_text())
    for mark in ("..", ".", "../../x", "/etc", "1\\2"):
        kept["marks"][0]["epoch"] = kept["selected"]["mark"] = mark
        (run.path / "scores.json").write_text(json.dumps(kept))
        for use in (run.model, partial(run.predictions, mark), partial(run.mark_folder, mark)):
            with pytest.raises(UserError, match="not a fraction of an epoch"):
                use()
