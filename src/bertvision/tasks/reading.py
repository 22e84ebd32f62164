"""Read tables (CSV, TSV, JSONL, Parquet) and hub datasets. Errors name the file and the line or row."""

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bertvision.errors import UserError
from bertvision.registry import unknown
from bertvision.tasks import tasks

Columns = dict[str, list[Any]]  # name -> values
Wanted = Callable[[list[str]], Iterable[str]]  # from the names of all columns to those that are kept
SHARED = 1000  # different values of a column that are looked for to be stored once
HALF = re.compile("[\ud800-\udfff]")


def read_columns(path: Path, wanted: Wanted | None = None) -> Columns:
    """A table file as columns. The suffix decides the format; `wanted` which of its columns are kept in memory."""
    if not path.exists():
        raise UserError(f"There is no file '{path}'.")
    if path.suffix.lower() not in READERS:
        raise UserError(f"The suffix of '{path}' must be one of {', '.join(SUFFIXES)}; got '{path.suffix}'.")
    return check_rows(path, READERS[path.suffix.lower()](path, wanted=wanted))


def only(*names: str | None) -> Wanted:
    """These columns. A table that does not have them all is kept whole, so that an error can list what it has."""
    needed = {name for name in names if name is not None}
    return lambda found: needed if needed <= set(found) else found


def check_rows(source: object, columns: Columns) -> Columns:
    if not columns or not len(next(iter(columns.values()))):
        raise UserError(f"'{source}' has no rows.")
    return columns


class _Kept:
    """The columns that are wanted, filled row by row. Equal values, such as labels, are stored once."""

    def __init__(self, names: list[str], wanted: Wanted | None) -> None:
        chosen = set(names if wanted is None else wanted(names))
        self.columns: Columns = {name: [] for name in names if name in chosen}
        self._seen: dict[str, dict[str, str]] = {name: {} for name in self.columns}
        self.places = [(place, name) for place, name in enumerate(names) if name in chosen]

    def add(self, name: str, value: Any) -> None:
        if type(value) is str:
            seen = self._seen[name]
            value = seen.get(value, value) if len(seen) >= SHARED else seen.setdefault(value, value)
        self.columns[name].append(value)


def read_delimited(
    path: Path, header: bool = True, torn: list[int] | None = None, wanted: Wanted | None = None
) -> Columns:
    """A .csv file, or tab-separated text in which quotes are literal. Without a header, columns are named 0, 1, 2, ...

    A row with too few or too many fields is an error. If a list `torn` is given, such rows are left out instead and
    their line numbers are appended to it.
    """
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise UserError(f"'{path}' is empty.")
    names = [name.strip() for name in first[1]] if header else [str(i) for i in range(len(first[1]))]
    if len(set(names)) < len(names):
        raise UserError(f"'{path}': two columns have the same name ({', '.join(names)}).")
    kept = _Kept(names, wanted)
    for line, fields in rows if header else chain([first], rows):
        if len(fields) == len(names):
            for place, name in kept.places:
                kept.add(name, fields[place])
        elif torn is not None:
            torn.append(line)
        else:
            raise UserError(
                f"'{path}', line {line}: {len(fields)} fields where {len(names)} were expected"
                f" ({', '.join(names[:6])}). Quote fields that contain the delimiter, and use the suffix .csv:"
                " quotes in a .tsv file are literal."
            )
    return kept.columns


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row that is not empty."""
    csv.field_size_limit(2**31 - 1)  # a long document in one field is not an error
    with _opened(path) as file:
        comma = path.suffix.lower() == ".csv"
        lines = csv.reader(file, strict=True) if comma else csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            for fields in lines:
                if fields:
                    yield lines.line_num, fields
        except csv.Error as error:
            raise UserError(f"'{path}', line {lines.line_num}: {error}.") from None


@contextmanager
def _opened(path: Path, newline: str = "") -> Iterator[TextIO]:
    """A text file to read; what cannot be read is a message."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError:
        line, byte = _broken(path)
        raise UserError(
            f"'{path}', line {line}: not valid UTF-8 (byte {byte}). Convert it: iconv -f latin1 -t utf-8 FILE."
        ) from None
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None


def _broken(path: Path) -> tuple[int, int]:
    """The line and the byte at which a file is not UTF-8: text files are decoded in pieces and do not say."""
    byte = 0
    with path.open("rb") as file:
        for line, read in enumerate(file, 1):
            try:
                read.decode()
            except UnicodeDecodeError as error:
                return line, byte + error.start
            byte += len(read)
    raise AssertionError(path)


def read_text(path: Path) -> str:
    with _opened(path) as file:
        return file.read()


