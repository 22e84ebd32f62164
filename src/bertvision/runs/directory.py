"""Run directories: what lies where, written aside and renamed when whole.

    RUN/run.json            every option, versions, digests, costs, parameters
    RUN/scores.json         every model's scores at every mark, and which one was selected
    RUN/log.jsonl           the loss while training, one line every step
    RUN/predictions/        one Parquet file per mark: every model's predictions, held-out and dev
    RUN/README.md           the model card
    RUN/analysis/           what analyses found that took minutes
    RUN/words/              the model `words`: vocabularies (JSON) and weights (safetensors)
    RUN/marks/3-10/         checkpoint at 3/10 of an epoch: encoder/, heads.safetensors, ensembles.json

A directory called RUN is whole. An unfinished one is called RUN.partial and holds state/ to go on from. While a process
writes it, it holds RUN.partial/.lock.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from bertvision.errors import UserError
from bertvision.locks import PATIENCE, lock, refuse_if_locked
from bertvision.records import MarkRecord, Results, RunRecord, read_json
from bertvision.registry import unknown

if TYPE_CHECKING:
    from bertvision.inference.model import Model
    from bertvision.runs.predictions import SplitPredictions

RECORD, RESULTS, LOCK = "run.json", "scores.json", ".lock"
UNFINISHED = ("state", "states", "folds", LOCK)  # what a run has only until it is whole
PARTIAL = ".partial"


class Run:
    """A run directory, finished or not.

    Example:
        >>> run = bertvision.fit("reviews.csv")
        >>> run.results.selected.model
        'ensemble-matched'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def record(self) -> RunRecord:
        """How the run was made: run.json."""
        return RunRecord.read(self.path / RECORD)

    @property
    def version(self) -> int:
        """The schema version of run.json."""
        return int(read_json(self.path / RECORD).get("schema", 1))

    @property
    def results(self) -> Results:
        """The scores of every model at every mark, and which one was selected: scores.json."""
        return Results.read(self.path / RESULTS)

    def model(self, name: str | None = None, *, mark: str | None = None) -> "Model":
        """The model that ships, or another one of the run by its name or mark."""
        from bertvision.inference.model import Model

        return Model(self.path if mark is None else f"{self.path}@{mark}", name)

    def write(self, record: RunRecord) -> None:
        record.write(self.path / RECORD)

    def mark(self, mark: str) -> MarkRecord:
        return self.results.at(mark)

    def mark_folder(self, mark: str) -> Path:
        return self.path / "marks" / self._named(mark)

    def _named(self, mark: str) -> str:
        """A mark in the name of a file. What a foreign scores.json calls a mark must not lead out of the run."""
        if not re.fullmatch(r"\d+(/\d+)?", mark):
            raise UserError(f"'{self.path}' has a mark '{mark}', which is not a fraction of an epoch.")
        return mark.replace("/", "-")

    def predictions(self, mark: str) -> "dict[str, SplitPredictions]":
        """What every model said at a mark, by split."""
        from bertvision.runs.predictions import read_predictions

        return read_predictions(self.predictions_file(mark))

    def predictions_file(self, mark: str) -> Path:
        return self.path / "predictions" / f"{self._named(mark)}.parquet"


def open_run(reference: str | Path) -> tuple[Run, str]:
    """(run, mark) of `RUN` (its selected mark) or `RUN@3/10`."""
    name, mark = str(reference), ""
    if "@" in name and not Path(name).exists():
        name, _, mark = name.rpartition("@")
    run = Run(name)
    if not (run.path / RECORD).exists():
        partial = Path(f"{name}.partial")
        hint = f" It is unfinished: '{partial}' can be finished with --resume." if partial.exists() else ""
        raise UserError(f"'{name}' is not a run directory (no run.json in it).{hint}")
    if not mark:
        return run, run.results.selected.mark
    marks = [one.mark for one in run.results.marks]
    try:
        wanted = str(Fraction(mark))
    except (ValueError, ZeroDivisionError):
        wanted = mark
    if wanted not in marks:
        raise unknown("mark", f"{name}@{mark}", marks, f"The run has: {', '.join(marks)}.")
    return run, wanted


