"""Read tables (CSV, TSV, JSONL, Parquet) and hub datasets. Errors name the file and the line or row."""

import csv
import io
import json
import math
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.registry import unknown
from bertvision.tasks import tasks

Columns = dict[str, list[Any]]  # name -> values
HALF = re.compile("[\ud800-\udfff]")


def read_columns(path: Path) -> Columns:
    """A table file as columns. The suffix decides the format."""
    if not path.exists():
        raise UserError(f"There is no file '{path}'.")
    if path.suffix.lower() not in READERS:
        raise UserError(f"The suffix of '{path}' must be one of {', '.join(SUFFIXES)}; got '{path.suffix}'.")
    return check_rows(path, READERS[path.suffix.lower()](path))


def check_rows(source: object, columns: Columns) -> Columns:
    if not columns or not len(next(iter(columns.values()))):
        raise UserError(f"'{source}' has no rows.")
    return columns


def read_delimited(path: Path, header: bool = True, torn: list[int] | None = None) -> Columns:
    """A .csv file, or tab-separated text in which quotes are literal. Without a header, columns are named 0, 1, 2, ...

    A row with too few or too many fields is an error. If a list `torn` is given, such rows are left out instead and
    their line numbers are appended to it.
    """
    csv.field_size_limit(2**31 - 1)  # a long document in one field is not an error
    text, comma = io.StringIO(read_text(path), newline=""), path.suffix.lower() == ".csv"
    lines = csv.reader(text, strict=True) if comma else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        rows = [(lines.line_num, fields) for fields in lines if fields]
    except csv.Error as error:
        raise UserError(f"'{path}', line {lines.line_num}: {error}.") from None
    if not rows:
        raise UserError(f"'{path}' is empty.")
    names = [name.strip() for name in rows.pop(0)[1]] if header else [str(i) for i in range(len(rows[0][1]))]
    if len(set(names)) < len(names):
        raise UserError(f"'{path}': two columns have the same name ({', '.join(names)}).")
    for line, fields in rows:
        if len(fields) != len(names):
            if torn is None:
                raise UserError(
                    f"'{path}', line {line}: {len(fields)} fields where {len(names)} were expected"
                    f" ({', '.join(names[:6])}). Quote fields that contain the delimiter, and use the suffix .csv:"
                    " quotes in a .tsv file are literal."
                )
            torn.append(line)
    return {name: [fields[i] for _, fields in rows if len(fields) == len(names)] for i, name in enumerate(names)}


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(
            f"'{path}', line {line}: not valid UTF-8 (byte {error.start}). Convert it: iconv -f latin1 -t utf-8 FILE."
        ) from None
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None


def _read_json_lines(path: Path) -> Columns:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"'{path}', line {number}: not JSON ({error.msg}, column {error.colno}).") from None
        if not isinstance(row, dict):
            raise UserError(f"'{path}', line {number}: each line must be a JSON object.")
        rows.append(row)
        if missing := [name for name in rows[0] if name not in row]:
            raise UserError(f"'{path}', line {number}: no field '{missing[0]}' (the first row has it).")
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _read_parquet(path: Path) -> Columns:
    import pyarrow
    import pyarrow.parquet

    try:
        return dict(pyarrow.parquet.read_table(path).to_pydict())
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"'{path}' is not a readable Parquet file: {error}.") from None


READERS = {
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
    if name not in columns:
        place = f"'{source}', {flag}" if flag else f"'{source}'"
        raise UserError(f"{place}: {unknown('column', name, list(columns))}")
    return columns[name]


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


def finite_scores(source: object, name: str, values: list[Any]) -> np.ndarray:
    """A score column as numbers. A value that is not a finite number is an error."""
    numbers = [number_of(value) for value in values]
    for row, number in enumerate(numbers, 1):
        if number is None or not math.isfinite(number):
            raise UserError(f"'{source}', row {row}: column '{name}' holds '{values[row - 1]}', not a finite number.")
    return np.array(numbers)
