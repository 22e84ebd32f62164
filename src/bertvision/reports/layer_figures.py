"""Figures about layers and the amount of data."""

from statistics import mean

from bertvision.analysis import Table
from bertvision.formats import Row, number
from bertvision.records import ModelName
from bertvision.reports.plotting import (
    BLUE,
    GREY,
    Drawing,
    band,
    dotted,
    drawing,
    grouped,
    heat,
    hover,
    nth,
    plain,
    series,
    style,
    titled,
)


def over_seeds(rows: list[Row], x: str, value: str) -> list[Row]:
    """A point per x: mean, minimum (`least`) and maximum (`most`) over seeds; a single seed keeps its interval."""
    groups, points = sorted(grouped(rows, x).items()), list[Row]()
    for (at,), found in groups:
        values = [row[value] for row in found]
        ends: Row = {key: found[0][key] for key in ("low", "high") if len(rows) == len(groups) and key in found[0]}
        points.append({"x": at, "value": mean(values), "least": min(values), "most": max(values), **ends})
    return points


def less_data(table: Table) -> Drawing:
    traces = []
    for index, ((head,), rows) in enumerate(grouped(table.rows, "head").items()):
        traces += _line(index, head, over_seeds(rows, "data", "value"), 100, "{:g}% of the data")
    return drawing(table, traces, xaxis=titled("share of the training data (%)"), showlegend=True)


def _line(index: int, head: str, points: list[Row], scale: float, at: str) -> list[Row]:
    """The mean over seeds, with a band from minimum to maximum if there are several seeds."""
    colour, symbol = nth(index)

    def text(row: Row) -> str:
        value = "" if "low" in row else f"{'mean ' * (row['least'] < row['most'])}{number(row['value'])}"
        return hover(head, at.format(scale * row["x"]), value, row=row)

    line = series(points, lambda row: scale * row["x"], text, name=plain(head), **style(colour, symbol))
    if all(point["least"] == point["most"] for point in points):
        return [line]
    least, most = ([point[end] for point in points] for end in ("least", "most"))
    return [band([scale * point["x"] for point in points], least, most, colour), line]


def layers(table: Table) -> Drawing:
    """Learned weights by head, or the score of each layer alone by mark."""
    if "value" in table.rows[0]:
        return _alone(table)
    rows = [row for row in table.rows if ModelName.parse(row["head"]).polished] or table.rows
    traces = []
    for index, ((head,), found) in enumerate(grouped(rows, "head").items()):
        traces += _line(index, head, over_seeds(found, "layer", "weight"), 1, "layer {:g}")
    read = sorted({float(row["layer"]) for row in rows})
    traces.append(dotted([read[0], read[-1]], [1 / len(read)] * 2, "equal weights"))
    return drawing(table, traces, xaxis=_layer_axis(), yaxis={"rangemode": "tozero"})


def _alone(table: Table) -> Drawing:
    traces, several = [], len(grouped(table.rows, "head")) > 1
    for index, ((head, mark), rows) in enumerate(grouped(table.rows, "head", "epochs").items()):
        name = f"{head}, {mark} epochs"

        def text(row: Row, name: str = name) -> str:
            return hover(name, f"layer {row['layer']}: {number(row['value'])}")

        shown = plain(name if several else f"{mark} epochs")
        traces.append(series(rows, lambda row: row["layer"], text, name=shown, **style(*nth(index))))
    return drawing(table, traces, xaxis=_layer_axis(), showlegend=True)


def _layer_axis(title: str = "layer (0: embeddings)") -> Row:
    return titled(title, dtick=1, tickformat="d", tickangle=0)


def depth(table: Table) -> Drawing | None:
    if "depth" not in table.rows[0]:
        return None  # where to cut: one row
    rows = [{"x": float(row["depth"]), **row} for row in table.rows]
    low, high = ([row[key] for row in rows] for key in ("low", "high"))
    line = series(
        [{key: value for key, value in row.items() if key not in ("low", "high")} for row in rows],
        lambda row: row["x"],
        lambda row: hover(f"layers 0 to {row['depth']}", row["head"], number(row["value"])),
        name="score",
        **style(BLUE, "square"),
    )
    shaded = band([row["x"] for row in rows], low, high, BLUE)
    return drawing(table, [shaded, line], xaxis=_layer_axis("computed layers"), showlegend=False)


def without_layer(table: Table) -> Drawing | None:
    """The change against the same head with all layers."""
    whole = next((row for row in table.rows if row["without"] == "none"), None)
    if whole is None:
        return None
    rows = [row for row in table.rows if row is not whole]
    changes = [row | {key: row[key] - whole["value"] for key in ("value", "low", "high")} for row in rows]

    def text(row: Row) -> str:
        return hover(f"without layer {row['without']}", f"change {number(row['value'], True)}")

    bars = series(changes, lambda row: float(row["without"]), text, marker={"color": BLUE}, type="bar")
    del bars["mode"]
    bars["error_y"]["color"] = GREY
    note = f"Change against all layers ({number(whole['value'])}). {table.note}"
    axes: Row = {"xaxis": _layer_axis("removed layer"), "yaxis": {"zeroline": True}}
    return drawing(Table(table.title, note, rows), [bars], **axes)


def transfer(table: Table) -> Drawing:
    found = {(row["trained at"], row["asked at"]): row for row in table.rows}
    marks = list(dict.fromkeys(row["trained at"] for row in table.rows))

    def text(trained: str, asked: str) -> str:
        row = found[trained, asked]
        change = {"value": row["change"], "low": row["change low"], "high": row["change high"]}
        return hover(f"trained at {trained}, evaluated at {asked}", f"score {number(row['value'])}, change", row=change)

    values = [[found[trained, asked]["value"] for trained in marks] for asked in marks]
    texts = [[text(trained, asked) for trained in marks] for asked in marks]
    return heat(table, marks, marks, values, texts, decimals=3, titles=("trained at", "evaluated at"))
