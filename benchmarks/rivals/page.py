"""The page of results, docs/rivals.md, and the same as a picture, docs/rivals.html: functions of the results alone.

    python -m benchmarks.rivals.page [--results benchmarks/results/rivals.jsonl] [--docs docs] [--embed]

`--embed` puts plotly's script (4 MB) into the HTML file, which then needs no network.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.rivals import OURS, TASKS, contestants
from benchmarks.rivals.measuring import ODD
from benchmarks.rivals.run import RESULTS, ROOT, Key, read
from benchmarks.rivals.standings import (
    Point,
    Row,
    average_ranks,
    chosen,
    duel,
    first_to_reach,
    front,
    losses,
    points,
    reference,
    standing,
)

from bertvision.errors import UserError

BUDGETS = {1: "1 minute", 3: "3 minutes", 10: "10 minutes"}
FIXED = {("ours", "epoch"), ("ours", "ridden")}  # the latter of spans, whose heads else are polished after an epoch
WORDS = Path(__file__).with_name("where_we_lose.md")  # three sentences, written by hand from the list that follows them
COLOURS = ("#d62728", "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b")  # ours is the first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--embed", action="store_true")
    given = parser.parse_args()
    rows = read(given.results)
    if not rows:
        sys.exit(f"'{given.results}' has no results: python -m benchmarks.rivals.run --data FOLDER makes some.")
    try:
        text, picture = markdown(rows), html(rows, given.embed)
    except UserError as error:
        sys.exit(str(error))
    (given.docs / "rivals.md").write_text(text, encoding="utf-8")
    (given.docs / "rivals.html").write_text(picture, encoding="utf-8")


def tasks_of(rows: list[Row]) -> dict[str, list[Point]]:
    """task -> points, in the order in which tasks are listed."""
    found = points(rows, {name: contestants[name].group for name in contestants})
    return {task: found[task] for task in sorted(found, key=lambda task: list(TASKS).index(task))}


def markdown(rows: list[Row]) -> str:
    tasks = tasks_of(rows)
    groups = groups_of(tasks)
    parts = [
        ["# Rivals", "", *introduction(rows)],
        ["## Average rank", "", *rank_table({n: of for n, of in tasks.items() if TASKS[n].kind != "span"}, groups)],
        ["## Ours and the best of the others, within a time", "", *duel_table(tasks)],
        ["## Seconds until the score of three epochs of full fine-tuning", "", *reach_table(tasks, groups)],
        ["## Budgets", "", *budget_table(rows)],
        ["## Where we lose", "", WORDS.read_text(encoding="utf-8").strip(), "", *loss_list(tasks)],
        *(["## " + title(task, of), "", *task_table(of)] for task, of in tasks.items()),
        ["## Contestants", "", *(f"- `{name}`: {contestants[name].about}." for name in contestants)],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def groups_of(tasks: dict[str, list[Point]]) -> list[str]:
    """Ours first, the others by name."""
    found = {point.group for of in tasks.values() for point in of}
    return sorted(found, key=lambda group: (group != OURS, group.lower()))


def title(task: str, of: list[Point]) -> str:
    row = of[0].rows[0]
    return f"{task} ({of[0].metric}; {row['rows']['train']:,} rows to train on, {row['rows']['dev']:,} dev rows)"


def introduction(rows: list[Row]) -> list[str]:
    jobs = list({Key.of(row): row for row in rows}.values())
    hours = sum(job["job_seconds"] for job in jobs) / 3600
    speeds = [job["calibration"] for job in jobs]
    usual = statistics.median(speeds)
    odd = sorted(
        f"{Key.of(job).label} ({job['calibration'] / usual:.2f})"
        for job in jobs
        if abs(job["calibration"] / usual - 1) > ODD
    )
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    commits = sorted({row["commit"] for row in rows if contestants[row["contestant"]].ours})
    backbones, threads = sorted({row["backbone"] for row in rows}), sorted({row["threads"] for row in rows})
    return [
        "Made by `python -m benchmarks.rivals.page` from `benchmarks/results/rivals.jsonl`, which"
        " `python -m benchmarks.rivals.run` fills; the settings of every contestant, with the pages of documentation"
        " they come from, are in `benchmarks/rivals/`. [The same as a picture](rivals.html).",
        "",
        f"All contestants: encoder {', '.join(backbones)}, {', '.join(map(str, threads))} threads, the same rows,"
        " held-out rows, token limit and seeds; one job at a time, each in a fresh process. Also those who choose"
        " nothing on held-out rows leave them out of their training. Ours also weighs its ensemble on them, which"
        " flatters its *held-out* score; `--budget` may take fewer rows, and then holds out some of those.",
        "",
        "- *s*: from the start of the process to the first answer to a dev example (imports, reading, training, choices"
        " on held-out rows; not the other answers to dev rows, which `fit` gives as well); *training s*: what is done"
        " with training rows (regressions: with tokenising and the search; ours: without the trials of `--budget`).",
        "- Intervals: 95% bootstraps (200 draws) over dev examples, averaged over seeds.",
        "- *matched*: the score of a rival whose threshold is moved as ours is, to where each of two classes is said as"
        " often as it comes in held-out rows.",
        "- *peak MB*: of the whole job, also for what a job passed on its way (`1 of 3 epochs`: in the middle of the"
        " schedule). *MB kept* with +: the unchanged encoder is needed besides. *ms*: one example by itself, in"
        " the median.",
        "",
        f"{len(jobs)} jobs, {hours:.1f} hours in all. A fixed matrix product before and after each ran at"
        f" {min(speeds):.0f} to {max(speeds):.0f} (median {usual:.0f}) billion operations a second."
        + (f" Not within {ODD:.0%} of the median (in brackets: its share, the slower of the two): {'; '.join(odd)}."
           if odd else f" It was always within {ODD:.0%} of the median."),
        "",
        "Ours was developed on these tasks: its defaults were chosen on their held-out rows, and part of its results"
        f" was made anew after changes (commits {', '.join(commits)}). The rivals' settings are those of their"
        " documentation, but for Trainer's learning rate, which was chosen like ours; so they"
        " fine-tune with dropout, which ours leaves out.",
        "",
        "Versions: " + ", ".join(f"{name} {versions[name]}" for name in sorted(versions)) + ".",
    ]  # fmt: skip


def table(head: list[str], lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines)]


def rank_table(tasks: dict[str, list[Point]], groups: list[str]) -> list[str]:
    ranks = {}
    for minutes, words in BUDGETS.items():
        with_budget = {task: of for task, of in tasks.items() if ran(of, minutes)}
        ranks[f"{words}, ours by --budget"] = average_ranks(with_budget, standing, minutes)
        ranks[f"{words}, all by held-out rows"] = average_ranks(tasks, chosen, minutes)
    lines = []
    for group in groups:
        found = [of.get(group) for of in ranks.values()]
        lines.append([group, *(f"{cell[0]:.2f} ({cell[1]})" if cell else "-" for cell in found)])
    return [
        "By dev score within each task but SQuAD, which few take part in, among those who took part; 1 is best, in"
        " brackets: over how many tasks. Who is not ready in time shares the last places. *ours"
        " by --budget*: of ours, `fit --budget` with just these minutes; of the others, the variant that held-out rows"
        " choose. *all by held-out rows*: also of ours the variant that held-out rows choose; these are separate runs,"
        " so choosing among them would take the sum of their times. Ranks count every difference, however small: the"
        " next table says which are noise.",
        "",
        *table(["contestant", *ranks], lines),
    ]


def duel_table(tasks: dict[str, list[Point]]) -> list[str]:
    lines = []
    for task, of in tasks.items():
        cells = []
        for minutes in BUDGETS:
            mine, other = duel(of, minutes)
            if mine is None or other is None:
                ready = mine or other
                words = f"only {ready.group}: {ready.score:.3f}" if ready else "nobody"
                cells.append(words if ran(of, minutes) else "not run")
                continue
            gain, low, high = mine.above(other)
            cells.append(f"{mine.score:.3f}, {other.group} {other.score:.3f}: {gain:+.3f} [{low:+.3f}, {high:+.3f}]")
        lines.append([task, *cells])
    return [
        "Ours is `fit --budget`; of the others the best one of those that held-out rows choose. Differences are paired"
        " on dev rows, with 95% intervals that leave out what another seed would change.",
        "",
        *table(["task", *BUDGETS.values()], lines),
    ]


def ran(of: list[Point], minutes: int) -> bool:
    return any(point.variant == f"budget-{minutes}" for point in of)


def reach_table(tasks: dict[str, list[Point]], groups: list[str]) -> list[str]:
    lines = []
    for task, of in tasks.items():
        target = reference(of)
        if target is None:
            lines.append([task, "not run", *("-" for _ in range(len(groups) + 2))])
            continue
        fixed = [point for point in of if (point.contestant, point.variant) in FIXED]
        cells = [reach(first_to_reach(fixed, OURS, target.score), target, bool(fixed))]
        for group in groups:
            taking_part = any(point.group == group for point in of)
            cells.append(reach(first_to_reach(of, group, target.score), target, taking_part))
        lines.append([task, f"{target.score:.3f}", f"{target.seconds:.0f}", *cells])
    return [
        "Three epochs by Trainer: length grouping on, 1e-4 (the better rate on held-out rows). Of each contestant the"
        " fastest variant whose dev score is at least that; since this looks at dev, the first column is ours with one"
        " variant for all tasks, one epoch (singled out when four of the tasks were known). In brackets: share of"
        " Trainer's seconds, which variant, and the paired difference of scores with its 95% interval.",
        "",
        *table(["task", "three epochs", "s", f"{OURS}, one epoch", *groups], lines),
    ]


def reach(reached: Point | None, target: Point, taking_part: bool) -> str:
    if reached is None:
        return "not reached" if taking_part else "-"
    if reached is target:
        return f"{reached.seconds:.0f}"
    gain, low, high = reached.above(target)
    share = reached.seconds / target.seconds
    return f"{reached.seconds:.0f} ({share:.2f}; {reached.name}: {gain:+.3f} [{low:+.3f}, {high:+.3f}])"


def budget_table(rows: list[Row]) -> list[str]:
    """How near `fit --budget` came to what it was given."""
    lines = []
    for row in sorted(rows, key=lambda row: list(TASKS).index(row["task"])):
        _, _, minutes = row["variant"].partition("budget-")
        if minutes:
            given, spent = 60 * float(minutes), row["call"] or 0.0
            cells = [row["task"], minutes, str(row["seed"]), f"{spent:.0f}", f"{spent / given:.2f}", row["note"]]
            lines.append(cells)
    return [
        "Seconds of `fit --budget MINUTES` by itself, from call to finished run, dev answers included. Well below 1:"
        " three epochs are the most, less than half an epoch would have fitted, or reading was faster than its trial.",
        "",
        *table(["task", "minutes", "seed", "s", "share", "what it did"], lines),
    ]


def loss_list(tasks: dict[str, list[Point]]) -> list[str]:
    """What the sentences have to be about, from the data alone."""
    lines = []
    for task, (ours, others) in losses(tasks).items():
        best = max(others, key=lambda point: point.score)
        mine = max((point for point in tasks[task] if point.ours), key=lambda point: point.score, default=None)
        where = "on the front, but not at its upper end" if ours else "not on the front" if mine else "not run"
        line = f"- {task}: ours is {where}; the highest is {best.group}, {best.name}: {best.score:.3f}"
        line += f" in {best.seconds:.0f} s"
        if mine is not None:
            gap, low, high = mine.above(best)
            line += f" (our highest, {mine.name}: {gap:+.3f} [{low:+.3f}, {high:+.3f}], in {mine.seconds:.0f} s)"
        lines.append(line + ".")
    for minutes, words in BUDGETS.items():
        behind = []
        for task, of in tasks.items():
            mine, other = duel(of, minutes)
            if mine is None and other is not None and ran(of, minutes):
                behind.append(f"{task} ({other.group}; ours is late)")
            elif mine is not None and other is not None and other.score > mine.score:
                behind.append(f"{task} ({other.group})")
        lines.append(
            f"- Within {words}, `--budget` against the others: another leads on {', '.join(behind) or 'none'}."
        )
    return lines


def second_metric(point: Point) -> str | None:
    """Of spans how good the best one is whether or not it is withheld: with few questions F1 stays near silence's."""
    if point.rows[0]["kind"] == "span":
        return "found_f1"
    return next((name for name in point.rows[0]["scores"] if name != point.metric), None)


