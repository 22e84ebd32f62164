"""Read CSV, TSV, JSONL and Parquet into columns, and say exactly where a file is broken."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError

Columns = dict[str, list[Any]]  # name -> values
HALF = re.compile("[\ud800-\udfff]")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".parquet")
FORMATS = ".csv, .tsv, .jsonl (or .json, one object per line), .parquet"


def read_columns(path: Path) -> Columns:
    """A table file as columns, by its suffix."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise UserError(f"There is no file '{path}'.")
    if suffix == ".parquet":
        columns = _read_parquet(path)
    elif suffix in (".jsonl", ".json", ".ndjson"):
        columns = _read_json_lines(path)
    elif suffix in (".csv", ".tsv"):
        columns = read_delimited(path, delimiter="," if suffix == ".csv" else "\t", quoted=suffix == ".csv")
    else:
        raise UserError(f"'{path}': which format is '{suffix or 'a name without suffix'}'? Known: {FORMATS}.")
    if not columns or not len(next(iter(columns.values()))):
        raise UserError(f"'{path}' has no rows.")
    return columns


def read_delimited(
    path: Path, *, delimiter: str, quoted: bool, header: bool = True, torn: list[int] | None = None
) -> Columns:
    """Delimited text as columns; without a header they are called 0, 1, 2, ...

    GLUE's TSV files hold literal quotes (`quoted=False`). A row with too few or too many fields is an error or, where a
    list `torn` is given, is left out and its line number appended to that.
    """
    text = read_text(path)
    options: dict[str, Any] = {"delimiter": delimiter}
    if not quoted:
        options["quoting"] = csv.QUOTE_NONE
    lines = csv.reader(io.StringIO(text, newline=""), strict=quoted, **options)
    try:
        return _to_columns(path, lines, header, torn)
    except csv.Error as error:
        raise UserError(f"'{path}', line {lines.line_num}: {error}.") from None


def _to_columns(path: Path, lines: Any, header: bool, torn: list[int] | None) -> Columns:
    csv.field_size_limit(2**31 - 1)  # a long document in one field is data, not an error
    names: list[str] = []
    rows: list[list[str]] = []
    for fields in lines:
        if not fields:
            continue
        if not names:
            names = [name.strip() for name in fields] if header else [str(i) for i in range(len(fields))]
            if len(set(names)) < len(names):
                raise UserError(f"'{path}': two columns have the same name ({', '.join(names)}).")
            if header:
                continue
        if len(fields) != len(names):
            if torn is None:
                raise UserError(
                    f"'{path}', line {lines.line_num}: {len(fields)} fields where {len(names)} were expected"
                    f" ({', '.join(names[:6])}). A field that holds the delimiter must be quoted, and the file called"
                    " .csv: quotes in a .tsv are read as they stand."
                )
            torn.append(lines.line_num)
            continue
        rows.append(fields)
    if not names:
        raise UserError(f"'{path}' is empty.")
    return {name: [row[i] for row in rows] for i, name in enumerate(names)}


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
    rows = list(_objects(path))
    names = list(rows[0]) if rows else []
    for number, row in enumerate(rows, 1):
        missing = [name for name in names if name not in row]
        if missing:
            raise UserError(f"'{path}', row {number}: no field '{missing[0]}' (the first row has it).")
    return {name: [row[name] for row in rows] for name in names}


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"'{path}', line {number}: not JSON ({error.msg}, column {error.colno}).") from None
        if not isinstance(row, dict):
            raise UserError(f"'{path}', line {number}: a JSON object per line is needed.")
        yield row


def _read_parquet(path: Path) -> Columns:
    import pyarrow
    import pyarrow.parquet

    try:
        return dict(pyarrow.parquet.read_table(path).to_pydict())
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"'{path}' is not a readable Parquet file: {error}.") from None


def texts_of(path: object, column: str, values: list[Any]) -> list[str]:
    """A text column; anything that is not a text is named with its row."""
    for row, value in enumerate(values, 1):
        if not isinstance(value, str):
            raise UserError(f"'{path}', row {row}: column '{column}' holds {value!r}, not a text.")
    return [whole(value) for value in values]


def whole(text: str) -> str:
    """Half a surrogate pair, which is what JSON holds of an emoji that was cut off, cannot be encoded: put a sign."""
    return text if text.isascii() else HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def finite_scores(path: object, column: str, values: list[Any]) -> np.ndarray:
    """A score column as numbers; anything that is not one is named with its row."""
    for row, value in enumerate(values, 1):
        try:
            finite = math.isfinite(float(value))
        except (TypeError, ValueError):
            finite = False
        if not finite:
            raise UserError(f"'{path}', row {row}: column '{column}' holds '{value}', not a finite number.")
    return np.array([float(value) for value in values])
