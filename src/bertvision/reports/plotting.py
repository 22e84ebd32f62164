"""What the figures of a report are made of: the only file that knows plotly.

Colours of text, grid and heat maps are the page's (they follow its theme); those here are seen well on light and dark
ground and told apart by colour-blind readers, and markers differ as well.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import Any

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.reports.formats import interval

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

Row = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """A figure as plotly.js takes it; `wide` ones fill a line of the page."""

    title: str
    note: str
    figure: Row
    wide: bool = False


def library() -> str:
    """plotly.js, which draws the figures on the page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("A page's figures need plotly: pip install 'bertvision[report]', or --format md.") from None
    return str(get_plotlyjs())


def drawing(table: Table, traces: list[Row], *, wide: bool = False, **layout: Any) -> Drawing:
    from plotly.graph_objects import Figure

    usual: Row = {
        "height": 340,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": LEGEND,
        "hoverlabel": {"align": "left"},
    }
    for axis in ("xaxis", "yaxis"):
        layout[axis] = {"automargin": True, "zeroline": False} | layout.get(axis, {})
    made = json.loads(Figure(data=traces, layout=usual | layout).to_json())  # a wrong attribute raises here
    made["layout"].pop("template", None)  # 6 kB each, which the page replaces by its own theme
    return Drawing(table.title, table.note, made, wide)


def series(rows: Sequence[Row], x: Sequence[float], hover: list[str], value: str = "value", **more: Any) -> Row:
    """Points with their intervals, where the rows have them; hovering shows texts that were made here."""
    trace: Row = {
        "type": "scatter", "mode": "lines+markers", "x": list(x), "y": [row[value] for row in rows],
        "customdata": hover, "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip
    if rows and value == "value" and "low" in rows[0]:
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 0,
            "array": [row["high"] - row["value"] for row in rows],
            "arrayminus": [row["value"] - row["low"] for row in rows],
        }  # fmt: skip
    return trace | more


def style(colour: str, symbol: str = "circle", width: float = 2, dash: str = "solid") -> Row:
    line = {"color": colour, "width": width, "dash": dash}
    return {"line": line, "marker": {"color": colour, "symbol": symbol, "size": 7}}


def ring(size: int = 15) -> Row:
    """Drawn around what was selected, which is mostly one of the other models."""
    return {
        "mode": "markers",
        "marker": {"symbol": "circle-open", "size": size, "color": GREEN, "line": {"width": 2.5}},
    }


def nth(index: int) -> tuple[str, str]:
    """Colour and marker of the so-manieth series."""
    return COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]


def dotted(x: list[float], y: list[float], name: str) -> Row:
    """A line to compare with."""
    line = {"color": GREY, "width": 1.2, "dash": "dot"}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "hoverinfo": "skip", "line": line}


def band(x: list[float], low: list[float], high: list[float], colour: str) -> Row:
    """Between the least and the most."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return {
        "type": "scatter", "mode": "lines", "x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": f"rgba({red}, {green}, {blue}, 0.18)", "line": {"width": 0}, "hoverinfo": "skip",
        "showlegend": False,
    }  # fmt: skip


def heat(table: Table, x: list[str], y: list[str], z: list[list[Any]], hover: list[list[str]], **more: Any) -> Drawing:
    """A heat map with its numbers in it. Names are cut where the page is narrow."""
    layout, decimals = more.pop("layout", {}), more.pop("decimals", 2)
    cells = [[_written(value, decimals) for value in row] for row in z]
    trace: Row = {
        "type": "heatmap", "z": more.pop("colour", z), "text": cells, "texttemplate": "%{text}", "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>", "showscale": False, "xgap": 1, "ygap": 1, "meta": "heat",
    }  # fmt: skip
    places = {"x": list(range(len(x))), "y": list(range(len(y)))}
    names = [plain(shortened(name, LABEL)) for name in y]
    axes = {
        "xaxis": {"tickvals": places["x"], "ticktext": [plain(shortened(name, NARROW_LABEL)) for name in x],
                  "side": "top", "showgrid": False} | layout.pop("xaxis", {}),
        "yaxis": {"tickvals": places["y"], "ticktext": names, "autorange": "reversed", "showgrid": False}
        | layout.pop("yaxis", {}),
    }  # fmt: skip
    narrow = {"yaxis": {"ticktext": [plain(shortened(name, NARROW_LABEL)) for name in y], "tickfont": {"size": 10}}}
    height = 90 + min(44, max(26, 300 // len(y))) * len(y)
    return drawing(table, [trace | places | more], height=height, meta={"narrow": narrow}, **axes, **layout)


def _written(value: float | None, places: int) -> str:
    """As short as it can be: it stands in a small square."""
    if value is None or isinstance(value, int):
        return "" if value is None else f"{value:,}"
    return f"{value:.{places}f}".removeprefix("0") if value >= 0 else f"{value:.{places}f}"


def shortened(name: str, most: int) -> str:
    """Both ends of a long name: variants differ at the end."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def plain(text: str) -> str:
    """plotly.js reads some markup in texts: those of users are to be shown as they are."""
    return escape(text, quote=False)


def said(row: Row, *lines: str) -> str:
    """A hover text: a bold line, others, and the interval if there is one."""
    first, *rest = [plain(line) for line in lines if line]
    return "<br>".join([f"<b>{first}</b>", *rest, *([interval(row)] if "low" in row else [])])


def grouped(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def epoch(row: Row) -> float:
    return float(Fraction(row["epochs"]))


def epochs_axis(rows: Sequence[Row]) -> Row:
    marks = sorted({str(row["epochs"]) for row in rows}, key=Fraction)
    places = [float(Fraction(mark)) for mark in marks]
    return {"title": {"text": "epochs of fine-tuning"}, "tickvals": places, "ticktext": marks}