def task_table(of: list[Point]) -> list[str]:
    best = front(of)
    also = second_metric(of[0])
    matched = any("matched" in row for point in of for row in point.rows)
    head = [
        "",
        f"{of[0].metric} [95%]",
        *([also] if also else []),
        *(["matched"] if matched else []),
        "held-out",
        "seeds",
        "s",
        "training s",
        "peak MB",
        "trained",
        "MB kept",
        "ms",
    ]
    lines = []
    for point in sorted(of, key=lambda point: point.seconds):
        name = f"{point.group}: {point.name}"
        low, high = point.interval
        size = f"{point.mean('disk') / 1e6:.1f}" + ("+" if point.rows[0]["needs_encoder"] else "")
        lines.append(
            [
                f"**{name}**" if point in best else name,
                f"{point.score:.3f} [{low:.3f}, {high:.3f}]",
                *([f"{np.mean([row['scores'][also]['value'] for row in point.rows]):.3f}"] if also else []),
                *([f"{point.mean('matched'):.3f}" if "matched" in point.rows[0] else "-"] if matched else []),
                f"{point.held_out:.3f}",
                ",".join(map(str, point.seeds)),
                f"{point.seconds:.0f}",
                f"{point.mean('training'):.0f}",
                f"{point.mean('peak_memory') / 1e6:.0f}",
                f"{point.mean('parameters'):,.0f}",
                size,
                f"{point.mean('latency') * 1e3:.1f}",
            ]
        )
    return [*table(head, lines), "", "Bold: on the front (no other scores as much in less time)."]


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


if __name__ == "__main__":
    main()