def default_name(task: str, backbone: str, resume: bool) -> Path:
    """runs/TASK-BACKBONE, with a number where that is taken; to resume, the newest unfinished one."""
    path = Path("runs") / f"{task}-{Path(backbone).name}"
    unfinished = [*Path("runs").glob(f"{path.name}.partial"), *Path("runs").glob(f"{path.name}-[0-9]*.partial")]
    if resume and unfinished:
        return whole_of(max(unfinished, key=lambda path: path.stat().st_mtime))
    while _taken(path):
        path = _next(path)
    return path


def _taken(path: Path) -> bool:
    return os.path.lexists(path) or os.path.lexists(partial_of(path))


def _next(path: Path) -> Path:
    """The name after a taken one: `x`, `x-2`, `x-3`."""
    stem, _, number = path.name.rpartition("-")
    counted = number.isdigit() and _taken(path.with_name(stem))
    return path.with_name(f"{stem}-{int(number) + 1}" if counted else f"{path.name}-2")


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def whole_of(partial: Path) -> Path:
    """The name of the run when it is finished."""
    return partial.with_name(partial.name.removesuffix(PARTIAL))


def check(path: Path, resume: bool) -> None:
    """Refuse, before any work, an --out that cannot be written or continued."""
    with _writing(path):
        if os.path.lexists(path):
            raise UserError(f"--out '{path}' exists already. Choose another name or remove it.")
        partial = partial_of(path)
        refuse_if_locked(partial / LOCK, partial)
        if resume:
            if not (partial / RECORD).exists():
                raise UserError(f"There is nothing to resume: no '{partial}'. Run the command without --resume.")
        elif (partial / RECORD).exists():
            raise UserError(
                f"'{partial}' is an unfinished run. Continue it with --resume, or remove it to start again."
            )
        elif os.path.lexists(partial):
            raise UserError(f"'{partial}' was left by a command that was killed. Remove it to start again.")
        above = next(folder for folder in partial.absolute().parents if folder.exists())
        if not os.access(above, os.W_OK):
            raise PermissionError(13, "Permission denied")
        if not above.is_dir():
            raise NotADirectoryError(20, f"'{above}' is not a folder")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out '{path}' cannot be written: {error.strerror}.") from None


@contextmanager
def start(path: Path, resume: bool, numbered: bool = False) -> Iterator[Run]:
    """The unfinished run directory to write in: a new one, or with `resume` the one that is there. Inside, no other
    process writes it. If it is `numbered`, a name that was taken meanwhile gets another number."""
    with _writing(path):
        partial = partial_of(path) if resume else _made(path, numbered)
    with lock(partial / LOCK, partial):
        try:
            yield Run(partial)
        except BaseException:
            if not (partial / RECORD).exists():  # nothing to resume
                shutil.rmtree(partial, ignore_errors=True)
            raise


def _made(path: Path, numbered: bool) -> Path:
    """A new folder for the unfinished run. Of several processes that try to make it, one does."""
    while True:
        with suppress(FileExistsError):
            partial_of(path).mkdir(parents=True)
            if not os.path.lexists(path):
                return partial_of(path)
            partial_of(path).rmdir()  # a run of this name has been finished meanwhile
        if numbered:
            path = _next(path)
        else:
            time.sleep(PATIENCE)  # the process that was faster may not hold the lock yet
            check(path, False)


def finish(run: Run) -> Run:
    for unneeded in UNFINISHED:
        shutil.rmtree(run.path / unneeded, ignore_errors=True)
    path = whole_of(run.path)
    try:
        run.path.rename(path)
    except OSError as error:
        raise UserError(
            f"The run is finished, but '{run.path}' cannot be renamed to '{path}' ({error.strerror}). Rename it."
        ) from None
    (path / LOCK).unlink(missing_ok=True)  # now, and not before: no other process may begin to write
    return Run(path)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A new folder to fill. It gets its name when the block ends well, and replaces what had that name."""
    aside = folder.with_name(folder.name + ".tmp")
    for old in (aside, folder):
        shutil.rmtree(old, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    aside.rename(folder)


def newest_state(run: Run) -> Path | None:
    """The folder of the last state that was saved whole, state/STEP."""
    folders = [path for path in (run.path / "state").glob("*") if path.name.isdigit()]
    return max(folders, key=lambda path: int(path.name), default=None)


@contextmanager
def saving_state(run: Run, step: int) -> Iterator[Path]:
    """A folder for the state at `step`; older ones go once it is whole, so that a crash never loses the last."""
    with filling(run.path / "state" / str(step)) as folder:
        yield folder
    for path in (run.path / "state").iterdir():
        if path.name != str(step):
            shutil.rmtree(path)