def _read_json_lines(path: Path, wanted: Wanted | None = None) -> Columns:
    kept: _Kept | None = None
    names: list[str] = []
    with _opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = _json_row(path, number, line)
            if kept is None:
                names = list(row)
                kept = _Kept(names, wanted)
            if missing := [name for name in names if name not in row]:
                raise UserError(f"'{path}', line {number}: no field '{missing[0]}' (the first row has it).")
            for name in kept.columns:
                kept.add(name, row[name])
    return kept.columns if kept is not None else {}


def _json_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"'{path}', line {number}: not JSON ({error.msg}, column {error.colno}).") from None
    except ValueError:  # Python limits the digits of an integer
        raise UserError(f"'{path}', line {number}: a number has too many digits.") from None
    if not isinstance(row, dict):
        raise UserError(f"'{path}', line {number}: each line must be a JSON object.")
    return row


def _read_parquet(path: Path, wanted: Wanted | None = None) -> Columns:
    import pyarrow
    import pyarrow.parquet

    try:
        names = pyarrow.parquet.read_schema(path).names
        chosen = None if wanted is None else [name for name in names if name in set(wanted(names))]
        return dict(pyarrow.parquet.read_table(path, columns=chosen).to_pydict())
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"'{path}' is not a readable Parquet file: {error}.") from None


READERS: dict[str, Callable[..., Columns]] = {
    **dict.fromkeys((".csv", ".tsv"), read_delimited),
    **dict.fromkeys((".jsonl", ".json", ".ndjson"), _read_json_lines),
    ".parquet": _read_parquet,
}
SUFFIXES = tuple(READERS)


def named(name: str | Path) -> dict[str, str]:
    """The options that a name stands for: `sts-b` is a task, `reviews.csv` is `table` with `train`."""
    file = str(name) not in tasks and Path(name).suffix.lower() in SUFFIXES
    return {"task": "table", "train": str(name)} if file else {"task": str(name)}


def read_hub(task: str, files: str, name: str, config: str | None, splits: tuple[str, ...]) -> dict[str, Any]:
    """Splits of a dataset on the Hugging Face hub. `files` tells the user what --data takes instead."""
    try:
        import datasets

        return {split: datasets.load_dataset(name, config, split=split) for split in splits}
    except Exception as error:  # no `datasets` package, or one of the hub client's many errors
        raise UserError(
            f"The data of '{task}' could not be loaded ({error}). Either give its files: --data FOLDER ({files}), or"
            " download them from the Hugging Face hub: pip install 'bertvision[hub]' (needs a network connection)."
        ) from None


def find_file(data: Path, folders: tuple[str, ...], names: tuple[str, ...], missing: str) -> Path:
    """The first of `names` in `data` or in a subfolder that matches one of the patterns `folders`."""
    if not data.is_dir():
        raise UserError(f"--data '{data}' is not a folder.")
    inside = [child for child in sorted(data.iterdir()) if any(fnmatch(child.name.lower(), known) for known in folders)]
    for folder in (data, *inside):
        for name in names:
            if (folder / name).exists():
                return folder / name
    raise UserError(f"--data '{data}' {missing}")


def values_of(source: object, columns: Columns, name: str, flag: str = "") -> list[Any]:
    check_column(source, list(columns), name, flag)
    return columns[name]


def check_column(source: object, columns: list[str], name: str, flag: str = "") -> None:
    if name not in columns:
        place = f"'{source}', {flag}" if flag else f"'{source}'"
        raise UserError(f"{place}: {unknown('column', shortened(name), columns)}")


def texts_of(source: object, columns: Columns, name: str) -> list[str]:
    """A text column. A value that is not a string is an error."""
    values = values_of(source, columns, name)
    for row, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise UserError(f"'{source}', row {row}: column '{name}' holds {value!r}, not a text.")
    return [whole(value) for value in values]


def whole(text: str) -> str:
    """Replace unpaired surrogates (JSON with a truncated emoji has them), which tokenizers cannot encode."""
    return text if text.isascii() else HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def number_of(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:  # an integer of more than 300 digits
        return math.inf if value > 0 else -math.inf


def shortened(value: Any) -> str:
    """A value as a message quotes it."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def finite_scores(source: object, name: str, values: list[Any]) -> np.ndarray:
    """A score column as numbers. A value that is not a finite number is an error."""
    numbers = [number_of(value) for value in values]
    for row, number in enumerate(numbers, 1):
        if number is None or not math.isfinite(number):
            held = shortened(values[row - 1])
            raise UserError(f"'{source}', row {row}: column '{name}' holds '{held}', not a finite number.")
    return np.array(numbers)
