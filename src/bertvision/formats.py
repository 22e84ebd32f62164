"""How values are written for people: in the terminal, in reports and in model cards."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bertvision.metrics.intervals import Score

BAR = 32  # characters of a full bar
EIGHTHS = " ▏▎▍▌▋▊▉"
MISSING = "-"
NAMES = {"seconds": "time", "value": "score"}
SHARES = ("share", "data", "coverage")  # columns written as percentages
SIGNED = ("change", "difference")

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    text: str
    key: float | None = None  # the sort key of numbers


@dataclass(frozen=True)
class Grid:
    """A table of formatted cells."""

    headers: list[str]
    numeric: list[bool]  # per column: whether all its cells are numbers
    rows: list[list[Cell]]


def number(value: float, signed: bool = False) -> str:
    return f"{round(value, 3) + 0.0:{'+' if signed else ''}.3f}"  # + 0.0: no minus sign before zero


def interval(score: Score, signed: bool = False) -> str:
    """`0.853 [0.841, 0.864]`."""
    value, low, high = (number(part, signed) for part in (score.value, score.low, score.high))
    return f"{value} [{low}, {high}]"


def score_in(row: Row) -> Score:
    """The score of a row with the columns `value`, `low` and `high`."""
    return Score(row["value"], row["low"], row["high"])


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
        return "without fine-tuning"
    whole = "epoch" if epochs == 1 else "epochs"
    return f"after {mark} {whole} of fine-tuning" if epochs >= 1 else f"after {mark} of an epoch of fine-tuning"


def listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def spaced(split: str) -> str:
    """A split as prose has it: `held-out`."""
    return split.replace("_", "-")


def header(column: str) -> str:
    """The heading of a column. Names with a space in them hold labels of users, which stay as they are."""
    if not column.isidentifier():
        return column
    return NAMES.get(column, column.removesuffix("_bytes").replace("_", " "))


def bars(values: Sequence[tuple[str, float]], full: float | None = None, width: int = BAR) -> list[str]:
    """A line per (label, value) with a bar from zero to `full`, by default the largest value."""
    full = max(max(value for _, value in values) if full is None else full, 1e-9)
    longest = max(len(label) for label, _ in values)
    lines = []
    for label, value in values:
        eighths = round(min(1.0, max(0.0, value) / full) * width * 8)
        bar = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        lines.append(f"{label:>{longest}} {bar:<{width}} {number(value)}")
    return lines


def grid(rows: Sequence[Row]) -> Grid:
    """Format numbers column by column, put a value and its interval into one cell, and drop empty columns."""
    joined = [_joined(row) for row in rows]
    names = list(dict.fromkeys(name for row in joined for name in row))
    columns = {name: _column(name, [row.get(name) for row in joined]) for name in names}
    columns = {name: cells for name, cells in columns.items() if any(cell.text not in ("", MISSING) for cell in cells)}
    numeric = [all(cell.key is not None or cell.text == MISSING for cell in cells) for cells in columns.values()]
    return Grid(list(map(header, columns)), numeric, [list(row) for row in zip(*columns.values(), strict=True)])


def _joined(row: Row) -> Row:
    """Replace `value`, `low` and `high` (likewise `change`, `change low` and `change high`) by one score."""
    joined = dict(row)
    for key in ("value", *SIGNED):  # not any: classes may be called "risk", "risk low" and "risk high"
        low, high = ("low", "high") if key == "value" else (f"{key} low", f"{key} high")
        if {key, low, high} <= row.keys():
            joined[key] = {"value": row[key], "low": joined.pop(low), "high": joined.pop(high)}
    return joined


def _column(name: str, values: list[Any]) -> list[Cell]:
    largest = max((abs(value) for value in values if isinstance(value, float)), default=0.0)
    places = 3 if largest < 10 else 1 if largest < 100 else 0
    return [_cell(name, value, places) for value in values]


def _cell(name: str, value: Any, places: int) -> Cell:
    if value is None or value != value:  # None, or NaN
        return Cell(MISSING)
    if isinstance(value, bool):
        return Cell("◆" if value else "", float(value))
    if isinstance(value, dict):
        return Cell(interval(Score(**value), name in SIGNED), value["value"])
    if isinstance(value, (int, float)):
        return Cell(_formatted(name, value, places), float(value))
    text = str(value)
    return Cell(text, float(Fraction(text)) if re.fullmatch(r"\d{1,6}(/[1-9]\d{0,5})?", text) else None)


def _formatted(name: str, value: float, places: int) -> str:
    if name == "seconds":
        return duration(value)
    if name.isidentifier() and name.endswith("_bytes"):  # else it is the name of a class
        return size(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.0%}" if name in SHARES else f"{value:,.{places}f}"


def markdown_table(rows: Sequence[Row], limit: int | None = None) -> str:
    """The first `limit` rows as a Markdown table, for every Markdown file that BERTVision writes."""
    shown = grid(rows)
    lines = [list(map(markdown_text, shown.headers)), ["---:" if numeric else "---" for numeric in shown.numeric]]
    for row in shown.rows[:limit]:
        lines.append([markdown_text(cell.text) if cell.key is None else cell.text for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_text(text: str) -> str:
    """Text on one line in which no character is markup."""
    flat = " ".join(text.split("\n")).replace("\r", " ")
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)
