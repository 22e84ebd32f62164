"""The figures of a report: one function per analysis, from one of its tables to what is drawn of it."""

from collections.abc import Callable

from bertvision.analysis import Table
from bertvision.reports.formats import duration, number
from bertvision.reports.layer_figures import depth, layers, less_data, transfer, without_layer
from bertvision.reports.plotting import (
    GREEN,
    GREY,
    LEGEND,
    ROLES,
    Drawing,
    Row,
    dotted,
    drawing,
    epoch,
    epochs_axis,
    grouped,
    heat,
    nth,
    plain,
    ring,
    said,
    series,
    style,
)

TIMES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
TICKS = 7
SHOWN = ("encoder", "best head", "selected")  # roles, where all of them would be too many


def draw(name: str, table: Table) -> Drawing | None:
    """The figure of a table that an analysis gave; none of those that are best read as tables."""
    return DRAWN[name](table) if name in DRAWN and table.rows else None


def curve(table: Table) -> Drawing:
    """Points of one mark stand side by side, so that their intervals can be told apart."""
    roles = grouped(table.rows, "role")
    span = max(map(epoch, table.rows)) or 1.0
    shifts = {role: (index - (len(roles) - 2) / 2) * span * 0.007 for index, (role,) in enumerate(roles)}
    beside = {(row["epochs"], row["model"]): shifts[row["role"]] for row in reversed(table.rows) if
              row["role"] != "selected"}  # fmt: skip
    traces = []
    for (role,), rows in roles.items():
        hover = [said(row, role, row["model"], f"{row['epochs']} epochs, {duration(row['seconds'])}") for row in rows]
        if role == "selected":  # around the point that was chosen, which has its interval already
            moved = [beside.get((row["epochs"], row["model"])) for row in rows]
            x = [epoch(row) + (shift or 0) for row, shift in zip(rows, moved, strict=True)]
            bare = [row if shift is None else row | {"low": row["value"], "high": row["value"]}
                    for row, shift in zip(rows, moved, strict=True)]  # fmt: skip
            traces.append(series(bare, x, hover, name=role, **ring()))
        else:
            x = [epoch(row) + shifts[role] for row in rows]
            traces.append(series(rows, x, hover, name=role, **style(*ROLES[role])))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(table.rows), height=380)


def curves_of_runs(table: Table) -> Drawing:
    traces = []
    for index, ((run,), found) in enumerate(grouped(table.rows, "run").items()):
        for (role,), rows in grouped(found, "role").items():
            chosen = role == "selected"
            hover = [said(row, run, f"{role}: {row['model']}", f"{row['epochs']} epochs") for row in rows]
            look = style(*nth(index), *((2.5, "solid") if chosen else (1.2, "dot")))
            name = plain(run if chosen else f"{run}: encoder")
            traces.append(series(rows, [epoch(row) for row in rows], hover, name=name, **look))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(table.rows), height=400)


def score_against_cost(table: Table) -> Drawing:
    """Colours are roles or, of several runs, the runs; the line is the best that can be had in so much time."""
    several = "run" in table.rows[0]
    shown = [row for row in table.rows if not several or row["role"] in ("encoder", "selected")]
    best, front = float("-inf"), []
    for row in sorted(shown, key=lambda row: (row["seconds"], -row["value"])):
        if row["value"] > best:
            best = row["value"]
            front.append((row["seconds"], best))
    front.append((max(row["seconds"] for row in shown), best))
    line = dotted([x for x, _ in front], [y for _, y in front], "best for its time")
    traces = [line | {"line": {"shape": "hv", "color": GREEN, "width": 1.5, "dash": "dot"}}]
    for index, ((run,), found) in enumerate(grouped([{"run": ""} | row for row in shown], "run").items()):
        for (role,), rows in grouped(found, "role").items():
            look = style(*ROLES[role]) | {"mode": "markers"} if role != "selected" else ring()
            if several:
                look = style(nth(index)[0], "circle-open" if role == "encoder" else "circle") | {"mode": "markers"}
            name = f"{run}: {role}" if several else role
            hover = [
                said(row, name, row["model"], f"{row['epochs']} epochs, {duration(row['seconds'])}") for row in rows
            ]
            points = [
                {"value": row["value"]} for row in rows
            ]  # no intervals: all roles of a mark stand above each other
            traces.append(series(points, [row["seconds"] for row in rows], hover, name=plain(name), **look))
    return drawing(table, traces, wide=True, xaxis=_time_axis([row["seconds"] for row in shown]), height=380)


