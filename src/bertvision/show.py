"""Results as tables for people to read in a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bertvision.errors import UserError
from bertvision.runs import Run

BAR = 24
MOST_ROWS, LONGEST = 40, 48  # rows of a table and characters of a cell, in the terminal
AROUND = 120  # characters of context shown on either side of an answer


def run(finished: Run) -> None:
    """The league of a run: every model at every mark on dev, with what was selected on held-out data."""
    scores, info = finished.scores, finished.info
    metric, selected = scores["metric"], scores["selected"]
    marks = scores["marks"]
    split = reported(marks[-1])
    there = dict.fromkeys(name for entry in marks for name in entry["held_out"])  # not every mark has polished heads
    names = sorted(there, key=lambda name: (name.startswith("ensemble"), name != "encoder"))
    title = f"{scores['task']}: {split.replace('_', '-')} {metric} by epochs of fine-tuning"
    board = Table(title=title, caption="* selected on held-out data")
    board.add_column("model", no_wrap=True)
    board.add_column("parameters", justify="right")
    for entry in marks:
        board.add_column(f"{entry['epoch']}\n{entry['seconds']:.0f} s", justify="right")
    for name in names:
        cells = []
        for entry in marks:
            chosen = selected == {"model": name, "mark": entry["epoch"]}
            best_here = name == entry["selected"]
            found = entry[split].get(name)
            text = f"{found[metric]['value']:.3f}" if found else "-"
            cells.append(f"[bold green]{text}*[/]" if chosen else f"[bold]{text}[/]" if best_here else text)
        base = name.removesuffix("+polish")
        count = info["parameters"].get(base)
        board.add_row(name, f"{count:,}" if count else "", *cells)
    console = Console()
    console.print(board)
    entry = finished.mark(selected["mark"])
    last, costs = marks[-1], info["costs"]
    for split in (key for key in entry if key.startswith("dev")):
        found = entry[split][selected["model"]][metric]
        encoder = ""
        if finished.encoder_answered:
            encoder = f"; encoder alone after {last['epoch']}: {last[split]['encoder'][metric]['value']:.3f}"
        console.print(
            f"Selected: [bold]{selected['model']}[/] at {selected['mark']} epochs, {split} {metric}"
            rf" {found['value']:.3f} \[{found['low']:.3f}, {found['high']:.3f}]{encoder}.",
            highlight=False,
        )
        if "found_f1" in entry[split][selected["model"]]:
            values = {name: found["value"] for name, found in entry[split][selected["model"]].items()}
            silent = f", unanswerable {values['NoAns_exact']:.3f}" if "NoAns_exact" in values else ""
            console.print(
                f"Of these, answerable questions F1 {values['HasAns_f1']:.3f} ({values['found_f1']:.3f} if none were"
                f" withheld){silent}; no answer is given above a null probability of"
                f" {entry['null_thresholds'][selected['model']]:.2f}.",
                highlight=False,
            )
    _curve(console, scores)
    _less_data(console, entry, metric)
    _profile(console, entry)
    console.print(
        f"{costs['seconds']:.0f} s in all, peak memory {costs['peak_memory_bytes'] / 1e9:.1f} GB,"
        f" {costs['disk_bytes'] / 1e6:.0f} MB on disk: {escape(str(finished.path))}",
        highlight=False,
    )


def reported(entry: dict[str, Any]) -> str:
    """The split to show: dev or, of a store that has none, what was held out."""
    return "dev" if "dev" in entry else next((key for key in entry if key.startswith("dev")), "held_out")


def _curve(console: Console, scores: dict[str, Any]) -> None:
    """A bar per mark for the encoder and for what was chosen there, on dev."""
    metric = scores["metric"]
    for entry in scores["marks"]:
        for label, model in (("encoder", "encoder"), ("selected", entry["selected"])):
            value = entry[reported(entry)][model][metric]["value"]
            _bar(console, f"{entry['epoch']:>5} {label:<9}", value, "cyan" if label == "encoder" else "green")


def _less_data(console: Console, entry: dict[str, Any], metric: str) -> None:
    """A bar per share of the data, for heads that were trained on several."""
    curves: dict[str, dict[float, float]] = {}
    for label, found in entry[reported(entry)].items():
        name, suffix, rest = label.partition("+polish")
        options = name.split(":")
        share = next((option[5:].removesuffix("%") for option in options if option.startswith("data=")), None)
        if share is not None:
            head = ":".join(option for option in options if not option.startswith("data=")) + suffix + rest
            curves.setdefault(head, {})[float(share)] = found[metric]["value"]
    for head, curve in curves.items():
        console.print(f"{head} by share of the data, {entry['epoch']} epochs:", highlight=False)
        for share in sorted(curve):
            _bar(console, f"{share:>5g} %", curve[share], "green")


def _profile(console: Console, entry: dict[str, Any]) -> None:
    """How much each layer knows by itself, where a closed-form head has found out on the way."""
    name, values = next(iter(entry.get("layer_profiles", {}).items()), (None, []))
    layers: Sequence[int] = ()
    if name:
        from bertvision.heads.variants import parse

        layers = parse(name.removesuffix("+polish")).layers or range(len(values))
        console.print(f"{name}, each layer alone (train, leave-one-out), {entry['epoch']} epochs:", highlight=False)
    for layer, value in zip(layers, values, strict=True):
        _bar(console, f"layer {layer}", value, "magenta")


def _bar(console: Console, label: str, value: float, colour: str) -> None:
    bar = "█" * round(max(0.0, value) * BAR)
    console.print(f"{label:<14}[{colour}]{bar:<{BAR}}[/] {value:.3f}", highlight=False)


def evaluation(result: dict[str, Any]) -> None:
    for split in [key for key in result if key.startswith("dev")] or ["held_out"]:
        first = next(iter(result[split].values()))
        board = Table(
            title=escape(f"{result['run']} at {result['mark']}: {split.replace('_', '-')}"),
            caption="* selected on held-out data",
        )
        board.add_column("model")
        for metric in first:
            board.add_column(rf"{metric} \[95%]", justify="right")
        for name, found in result[split].items():
            cells = [f"{s['value']:.3f} [{s['low']:.3f}, {s['high']:.3f}]" for s in found.values()]
            board.add_row(
                name + ("*" if name == result["selected"] else ""), *(cell.replace("[", r"\[") for cell in cells)
            )
        Console().print(board)
    for path in result.get("written", ()):
        Console().print(f"written: {escape(path)}", highlight=False)


def comparison(result: dict[str, Any]) -> None:
    console = Console()
    for side in ("a", "b"):
        console.print(f"{side}: {result[side]['run']}@{result[side]['mark']}, {result[side]['model']}", highlight=False)
    for split in (key for key in result if key.startswith("dev")):
        for metric, found in result[split]["difference"].items():
            a, b = (result[split][side][metric]["value"] for side in ("a", "b"))
            clear = "b is better" if found["low"] > 0 else "a is better" if found["high"] < 0 else "no clear difference"
            console.print(
                rf"{split} {metric}: a {a:.3f}, b {b:.3f}; b - a = {found['value']:+.3f} "
                rf"\[{found['low']:+.3f}, {found['high']:+.3f}]: {clear}",
                highlight=False,
            )


def predictions(rows: list[dict[str, Any]], path: str, mark: str, model: str) -> None:
    board = Table(title=escape(f"{path} at {mark}, {model}"))
    for column in ("text", "second text") if "text_pair" in rows[0] else ("text",):
        board.add_column(column, overflow="fold")
    board.add_column("answer")
    if "probabilities" in rows[0]:
        board.add_column("probability", justify="right")
    for row in rows:
        texts = [escape(row[key]) for key in ("text", "text_pair") if key in row]
        if "score" in row:
            board.add_row(*texts, f"{row['score']:.3f}")
        else:
            board.add_row(*texts, escape(row["label"]), f"{row['probabilities'][row['label']]:.3f}")
    Console().print(board)


def answers(rows: list[dict[str, Any]], path: str, mark: str, model: str) -> None:
    """Each question with its answer highlighted where it stands, and what else was thought of."""
    console = Console()
    console.print(escape(f"{path} at {mark}, {model}"), style="italic", highlight=False)
    for row in rows:
        console.print(f"\n[bold]{escape(row['question'])}[/]", highlight=False)
        if row["answer"]:
            context, start, end = row["context"], row["start"], row["end"]
            before, after = context[max(0, start - AROUND) : start], context[end : end + AROUND]
            left, right = "…" * (start > AROUND), "…" * (end + AROUND < len(context))
            console.print(
                f"  {left}{escape(before)}[bold green]{escape(row['answer'])}[/]{escape(after)}{right}", highlight=False
            )
            console.print(f"  characters {start} to {end}, probability {row['probability']:.2f}", highlight=False)
        else:
            console.print("  [yellow]the text does not answer this[/]", highlight=False)
        others = [o for o in row["alternatives"] if o["start"] != row["start"] or o["end"] != row["end"]]
        listed = "; ".join(f"{escape(str(o['answer']))} ({o['probability']:.2f})" for o in others)
        console.print(
            f"  no answer against the best one: {row['no_answer']:.2f} (limit {row['threshold']:.2f})"
            + (f"; also: {listed}" if listed else ""),
            highlight=False,
            style="dim",
        )


def listing(what: str) -> list[dict[str, Any]]:
    if what == "tasks":
        from bertvision.tasks import tasks

        return [{"name": n, "metrics": ", ".join(tasks[n].metrics), "about": tasks[n].about} for n in tasks]
    if what == "heads":
        from bertvision.heads import SETS, heads

        default = SETS["default"].split(",")
        return [
            {
                "name": n,
                "kinds": ", ".join(heads[n].kinds),
                "source": heads[n].source,
                "default": "yes" if n in default else "",
                "about": heads[n].about,
            }
            for n in heads
        ]
    if what == "backbones":
        from bertvision.backbones import backbones

        rows = [{"name": n, "about": backbones[n].about} for n in backbones]
        return [*rows, {"name": "FOLDER or HUB-NAME", "about": "any transformers encoder, e.g. microsoft/mpnet-base"}]
    raise UserError(f"`bertvision ls {what}`: one of tasks, heads, backbones, analyses.")


def league(rows: list[dict[str, Any]], metric: str) -> None:
    """All models of some runs, best on held-out data first."""
    board = Table(title=f"by held-out {metric}", caption="◆ no model with as few parameters scores higher")
    for name in ("", "model", "run", "epochs", f"held-out {metric} \\[95%]", f"dev {metric}"):
        board.add_column(name, no_wrap=name == "model")
    for name in ("parameters", "seconds"):
        board.add_column(name, justify="right")
    for row in rows:
        held = row["held_out"]
        board.add_row(
            "◆" if row["front"] else "",
            row["model"],
            escape(row["run"]),
            row["epoch"],
            rf"{held['value']:.3f} \[{held['low']:.3f}, {held['high']:.3f}]",
            f"{row['dev']['value']:.3f}",
            f"{row['parameters']:,}",
            f"{row['seconds']:.0f}",
        )
    Console().print(board)


def analysis(run: str, name: str, title: str, note: str, rows: list[dict[str, Any]]) -> None:
    """One table of `bertvision analyse`."""
    console = Console()
    console.print(f"\n[bold]{escape(f'{run}: ' if run else '')}{escape(title)}[/] [dim]({name})[/]", highlight=False)
    if note:
        console.print(f"[dim]{escape(note)}[/]", highlight=False)
    rows, left = rows[:MOST_ROWS], len(rows) - MOST_ROWS
    first, *others = rows[0]
    if [row[first] for row in rows] == others:  # a matrix, whose names would not fit above its columns
        numbers = {other: str(i) for i, other in enumerate(others, 1)}
        rows = [
            {first: f"{numbers[row[first]]} {row[first]}"} | {n: row[o] for o, n in numbers.items()} for row in rows
        ]
    table([{key: _short(value) for key, value in row.items()} for row in rows])
    if left > 0:
        console.print(f"[dim]... and {left} more rows: --json shows all[/]", highlight=False)


def cut(path: str, found: dict[str, Any]) -> None:
    """Before and after."""
    console = Console()
    console.print(f"{found['layers']} of {found['of']} layers kept: {escape(path)}", highlight=False)
    rows = []
    for side in ("before", "after"):
        values, score = found[side], found[side]["score"]
        rows.append({
            "": side, "model": values["model"],
            "score [95%]": f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]",
            "encoder parameters": values["encoder_parameters"],
            "ms, one text": f"{values['milliseconds_alone']:.1f}",
            "ms, of many": f"{values['milliseconds_each_together']:.1f}",
        })  # fmt: skip
    table(rows)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
    return value[: LONGEST - 1] + "…" if isinstance(value, str) and len(value) > LONGEST else value


def table(rows: list[dict[str, Any]]) -> None:
    board = Table()
    for number, (name, value) in enumerate(rows[0].items()):
        board.add_column(
            escape(name.replace("_", " ")),
            no_wrap=number == 0,
            overflow="fold",  # a narrow terminal shows less at once, but nothing is lost
            justify="right" if isinstance(value, int) else "left",
        )
    for row in rows:
        board.add_row(*(_cell(value) for value in row.values()))
    Console().print(board)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
