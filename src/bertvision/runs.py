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

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.registry import unknown

if TYPE_CHECKING:
    from bertvision.records import Results, RunRecord

# What begins the names of columns about a model's answers in words: the answer, the next best, and how likely none is.
SAID = {"answers": "answer: ", "seconds": "second: ", "nulls": "null: "}

UNFINISHED = ("state", "states")  # folders that a run has only until it is whole


class Run:
    """A run directory, finished or not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def info(self) -> dict[str, Any]:
        return read_json(self.path / "run.json")

    @property
    def record(self) -> "RunRecord":
        from bertvision.records import RunRecord

        return RunRecord.read(self.path / "run.json")

    @property
    def results(self) -> "Results":
        from bertvision.records import Results

        return Results.read(self.path / "scores.json")

    @property
    def scores(self) -> dict[str, Any]:
        return read_json(self.path / "scores.json")

    @property
    def encoder_answered(self) -> bool:
        """Of states that were imported, nobody knows what the encoder itself would answer: it counts as undecided."""
        store = self.info.get("store")
        return store is None or store["encoder"] is not None

    def mark(self, epoch: str) -> dict[str, Any]:
        """The entry of one mark in scores.json."""
        return next(entry for entry in self.scores["marks"] if entry["epoch"] == epoch)

    def mark_folder(self, mark: str) -> Path:
        return self.path / "marks" / mark.replace("/", "-")

    def predictions_file(self, mark: str) -> Path:
        return self.path / "predictions" / f"{mark.replace('/', '-')}.parquet"

    def predictions(self, mark: str) -> dict[str, dict[str, Any]]:
        """split -> {"targets": (N,), "outputs": {model: (N, C)}}, and of spans {"answers": {model: (N,) texts}},
        likewise "seconds" and "nulls"."""
        import numpy as np
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(self.predictions_file(mark))
        splits: dict[str, dict[str, Any]] = {}
        for split in dict.fromkeys(table["split"].to_pylist()):
            part = table.filter(pyarrow.compute.equal(table["split"], split))
            columns = {name: part[name].to_numpy(zero_copy_only=False) for name in part.column_names}
            found: dict[str, Any] = {
                what: {
                    name.removeprefix(prefix): columns.pop(name) for name in list(columns) if name.startswith(prefix)
                }
                for what, prefix in SAID.items()
            }
            found["outputs"] = {
                name: np.stack(values) for name, values in columns.items() if name not in ("split", "row", "target")
            }
            splits[split] = {"targets": columns["target"], **found}
        return splits


def open_run(reference: str | Path) -> tuple[Run, str]:
    """(run, mark) of `RUN` (its selected mark) or `RUN@3/10`."""
    name, mark = str(reference), ""
    if "@" in name and not Path(name).exists():
        name, _, mark = name.rpartition("@")
    run = Run(Path(name))
    if not (run.path / "run.json").exists():
        partial = Path(f"{name}.partial")
        hint = f" It is unfinished: '{partial}' can be finished with --resume." if partial.exists() else ""
        raise UserError(f"'{name}' is not a run directory (no run.json in it).{hint}")
    if not mark:
        return run, str(run.scores["selected"]["mark"])
    marks = [entry["epoch"] for entry in run.scores["marks"]]
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
        if not (partial / "run.json").exists():
            raise UserError(f"There is nothing to resume: no '{partial}'. Run the command without --resume.")
    elif (partial / "run.json").exists():
        raise UserError(f"'{partial}' is an unfinished run. Go on with --resume, or remove it to start afresh.")
    elif partial.exists():
        raise UserError(f"'{partial}' was left by a command that was killed: remove it to start afresh.")


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


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.") from None


def write_json(path: Path, value: Any) -> None:
    """All of the file or none of it."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


def append_lines(path: Path, values: Iterable[Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which gets its name when the block ends well. What had that name goes."""
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


def write_predictions(path: Path, splits: dict[str, dict[str, Any]]) -> None:
    """split -> column -> a value per example, as one Parquet table: a row per example, a column per model."""
    import pyarrow
    import pyarrow.parquet

    tables = []
    for split, columns in splits.items():
        count = len(columns["target"])
        tables.append(pyarrow.table({"split": [split] * count, "row": range(count)} | columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    pyarrow.parquet.write_table(pyarrow.concat_tables(tables), aside)
    os.replace(aside, path)