def _time_axis(seconds: list[float]) -> Row:
    """Logarithmic, with ticks as people count time."""
    near = [time for time in TIMES if 0.7 * min(seconds) <= time <= 1.4 * max(seconds)]
    near = near if len(near) > 2 else sorted(set(seconds))
    ticks = near[:: -(-len(near) // TICKS)]
    labels = [duration(time).replace(".0 s", " s") for time in ticks]
    return {"type": "log", "title": {"text": "time (log scale)"}, "tickvals": ticks, "ticktext": labels}


def cost(table: Table) -> Drawing | None:
    """Seconds by mark and part. Fine-tuning is counted from the start of the run: here, from the mark before."""
    if "part" not in table.rows[0]:
        return None
    marks = list(dict.fromkeys(row["epochs"] for row in table.rows))
    spent: dict[str, dict[str, float]] = {}
    before: dict[str, float] = {}
    for row in table.rows:
        part, seconds = str(row["part"]), row["seconds"]
        if part == "fine tune loop":
            continue  # the other two parts of fine-tuning are in it
        if part.startswith("fine tune"):
            seconds, before[part] = seconds - before.get(part, 0), seconds
        name = {"fine tune encoder": "fine-tune the encoder", "fine tune heads": "heads riding along"}.get(part)
        group = spent.setdefault(name or part.split()[0], dict.fromkeys(marks, 0.0))
        group[row["epochs"]] += seconds
    traces = [
        {"type": "bar", "orientation": "h", "name": plain(name), "y": [f"at {mark}" for mark in marks],
         "x": [group[mark] for mark in marks], "marker": {"color": nth(index)[0]},
         "customdata": [said({}, name, f"at {mark}: {duration(group[mark])}") for mark in marks],
         "hovertemplate": "%{customdata}<extra></extra>"}
        for index, (name, group) in enumerate(spent.items())
    ]  # fmt: skip
    axes = {"xaxis": {"title": {"text": "seconds"}}, "yaxis": {"autorange": "reversed", "type": "category"}}
    note = "Each mark by itself; in the numbers, fine-tuning is counted from the start of the run."
    layout = {"barmode": "stack", "height": 150 + 34 * len(marks), "legend": {**LEGEND, "traceorder": "normal"}}
    return drawing(Table(table.title, note, table.rows), traces, wide=True, **layout, **axes)


def league(table: Table) -> Drawing:
    """Held-out score against parameters, with the front."""
    traces = []
    for front, name, colour, symbol in (
        (False, "others", GREY, "circle"),
        (True, "best for its size", GREEN, "diamond"),
    ):
        rows = [row | row["held-out"] for row in table.rows if row["front"] == front]
        rows.sort(key=lambda row: row["parameters"])
        hover = [said(row, row["model"], row.get("run", ""), f"{row['parameters']:,} parameters") for row in rows]
        look = style(colour, symbol, 1.5, "dot") | {"mode": "lines+markers" if front else "markers"}
        traces.append(series(rows, [row["parameters"] for row in rows], hover, name=name, **look))
    axis = {"type": "log", "title": {"text": "parameters (log scale)"}, "dtick": 1, "tickformat": "~s"}
    return drawing(table, traces, wide=True, xaxis=axis)


def shares(table: Table) -> Drawing:
    traces = []
    rows = [row for row in table.rows if row["role"] in SHOWN]
    for what, dash, symbol in (("answerable right", "solid", "circle"), ("unanswerable right", "dash", "diamond-open")):
        for (role,), found in grouped(rows, "role").items():
            hover = [said({}, f"{role}, {row['epochs']} epochs", row["model"], f"{what}: {number(row[what] or 0)}")
                     for row in found]  # fmt: skip
            look = style(ROLES[role][0], symbol, 2, dash)
            name = f"{role}: {what.removesuffix(' right')}"
            traces.append(series(found, [epoch(row) for row in found], hover, what, name=name, **look))
    return drawing(table, traces, wide=True, xaxis=epochs_axis(rows), yaxis={"range": [-0.02, 1.02]}, height=380)


def by_role(x: str, y: str, title: str, diagonal: bool) -> Callable[[Table], Drawing | None]:
    """A line per role; roles that are the same model are one line."""

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
            traces.append(dotted(ends, ends, "as stated"))
        for points, roles in lines.items():
            rows = [row for row in table.rows if row["role"] == roles[0]]
            count = [f"{row['examples']:,} examples" if "examples" in row else "" for row in rows]
            hover = [said({}, roles[0], f"{x} {number(row[x])}", f"{y} {number(row[y])}", many)
                     for row, many in zip(rows, count, strict=True)]  # fmt: skip
            name = " = ".join(roles)
            traces.append(series(rows, [at for at, _ in points], hover, y, name=name, **style(*ROLES[roles[0]])))
        return drawing(table, traces, xaxis={"title": {"text": title}}, yaxis={"title": {"text": y}}, height=400)

    return make


def disagreement(table: Table) -> Drawing:
    names = [row["model"] for row in table.rows]
    values = [
        [None if one == other else row[other] for other in names] for one, row in zip(names, table.rows, strict=True)
    ]
    hover = [[said({}, f"{one} and {other}", number(row[other])) for other in names]
             for one, row in zip(names, table.rows, strict=True)]  # fmt: skip
    numbers = [f"{index} {name}" for index, name in enumerate(names, 1)]
    return heat(table, list(map(str, range(1, len(names) + 1))), numbers, values, hover, zmin=0)


def confusion(table: Table) -> Drawing:
    """Counts; the colour is the share of the true class."""
    labels = [str(row["is"]) for row in table.rows]
    counts = [[row[f"said {label}"] for label in labels] for row in table.rows]
    parts = [[count / max(1, sum(row)) for count in row] for row in counts]
    hover = [[said({}, f"is {one}, said {other}", f"{counts[i][j]:,} ({parts[i][j]:.0%})")
              for j, other in enumerate(labels)] for i, one in enumerate(labels)]  # fmt: skip
    titles = {"xaxis": {"title": {"text": "said"}}, "yaxis": {"title": {"text": "is"}}}
    return heat(table, labels, labels, counts, hover, colour=parts, zmin=0, zmax=1, layout=titles)


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
    "coverage": by_role("coverage", "score", "share of answers that are given", False),
    "disagreement": disagreement,
    "confusion": confusion,
}
