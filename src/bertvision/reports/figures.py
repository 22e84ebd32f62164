"""The figures of a report: one function per analysis, from one of its tables to a drawing."""

from collections.abc import Callable
from statistics import mean

from bertvision.analysis import Table
from bertvision.formats import Row, duration, number
from bertvision.records import ModelName
from bertvision.reports.plotting import (
    BLUE,
    GREEN,
    GREY,
    HOVER,
    LEGEND,
    ROLES,
    Drawing,
    band,
    dotted,
    drawing,
    epoch,
    epochs_axis,
    grouped,
    heat,
    hover,
    nth,
    plain,
    ring,
    series,
    style,
    titled,
)

TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
TICKS = 7
SHOWN = ("encoder", "best head", "selected")  # roles, where all of them are too many
PARTS = {
    "fine tune start": "start fine-tuning",
    "fine tune encoder": "fine-tune the encoder",
    "fine tune heads": "train heads alongside",
}


def draw(name: str, table: Table) -> Drawing | None:
    """The figure of an analysis's table, if it has one."""
    return DRAWN[name](table) if name in DRAWN and table.rows else None


def curve(table: Table) -> Drawing:
    """Points of the same mark are drawn side by side, so that their intervals do not overlap."""
    roles = grouped(table.rows, "role")
    step = (max(map(epoch, table.rows)) or 1.0) * 0.007
    shifts = {role: (index - (len(roles) - 2) / 2) * step for index, (role,) in enumerate(roles)}
    places = {
        (row["epochs"], row["model"]): shifts[row["role"]] for row in table.rows[::-1] if row["role"] != "selected"
    }
    traces = []
    for (role,), rows in roles.items():
        if role == "selected":  # a ring around the point of another role, which has the interval already
            points = []
            for row in rows:
                shift = places.get((row["epochs"], row["model"]))
                bare = {} if shift is None else {"low": row["value"], "high": row["value"]}
                points.append(row | bare | {"x": epoch(row) + (shift or 0), "shown": row})
            look = ring()
        else:
            points = [row | {"x": epoch(row) + shifts[role], "shown": row} for row in rows]
            look = style(*ROLES[role])
        traces.append(series(points, lambda row: row["x"], lambda row: _at_mark(row["shown"]), name=role, **look))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(table.rows), height=380)


def _at_mark(row: Row) -> str:
    time = f"{row['epochs']} epochs, {duration(row['seconds'])}"
    return hover(row.get("run", ""), row["role"], row["model"], time, row=row)


def curves_of_runs(table: Table) -> Drawing:
    traces = []
    for index, ((run,), found) in enumerate(grouped(table.rows, "run").items()):
        for (role,), rows in grouped(found, "role").items():
            chosen = role == "selected"
            look = style(*nth(index), *((2.5, "solid") if chosen else (1.2, "dot")))
            name = plain(run if chosen else f"{run}: encoder")
            traces.append(series(rows, epoch, _at_mark, name=name, **look))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(table.rows), height=400)


def score_against_cost(table: Table) -> Drawing:
    """Colours are roles or, of several runs, the runs; the line is the best score within each time."""
    several = "run" in table.rows[0]
    shown = [row for row in table.rows if not several or row["role"] in ("encoder", "selected")]
    best, front = float("-inf"), []
    for row in sorted(shown, key=lambda row: (row["seconds"], -row["value"])):
        if row["value"] > best:
            best = row["value"]
            front.append((row["seconds"], best))
    front.append((max(row["seconds"] for row in shown), best))
    line = dotted([x for x, _ in front], [y for _, y in front], "best within the time")
    traces = [line | {"line": {"shape": "hv", "color": GREEN, "width": 1.5, "dash": "dot"}}]
    for index, ((run,), found) in enumerate(grouped([{"run": ""} | row for row in shown], "run").items()):
        for (role,), rows in grouped(found, "role").items():
            look = style(*ROLES[role]) | {"mode": "markers"} if role != "selected" else ring()
            if several:
                look = style(nth(index)[0], "circle-open" if role == "encoder" else "circle") | {"mode": "markers"}
            name = plain(f"{run}: {role}" if several else role)
            points = series(rows, lambda row: row["seconds"], _at_mark, name=name, **look)
            del points["error_y"]  # the roles of a mark are above each other: intervals would overlap
            traces.append(points)
    return drawing(table, traces, wide=True, xaxis=_time_axis([row["seconds"] for row in shown]), height=380)


