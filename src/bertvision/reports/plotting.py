"""The building blocks of a report's figures, as plain plotly.js data.

The page sets the colours of text, grid and heat maps, which follow its theme. The colours here are visible on light and
dark backgrounds and distinct for colour-blind readers; markers differ as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from bertvision.analysis import Table
from bertvision.formats import Row, interval, score_in

GREY, GREEN, BLUE, PINK, ORANGE = "#858c96", "#16a06c", "#2f86d6", "#c565a3", "#e0861a"
ROLES = {
    "encoder": (GREY, "circle"),
    "best head": (BLUE, "square"),
    "ensemble (max)": (PINK, "diamond"),
    "ensemble (greedy)": (ORANGE, "triangle-up"),
    "selected": (GREEN, "circle-open"),
}
COLOURS = (BLUE, ORANGE, GREEN, PINK, "#8a70d6", "#c9b21f", "#4db8d9", GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down", "star")
LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0}
LABEL, NARROW_LABEL = 40, 20  # characters of a name beside a heat map, on a desktop and on a phone
HOVER = "%{customdata}<extra></extra>"


@dataclass(frozen=True)
class Drawing:
    """A figure; `wide` ones take the whole width of the page."""

    title: str
    note: str
    figure: Row  # data and layout for plotly.js
    wide: bool = False


def drawing(table: Table, traces: list[Row], *, wide: bool = False, **layout: Any) -> Drawing:
    usual = {"height": 340, "margin": {"l": 8, "r": 12, "t": 8, "b": 8}, "legend": LEGEND}
    usual["hoverlabel"] = {"align": "left"}
    for axis in ("xaxis", "yaxis"):
        layout[axis] = {"automargin": True, "zeroline": False} | layout.get(axis, {})
    return Drawing(table.title, table.note, {"data": traces, "layout": usual | layout}, wide)


def titled(text: str, **more: Any) -> Row:
    """An axis with a title."""
    return {"title": {"text": text}} | more


def series(
    rows: Sequence[Row], x: Callable[[Row], float], text: Callable[[Row], str], value: str = "value", **more: Any
) -> Row:
    """Points, with intervals if the rows have them. `text` makes what hovering shows."""
    trace: Row = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(map(x, rows)),
        "y": [row[value] for row in rows],
    }
    trace |= {"customdata": list(map(text, rows)), "hovertemplate": HOVER}
    if rows and value == "value" and "low" in rows[0]:
        above, below = ([abs(row[end] - row["value"]) for row in rows] for end in ("high", "low"))
        bars = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 0}
        trace["error_y"] = bars | {"array": above, "arrayminus": below}
    return trace | more


def style(colour: str, symbol: str = "circle", width: float = 2, dash: str = "solid") -> Row:
    line = {"color": colour, "width": width, "dash": dash}
    return {"line": line, "marker": {"color": colour, "symbol": symbol, "size": 7}}


def ring() -> Row:
    """A ring around the selected model, which often has another role too."""
    return {"mode": "markers", "marker": {"symbol": "circle-open", "size": 15, "color": GREEN, "line": {"width": 2.5}}}


def nth(index: int) -> tuple[str, str]:
    """Colour and marker of a series by its position."""
    return COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]


def dotted(x: list[float], y: list[float], name: str) -> Row:
    """A line to compare with."""
    line = {"color": GREY, "width": 1.2, "dash": "dot"}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "hoverinfo": "skip", "line": line}


def band(x: list[float], low: list[float], high: list[float], colour: str) -> Row:
    """The area between minimum and maximum."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    outline = {"type": "scatter", "mode": "lines", "x": [*x, *reversed(x)], "y": [*high, *reversed(low)]}
    fill = {"fill": "toself", "fillcolor": f"rgba({red}, {green}, {blue}, 0.18)", "line": {"width": 0}}
    return outline | fill | {"hoverinfo": "skip", "showlegend": False}


def heat(
    table: Table,
    x: list[str],
    y: list[str],
    z: list[list[Any]],
    hover: list[list[str]],
    *,
    colour: list[list[float]] | None = None,
    decimals: int = 2,
    titles: tuple[str, str] = ("", ""),
    **trace: Any,
) -> Drawing:
    """A heat map with its numbers, coloured by them or by `colour`. `titles` are those of the axes."""
    cells = [[_short(value, decimals) for value in row] for row in z]
    trace |= {"type": "heatmap", "meta": "heat", "z": colour or z, "x": list(range(len(x))), "y": list(range(len(y)))}
    trace |= {"text": cells, "texttemplate": "%{text}", "customdata": hover, "hovertemplate": HOVER}
    trace |= {"showscale": False, "xgap": 1, "ygap": 1}
    axes: dict[str, Any] = {}
    for axis, names, limit, title in (("xaxis", x, NARROW_LABEL, titles[0]), ("yaxis", y, LABEL, titles[1])):
        ticks = {"tickvals": list(range(len(names))), "ticktext": _ticks(names, limit), "showgrid": False}
        axes[axis] = (titled(title) if title else {}) | ticks
    axes["xaxis"] |= {"side": "top"}
    axes["yaxis"] |= {"autorange": "reversed"}
    narrow = {"yaxis": {"ticktext": _ticks(y, NARROW_LABEL), "tickfont": {"size": 10}}}  # page.js applies it on phones
    height = 90 + min(44, max(26, 300 // len(y))) * len(y)
    return drawing(table, [trace], height=height, meta={"narrow": narrow}, **axes)


def _short(value: float | None, places: int) -> str:
    """A number for a small square."""
    if value is None or isinstance(value, int):
        return "" if value is None else f"{value:,}"
    return f"{value:.{places}f}".removeprefix("0") if value >= 0 else f"{value:.{places}f}"


def _ticks(names: list[str], limit: int) -> list[str]:
    return [plain(shortened(name, limit)) for name in names]


def shortened(name: str, most: int) -> str:
    """Both ends of a long name, because variants differ at the end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def plain(text: str) -> str:
    """Escape text of users: plotly.js interprets some markup."""
    return escape(text, quote=False)


def hover(*lines: str, row: Row | None = None) -> str:
    """A hover text: a bold line, others, and the interval of `row`."""
    first, *rest = [plain(line) for line in lines if line]
    scored = [interval(score_in(row))] if row is not None and "low" in row else []
    return "<br>".join([f"<b>{first}</b>", *rest, *scored])


def grouped(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def epoch(row: Row) -> float:
    return float(Fraction(row["epochs"]))


def epochs_axis(rows: Sequence[Row]) -> Row:
    marks = sorted({str(row["epochs"]) for row in rows}, key=Fraction)
    return titled("epochs of fine-tuning", tickvals=[float(Fraction(mark)) for mark in marks], ticktext=marks)
