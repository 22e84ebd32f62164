"""Run directories: what lies where, written aside and renamed when whole.

    RUN/run.json            every option, versions, digests, costs, parameters
    RUN/scores.json         every model's scores at every mark, and which one was selected
    RUN/log.jsonl           the loss while training, one line every step
    RUN/predictions/        one Parquet file per mark: every model's predictions, held-out and dev
    RUN/README.md           the model card
    RUN/analysis/           what analyses found that took minutes
    RUN/marks/3-10/         checkpoint at 3/10 of an epoch: encoder/, heads.safetensors, ensembles.json

A directory called RUN is whole. An unfinished one is called RUN.partial and holds state/ to go on from.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from bertvision.errors import UserError
from bertvision.records import MarkRecord, Results, RunRecord, read_json
from bertvision.registry import unknown

if TYPE_CHECKING:
    from bertvision.inference.model import Model
    from bertvision.runs.predictions import SplitPredictions

UNFINISHED = ("state", "states", "folds")  # folders that a run has only until it is whole
RECORD, RESULTS = "run.json", "scores.json"


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
        return self.path / "marks" / mark.replace("/", "-")

    def predictions(self, mark: str) -> "dict[str, SplitPredictions]":
        """What every model said at a mark, by split."""
        from bertvision.runs.predictions import read_predictions

        return read_predictions(self.predictions_file(mark))

    def predictions_file(self, mark: str) -> Path:
        return self.path / "predictions" / f"{mark.replace('/', '-')}.parquet"


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
    stem = f"{task}-{Path(backbone).name}"
    unfinished = [*Path("runs").glob(f"{stem}.partial"), *Path("runs").glob(f"{stem}-[0-9]*.partial")]
    if resume and unfinished:
        newest = max(unfinished, key=lambda path: path.stat().st_mtime)
        return newest.with_name(newest.name.removesuffix(".partial"))
    number = 1
    while True:
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        if not path.exists() and not partial_of(path).exists():
            return path
        number += 1


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def check(path: Path, resume: bool) -> None:
    """Refuse, before any work, an --out that cannot be written or continued."""
    partial = partial_of(path)
    if path.exists():
        raise UserError(f"--out '{path}' exists already. Choose another name or remove it.")
    if resume:
        if not (partial / RECORD).exists():
            raise UserError(f"There is nothing to resume: no '{partial}'. Run the command without --resume.")
    elif (partial / RECORD).exists():
        raise UserError(f"'{partial}' is an unfinished run. Continue it with --resume, or remove it to start again.")
    elif partial.exists():
        raise UserError(f"'{partial}' was left by a command that was killed. Remove it to start again.")


def start(path: Path, resume: bool) -> Run:
    """The unfinished run directory to write in: a new one, or with `resume` the one that is there."""
    partial = partial_of(path)
    if resume:
        return Run(partial)
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"--out '{path}' cannot be made: {error.strerror}.") from None
    return Run(partial)


def finish(run: Run, path: Path) -> Run:
    for unneeded in UNFINISHED:
        shutil.rmtree(run.path / unneeded, ignore_errors=True)
    run.path.rename(path)
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