def _time_axis(seconds: list[float]) -> Row:
    """Logarithmic, with round times as ticks."""
    near = [time for time in TIMES if 0.7 * min(seconds) <= time <= 1.4 * max(seconds)]
    near = near if len(near) > 2 else sorted(set(seconds))
    ticks = near[:: -(-len(near) // TICKS)]
    labels = [duration(time).replace(".0 s", " s") for time in ticks]
    return titled("time (log scale)", type="log", tickvals=ticks, ticktext=labels)


def cost(table: Table) -> Drawing | None:
    """Time by mark and part. The table counts fine-tuning from the start of the run, the figure from the last mark."""
    if "part" not in table.rows[0]:
        return None
    marks = list(dict.fromkeys(row["epochs"] for row in table.rows))
    spent: dict[str, dict[str, float]] = {}
    before: dict[str, float] = {}
    for row in table.rows:
        part, seconds = str(row["part"]), row["seconds"]
        if part == "fine tune loop":
            continue  # the sum of the other parts of fine-tuning
        if part.startswith("fine tune"):
            seconds, before[part] = seconds - before.get(part, 0), seconds
        group = spent.setdefault(PARTS.get(part) or part.split()[0], dict.fromkeys(marks, 0.0))
        group[row["epochs"]] += seconds
    traces = []
    for index, (name, group) in enumerate((name, group) for name, group in spent.items() if any(group.values())):
        texts = [hover(name, f"at {mark}: {duration(group[mark])}") for mark in marks]
        bars = {"type": "bar", "orientation": "h", "name": plain(name), "marker": {"color": nth(index)[0]}}
        places = {"x": [group[mark] for mark in marks], "y": [f"at {mark}" for mark in marks]}
        traces.append(bars | places | {"customdata": texts, "hovertemplate": HOVER})
    axes = {"xaxis": titled("seconds"), "yaxis": {"autorange": "reversed", "type": "category"}}
    note = "Time since the mark before. In the table, fine-tuning is counted from the start of the run."
    layout = {"barmode": "stack", "height": 200 + 34 * len(marks), "legend": {**LEGEND, "traceorder": "normal"}}
    return drawing(Table(table.title, note, table.rows), traces, wide=True, **layout, **axes)


def league(table: Table) -> Drawing:
    """Held-out score against parameters, with the Pareto front."""

    def text(row: Row) -> str:
        return hover(row["model"], row.get("run", ""), f"{row['parameters']:,} parameters", row=row)

    traces = []
    looks = {"others": style(GREY) | {"mode": "markers"}, "best for its size": style(GREEN, "diamond", 1.5, "dot")}
    for name, look in looks.items():
        rows = [row | row["held-out"] for row in table.rows if row["front"] == (name != "others")]
        rows.sort(key=lambda row: row["parameters"])
        traces.append(series(rows, lambda row: row["parameters"], text, name=name, **look))
    axis = titled("parameters (log scale)", type="log", dtick=1, tickformat="~s")
    return drawing(table, traces, wide=True, xaxis=axis)


def shares(table: Table) -> Drawing:
    traces = []
    rows = [row for row in table.rows if row["role"] in SHOWN]
    for what, dash, symbol in (("answerable right", "solid", "circle"), ("unanswerable right", "dash", "diamond-open")):

        def text(row: Row, what: str = what) -> str:
            return hover(f"{row['role']}, {row['epochs']} epochs", row["model"], f"{what}: {number(row[what] or 0)}")

        for (role,), found in grouped(rows, "role").items():
            look = style(ROLES[role][0], symbol, 2, dash)
            traces.append(series(found, epoch, text, what, name=f"{role}: {what.removesuffix(' right')}", **look))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(rows), yaxis={"range": [-0.02, 1.02]}, height=380)


def by_role(x: str, y: str, title: str, diagonal: bool) -> Callable[[Table], Drawing | None]:
    """A line per role; roles of the same model share one line."""

    def text(row: Row) -> str:
        count = f"{row['examples']:,} examples" if "examples" in row else ""
        return hover(row["role"], f"{x} {number(row[x])}", f"{y} {number(row[y])}", count)

    def make(table: Table) -> Drawing | None:
        if x not in table.rows[0]:
            return None
        lines: dict[tuple[tuple[float, float], ...], list[str]] = {}
        for (role,), rows in grouped(table.rows, "role").items():
            lines.setdefault(tuple((row[x], row[y]) for row in rows), []).append(role)
        traces = []
        if diagonal:
            ends = [min(row[x] for row in table.rows), max(row[x] for row in table.rows)]
            ends = [0, 1] if ends[0] >= 0 and ends[1] <= 1 else ends
            traces.append(dotted(ends, ends, "calibrated"))
        for roles in lines.values():
            rows = [row for row in table.rows if row["role"] == roles[0]]
            look = style(*ROLES[roles[0]])
            traces.append(series(rows, lambda row: row[x], text, y, name=" = ".join(roles), **look))
        return drawing(table, traces, xaxis=titled(title), yaxis=titled(y), height=400)

    return make


def disagreement(table: Table) -> Drawing:
    names = [row["model"] for row in table.rows]
    values = [[None if row["model"] == other else row[other] for other in names] for row in table.rows]
    texts = [[hover(f"{row['model']} and {other}", number(row[other])) for other in names] for row in table.rows]
    numbered = [f"{index} {name}" for index, name in enumerate(names, 1)]
    return heat(table, [str(index) for index in range(1, len(names) + 1)], numbered, values, texts, zmin=0)


def confusion(table: Table) -> Drawing:
    """Counts, coloured by their share of the true class."""
    labels = [str(row["is"]) for row in table.rows]
    counts = [[row[f"said {label}"] for label in labels] for row in table.rows]
    parts = [[count / max(1, sum(row)) for count in row] for row in counts]

    def text(i: int, j: int) -> str:
        return hover(f"is {labels[i]}, said {labels[j]}", f"{counts[i][j]:,} ({parts[i][j]:.0%})")

    texts = [[text(i, j) for j in range(len(labels))] for i in range(len(labels))]
    return heat(table, labels, labels, counts, texts, colour=parts, titles=("said", "is"), zmin=0, zmax=1)


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


DRAWN: dict[str, Callable[[Table], Drawing | None]] = {
    "curve": curve,
    "curves-of-runs": curves_of_runs,
    "score-against-cost": score_against_cost,
    "cost": cost,
    "league": league,
    "less-data": less_data,
    "layers": layers,
    "depth": depth,
    "without-layer": without_layer,
    "transfer": transfer,
    "shares": shares,
    "calibration": by_role("stated", "actual", "stated", True),
    "coverage": by_role("coverage", "score", "share of answers given", False),
    "disagreement": disagreement,
    "confusion": confusion,
}
