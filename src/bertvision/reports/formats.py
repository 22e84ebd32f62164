"""How values are written for people, the same on a page and in Markdown."""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bertvision.analysis import Table

NAMES = {"seconds": "time", "value": "score"}
NOTHING = "-"
SHARES = ("share", "data", "coverage")


@dataclass(frozen=True)
class Cell:
    text: str
    key: float | None = None  # what it is sorted by, where that is a number


@dataclass(frozen=True)
class Grid:
    """A table as it is shown."""

    headers: list[str]
    numeric: list[bool]  # per column: are all its cells numbers?
    rows: list[list[Cell]]


def number(value: float, signed: bool = False) -> str:
    """As it stands in intervals: .853, -.012, 1.000."""
    text = f"{round(value, 3) + 0.0:{'+' if signed else ''}.3f}"  # + 0.0: no minus before zero
    return re.sub(r"^([+-]?)0\.", r"\1.", text)


def interval(found: dict[str, float], signed: bool = False) -> str:
    value, low, high = (number(found[key], signed) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def after(mark: str) -> str:
    """A mark in words."""
    epochs = Fraction(mark)
    if not epochs:
        return "with no fine-tuning"
    whole = "epoch" if epochs == 1 else "epochs"
    return f"after {mark} {whole} of fine-tuning" if epochs >= 1 else f"after {mark} of an epoch of fine-tuning"


def listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def grid(table: Table) -> Grid:
    """Numbers formatted column by column; a value with its interval becomes one cell."""
    rows = [_joined(row) for row in table.rows]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    made = {column: _column(column, [row.get(column) for row in rows]) for column in columns}
    # What is said of every row by an empty column is nothing.
    columns = [column for column in columns if any(cell.text not in ("", NOTHING) for cell in made[column])]
    headers = [NAMES.get(column, column.removesuffix("_bytes").replace("_", " ")) for column in columns]
    numeric = [all(cell.key is not None or cell.text == NOTHING for cell in made[column]) for column in columns]
    return Grid(headers, numeric, [[made[column][i] for column in columns] for i in range(len(rows))])


def _joined(row: dict[str, Any]) -> dict[str, Any]:
    """`value`, `low`, `high`, and likewise `change`, `change low`, `change high`, in one."""
    joined = dict(row)
    for key in row:
        low, high = ("low", "high") if key == "value" else (f"{key} low", f"{key} high")
        if low in row and high in row:
            joined[key] = {"value": row[key], "low": joined.pop(low), "high": joined.pop(high)}
    return joined


def _column(name: str, values: list[Any]) -> list[Cell]:
    largest = max((abs(value) for value in values if isinstance(value, float)), default=0.0)
    places = 3 if largest < 10 else 1 if largest < 100 else 0
    return [_cell(name, value, places) for value in values]


def _cell(name: str, value: Any, places: int) -> Cell:
    if value is None or value != value:  # None, or not a number
        return Cell(NOTHING)
    if isinstance(value, bool):
        return Cell("◆" if value else "", float(value))
    if isinstance(value, dict):
        signed = name in ("change", "difference")
        return Cell(interval(value, signed), value["value"])
    if isinstance(value, (int, float)):
        return Cell(_written(name, value, places), float(value))
    text = str(value)
    return Cell(text, float(Fraction(text)) if re.fullmatch(r"\d{1,6}(/[1-9]\d{0,5})?", text) else None)


def _written(name: str, value: float, places: int) -> str:
    if name == "seconds":
        return duration(value)
    if name.endswith("_bytes"):
        return size(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.0%}" if name in SHARES else f"{value:,.{places}f}"
