"""Figures about layers and data: what heads weigh, where to cut, how little is enough."""

from statistics import mean

from bertvision.analysis import Table
from bertvision.reports.formats import number
from bertvision.reports.plotting import (
    BLUE,
    GREY,
    Drawing,
    Row,
    band,
    dotted,
    drawing,
    grouped,
    heat,
    nth,
    plain,
    said,
    series,
    style,
)
from bertvision.training.checkpoints import POLISHED


def less_data(table: Table) -> Drawing:
    """The mean over seeds; where there is one seed, with its interval, else between the least and the most."""
    traces = []
    for index, ((head,), found) in enumerate(grouped(table.rows, "head").items()):
        colour, symbol = nth(index)
        shares = {share: rows for (share,), rows in sorted(grouped(found, "data").items())}
        x = [100 * share for share in shares]
        points = [
            rows[0] if len(rows) == 1 else {"value": mean(row["value"] for row in rows)} for rows in shares.values()
        ]
        hover = [said(row, head, f"{share:g}% of the data", "" if "low" in row else f"mean {number(row['value'])}")
                 for row, share in zip(points, x, strict=True)]  # fmt: skip
        if any(len(rows) > 1 for rows in shares.values()):
            low, high = ([pick(row["value"] for row in rows) for rows in shares.values()] for pick in (min, max))
            traces.append(band(x, low, high, colour))
        traces.append(series(points, x, hover, name=plain(head), **style(colour, symbol)))
    return drawing(table, traces, xaxis={"title": {"text": "share of the training data (%)"}}, showlegend=True)


def layers(table: Table) -> Drawing:
    """Learned weights by head (a band over seeds), or what each layer knows alone by mark."""
    if "value" in table.rows[0]:
        return _alone(table)
    rows = [row for row in table.rows if row["head"].endswith(POLISHED)] or table.rows
    traces, count = [], len({row["layer"] for row in rows})
    for index, ((head,), found) in enumerate(grouped(rows, "head").items()):
        colour, symbol = nth(index)
        weights = {layer: [row["weight"] for row in same] for (layer,), same in sorted(grouped(found, "layer").items())}
        x = [float(layer) for layer in weights]
        if len(found) > len(weights):
            traces.append(band(x, [min(w) for w in weights.values()], [max(w) for w in weights.values()], colour))
        points = [{"value": mean(values)} for values in weights.values()]
        hover = [said({}, head, f"layer {at:g}: {number(point['value'])}") for at, point in zip(x, points, strict=True)]
        traces.append(series(points, x, hover, name=plain(head), **style(colour, symbol)))
    edges = sorted({float(row["layer"]) for row in rows})
    traces.append(dotted([edges[0], edges[-1]], [1 / count, 1 / count], "all alike"))
    return drawing(table, traces, xaxis=_layer_axis(), yaxis={"rangemode": "tozero"})


def _alone(table: Table) -> Drawing:
    traces = []
    for index, ((head, mark), rows) in enumerate(grouped(table.rows, "head", "epochs").items()):
        hover = [said({}, f"{head}, {mark} epochs", f"layer {row['layer']}: {number(row['value'])}") for row in rows]
        name = plain(f"{head}, {mark} epochs" if len(grouped(table.rows, "head")) > 1 else f"{mark} epochs")
        traces.append(series(rows, [row["layer"] for row in rows], hover, name=name, **style(*nth(index))))
    return drawing(table, traces, xaxis=_layer_axis(), showlegend=True)


def _layer_axis(title: str = "layer (0: embeddings)") -> Row:
    return {"title": {"text": title}, "dtick": 1, "tickformat": "d", "tickangle": 0}


def depth(table: Table) -> Drawing | None:
    if "depth" not in table.rows[0]:
        return None  # where to cut: one line, best read
    x = [float(row["depth"]) for row in table.rows]
    low, high = ([row[key] for row in table.rows] for key in ("low", "high"))
    hover = [said(row, f"layers 0 to {row['depth']}", row["head"]) for row in table.rows]
    points = [{"value": row["value"]} for row in table.rows]
    line = series(points, x, hover, name="score", **style(BLUE, "square"))
    return drawing(table, [band(x, low, high, BLUE), line], xaxis=_layer_axis("layers computed"), showlegend=False)


def without_layer(table: Table) -> Drawing | None:
    """How much is lost, against the same head with all layers."""
    whole = next((row for row in table.rows if row["without"] == "none"), None)
    if whole is None:
        return None
    rows = [row for row in table.rows if row is not whole]
    changes = [{key: row[key] - whole["value"] for key in ("value", "low", "high")} for row in rows]
    hover = [said(row, f"without layer {row['without']}", f"{number(change['value'], True)}")
             for row, change in zip(rows, changes, strict=True)]  # fmt: skip
    bars = series(changes, [float(row["without"]) for row in rows], hover, marker={"color": BLUE}) | {"type": "bar"}
    del bars["mode"]
    bars["error_y"]["color"] = GREY
    note = f"Change against all layers ({number(whole['value'])}). {table.note}"
    return drawing(
        Table(table.title, note, rows), [bars], xaxis=_layer_axis("layer left out"), yaxis={"zeroline": True}
    )


def transfer(table: Table) -> Drawing:
    found = {(row["trained at"], row["asked at"]): row for row in table.rows}
    marks = list(dict.fromkeys(row["trained at"] for row in table.rows))
    values = [[found[trained, asked]["value"] for trained in marks] for asked in marks]
    hover = [[said({"value": row["change"], "low": row["change low"], "high": row["change high"]},
                   f"trained at {trained}, asked at {asked}", f"score {number(row['value'])}, change")
              for trained in marks if (row := found[trained, asked])] for asked in marks]  # fmt: skip
    titles = {"xaxis": {"title": {"text": "trained at"}}, "yaxis": {"title": {"text": "asked at"}}}
    return heat(table, marks, marks, values, hover, decimals=3, layout=titles)
