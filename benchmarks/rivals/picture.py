"""Score against seconds, a plot per task: an SVG file for the page, and HTML with hover labels."""

import io
from typing import Any

from benchmarks.rivals import OURS, TASKS, contestants
from benchmarks.rivals.standings import Point, Row, front, points

COLOURS = ("#d62728", "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")  # ours is the first
TICKS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
GREY = "#7d8794"  # readable on light and on dark pages


def tasks_of(rows: list[Row]) -> dict[str, list[Point]]:
    """task -> points, in the order in which tasks are listed."""
    found = points(rows, {name: contestants[name].group for name in contestants})
    return {task: found[task] for task in sorted(found, key=lambda task: list(TASKS).index(task))}


def groups_of(tasks: dict[str, list[Point]]) -> list[str]:
    """Ours first, the others by name."""
    found = {point.group for of in tasks.values() for point in of}
    return sorted(found, key=lambda group: (group != OURS, group.lower()))


def title(task: str, of: list[Point]) -> str:
    row = of[0].rows[0]
    return f"{task} ({of[0].metric}; {row['rows']['train']:,} rows to train on, {row['rows']['dev']:,} dev rows)"


def html(rows: list[Row], embed: bool = False) -> str:
    """Score against seconds (logarithmic), a plot per task, with the front as a line."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    tasks = tasks_of(rows)
    colours = dict(zip(groups_of(tasks), COLOURS, strict=False))
    columns, count = 2, len(tasks)
    titles = [title(task, of) for task, of in tasks.items()]
    lines = -(-count // columns)
    gap = {"horizontal_spacing": 0.06, "vertical_spacing": 0.28 / lines}
    figure = make_subplots(rows=lines, cols=columns, subplot_titles=titles, **gap)
    shown: set[str] = set()
    for number, of in enumerate(tasks.values()):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        best = front(of)
        line = {"color": "#999999", "dash": "dot", "shape": "hv"}
        edge = go.Scatter(
            x=[p.seconds for p in best], y=[p.score for p in best], mode="lines", line=line, name="front",
            showlegend=not number, hoverinfo="skip",
        )  # fmt: skip
        figure.add_trace(edge, **place)
        for group in groups_of({"": of}):
            figure.add_trace(dots(go, [p for p in of if p.group == group], colours[group], group not in shown), **place)
            shown.add(group)
    ticks = [step * 10**power for power in range(5) for step in (1, 2, 3, 5, 7)]
    figure.update_xaxes(type="log", tickvals=ticks, title_text="seconds until the first prediction")
    figure.update_layout(
        height=400 * lines,
        template="plotly_white",
        title="Score against seconds, per task",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1 + 0.12 / lines, "x": 0},
        margin={"t": 170},
    )
    return figure.to_html(include_plotlyjs=True if embed else "cdn", div_id="rivals")


def svg(rows: list[Row]) -> str:
    """Score against seconds (logarithmic), a plot per task, in colours that suit light and dark pages."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    tasks = tasks_of(rows)
    colours = dict(zip(groups_of(tasks), COLOURS, strict=False))
    lines = -(-len(tasks) // 2)
    with matplotlib.rc_context(style("rivals")):
        figure, plots = pyplot.subplots(lines, 2, figsize=(9, 2.9 * lines), squeeze=False)
        for plot, (task, of) in zip(plots.flat, tasks.items(), strict=False):
            best = sorted(front(of), key=lambda point: point.seconds)
            plot.step([p.seconds for p in best], [p.score for p in best], where="post", color=GREY, ls=":", lw=1)
            for group in groups_of({"": of}):
                shown = [p for p in of if p.group == group]
                marker, size = ("*", 90) if shown[0].ours else ("o", 26)
                where = [p.seconds for p in shown], [p.score for p in shown]
                plot.scatter(*where, c=colours[group], marker=marker, s=size, label=group, zorder=3)
            plot.set(xscale="log", title=f"{task} ({of[0].metric})", xlabel="seconds until the first prediction")
            low, high = plot.get_xlim()
            ticks = [tick for tick in TICKS if low <= tick <= high]
            plot.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            plot.minorticks_off()
            plot.grid(alpha=0.2)
        for plot in plots.flat[len(tasks) :]:
            plot.set_axis_off()
        named: dict[str, Any] = {}
        for plot in plots.flat:
            handles, labels = plot.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        last = plots.flat[-1] if len(tasks) % 2 else figure
        last.legend(named.values(), named.keys(), loc="center" if len(tasks) % 2 else "upper center", frameon=False)
        figure.tight_layout()
        return as_text(figure)


def style(salt: str) -> dict[str, Any]:
    """For matplotlib: readable on light and on dark pages, and the same file for the same figure."""
    grey = dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
    return {"svg.hashsalt": salt, "text.color": GREY, "font.size": 9, **grey}


def as_text(figure: Any) -> str:
    from matplotlib import pyplot

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def dots(go: Any, of: list[Point], colour: str, in_legend: bool) -> Any:
    ends = [point.interval for point in of]
    return go.Scatter(
        x=[p.seconds for p in of],
        y=[p.score for p in of],
        mode="markers",
        name=of[0].group,
        legendgroup=of[0].group,
        showlegend=in_legend,
        marker={"color": colour, "size": 9, "symbol": "star" if of[0].ours else "circle"},
        error_y={
            "array": [high - p.score for p, (_, high) in zip(of, ends, strict=True)],
            "arrayminus": [p.score - low for p, (low, _) in zip(of, ends, strict=True)],
            "thickness": 0.7,
        },
        text=[f"{p.name}<br>{len(p.rows)} seed(s), training {p.mean('training'):.0f} s" for p in of],
        hovertemplate="%{text}<br>%{y:.3f} in %{x:.0f} s",
    )
