"""Results as tables in the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bertvision.analysis import Table as Finding
from bertvision.formats import Row, bars, duration, interval, number, size, spaced
from bertvision.inference.evaluate import Comparison, Evaluation
from bertvision.metrics.intervals import Score
from bertvision.records import ENCODER, Cut, MarkRecord, ModelName, Results, Selected
from bertvision.runs.directory import Run
from bertvision.training.planner import Plan
from bertvision.types import HELD_OUT

BAR = 24
MOST_ROWS, LONGEST = 40, 48  # rows of a table and characters of a cell
AROUND = 120  # characters of context on either side of an answer
SELECTED = "* selected on held-out data"


def run(finished: Run) -> None:
    """Every model at every mark, the selected model, and what the run cost."""
    record, results = finished.record, finished.results
    mark, selected, metric = results.shipped, results.selected, results.metric
    title = f"{results.task}: {spaced(mark.split)} {metric} by epochs of fine-tuning"
    table([_models_row(name, record.size(name), results) for name in _sorted(results)], title, SELECTED)
    for split in mark.dev_splits:
        encoder = ""
        if record.encoder_answered:
            last = results.last.score(ENCODER, metric, split)
            encoder = f"; encoder alone at mark {results.last.mark}: {number(last.value)}"
        score = interval(mark.score(selected.model, metric, split))
        _say(f"Selected: {selected.model} at mark {selected.mark}, {split} {metric} {score}{encoder}.")
        _answerable(mark, split)
    _curve(results)
    _less_data(mark, metric)
    for name, values in list(mark.layer_profiles.items())[:1]:
        _say(f"{name}, each layer alone (train, leave-one-out), mark {mark.mark}:")
        layers = ModelName.parse(name).by_layer(values)
        _bars([(f"layer {layer}", value) for layer, value in layers.items()], ["magenta"])
    if record.costs is not None:
        memory, disk = size(record.costs.peak_memory_bytes), size(record.costs.disk_bytes)
        _say(f"{duration(record.costs.seconds)} in total, peak memory {memory}, {disk} on disk: {finished.path}")


def _sorted(results: Results) -> list[str]:
    """Models of all marks: the encoder, heads, ensembles. Not every mark has polished heads."""
    names = dict.fromkeys(name for mark in results.marks for name in mark.models)
    return sorted(names, key=lambda name: (ModelName.parse(name).ensemble, name != ENCODER))


def _models_row(name: str, parameters: int | None, results: Results) -> Row:
    count = "" if parameters is None else f"{parameters:,}"
    row: Row = {"model": name, "parameters": Text(count, justify="right")}
    for mark in results.marks:
        text = number(mark.score(name, results.metric).value) if name in mark.models else "-"
        style = "bold" if name == mark.selected else ""
        if results.selected == Selected(name, mark.mark):
            text, style = f"{text}*", "bold green"
        row[f"{mark.mark}\n{duration(mark.seconds)}"] = Text(text, style, justify="right")
    return row


def _answerable(mark: MarkRecord, split: str) -> None:
    """For spans: the scores of answerable and unanswerable questions."""
    values = {metric: number(score.value) for metric, score in mark.scores[split][mark.selected].items()}
    threshold = mark.null_thresholds.get(mark.selected)
    if "found_f1" not in values or threshold is None:
        return
    silent = f", unanswerable {values['NoAns_exact']}" if "NoAns_exact" in values else ""
    _say(
        f"Answerable questions: F1 {values['HasAns_f1']} ({values['found_f1']} if no answer is withheld){silent}."
        f" An answer is withheld if the null probability is above {threshold:.2f}."
    )


def _curve(results: Results) -> None:
    """Encoder and selected model at each mark."""
    models = [(mark, role) for mark in results.marks for role in ("encoder", "selected")]
    values = []
    for mark, role in models:
        score = mark.score(ENCODER if role == "encoder" else mark.selected, results.metric)
        values.append((f"{mark.mark} {role:<8}", score.value))
    _bars(values, ["cyan", "green"])


def _less_data(mark: MarkRecord, metric: str) -> None:
    """Heads that were trained on several shares of the data."""
    curves: dict[str, dict[float, float]] = {}
    for name in map(ModelName.parse, mark.models):
        if "data=" in name.label:
            value = mark.score(str(name), metric).value
            curves.setdefault(str(name.without("data")), {})[name.variant.data] = value
    for head, curve in curves.items():
        _say(f"{head} by share of the data, mark {mark.mark}:")
        _bars([(f"{share:.0%}", curve[share]) for share in sorted(curve)], ["green"])


def _bars(values: list[tuple[str, float]], colours: Sequence[str]) -> None:
    """Bars from 0 to 1; colours take turns."""
    for index, line in enumerate(bars(values, 1.0, BAR)):
        _say(line, colours[index % len(colours)])


def _say(text: str, style: str | None = None) -> None:
    Console().print(text, style=style, highlight=False, markup=False)


def evaluation(result: Evaluation) -> None:
    for split in [name for name in result.scores if name != HELD_OUT] or [HELD_OUT]:
        rows = []
        for name, found in result.scores[split].items():
            scores = {f"{metric} [95%]": interval(score) for metric, score in found.items()}
            rows.append({"model": f"{name}*" if name == result.selected else name} | scores)
        table(rows, f"{result.run} at {result.mark}: {spaced(split)}", SELECTED)
    for path in result.written:
        _say(f"written: {path}")


def comparison(result: Comparison) -> None:
    for name, side in (("a", result.a), ("b", result.b)):
        _say(f"{name}: {side.run}@{side.mark}, {side.model}")
    for split, difference in result.difference.items():
        for metric, found in difference.items():
            a, b = (number(scores[metric].value) for scores in result.scores[split])
            clear = "b is better" if found.low > 0 else "a is better" if found.high < 0 else "no clear difference"
            _say(f"{split} {metric}: a {a}, b {b}; b - a = {interval(found, signed=True)}: {clear}")


def predictions(rows: list[dict[str, Any]], path: str, mark: str, model: str) -> None:
    names = {"text": "text", "text_pair": "second text"}
    shown = []
    for row in rows:
        texts = {names[key]: row[key] for key in names if key in row}
        if "score" in row:
            shown.append(texts | {"answer": number(row["score"])})
        else:
            shown.append(texts | {"answer": row["label"], "probability": number(row["probabilities"][row["label"]])})
    table(shown, f"{path} at {mark}, {model}", wrap=True)


def answers(rows: list[dict[str, Any]], path: str, mark: str, model: str) -> None:
    """Each question with its answer highlighted in the context, and alternatives."""
    console = Console(highlight=False)
    console.print(escape(f"{path} at {mark}, {model}"), style="italic")
    for row in rows:
        console.print(f"\n[bold]{escape(row['question'])}[/]")
        if row["answer"]:
            context, start, end = row["context"], row["start"], row["end"]
            before, after = context[max(0, start - AROUND) : start], context[end : end + AROUND]
            left, right = "…" * (start > AROUND), "…" * (end + AROUND < len(context))
            console.print(f"  {left}{escape(before)}[bold green]{escape(row['answer'])}[/]{escape(after)}{right}")
            console.print(f"  characters {start} to {end}, probability {row['probability']:.2f}")
        else:
            console.print("  [yellow]no answer in the text[/]")
        others = [o for o in row["alternatives"] if o["start"] != row["start"] or o["end"] != row["end"]]
        listed = "; ".join(f"{escape(str(o['answer']))} ({o['probability']:.2f})" for o in others)
        also = f"; also: {listed}" if listed else ""
        limit = f"(threshold {row['threshold']:.2f})"
        console.print(f"  no answer against the best answer: {row['no_answer']:.2f} {limit}{also}", style="dim")


def league(rows: list[dict[str, Any]], metric: str) -> None:
    """All models of some runs, best held-out score first."""
    shown = [
        {
            "model": row["model"],
            "": "◆" if row["front"] else "",
            "run": row["run"],
            "epochs": row["epoch"],
            f"held-out {metric} [95%]": interval(Score(**row["held_out"])),
            f"dev {metric}": number(row["dev"]["value"]),
            "parameters": row["parameters"],
            "seconds": round(row["seconds"]),
        }
        for row in rows
    ]
    table(shown, f"by held-out {metric}", "◆ no model with as few parameters scores higher")


def analyses(found: Iterable[tuple[str, str, Finding]]) -> None:
    """(run, analysis, table) of `bertvision analyse`; the run is empty if there is only one."""
    for run, name, one in found:
        _analysis(run, name, one)


def plan(found: Plan) -> None:
    table(found.modes)
    _say(found.why)


def _analysis(run: str, name: str, found: Finding) -> None:
    console = Console(highlight=False)
    console.print(f"\n[bold]{escape(f'{run}: ' if run else '')}{escape(found.title)}[/] [dim]({name})[/]")
    if found.note:
        console.print(f"[dim]{escape(found.note)}[/]")
    rows, left = found.rows[:MOST_ROWS], len(found.rows) - MOST_ROWS
    first, *others = rows[0]
    if [row[first] for row in rows] == others:  # a matrix: number its columns, whose names are too long
        numbers = {other: str(i) for i, other in enumerate(others, 1)}
        rows = [
            {first: f"{numbers[row[first]]} {row[first]}"} | {n: row[o] for o, n in numbers.items()} for row in rows
        ]
    table([{key: _short(value) for key, value in row.items()} for row in rows])
    if left > 0:
        console.print(f"[dim]... and {left} more rows: use --json to see all[/]")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"
    return value[: LONGEST - 1] + "…" if isinstance(value, str) and len(value) > LONGEST else value


def cut(path: str, found: Cut) -> None:
    """The model before and after its encoder was cut."""
    _say(f"{found.layers} of {found.of} layers kept: {path}")
    rows = []
    for name, side in (("before", found.before), ("after", found.after)):
        row = {"": name, "model": side.model, "score [95%]": interval(side.score)}
        row |= {"encoder parameters": f"{side.encoder_parameters:,}", "ms, one text": f"{side.milliseconds_alone:.1f}"}
        rows.append(row | {"ms per text, batch": f"{side.milliseconds_each_together:.1f}"})
    table(rows)


def table(rows: Sequence[Row], title: str = "", caption: str = "", wrap: bool = False) -> None:
    """Rows with the same keys. The first column is never wrapped, unless `wrap` is set."""
    board = Table(title=escape(title) or None, caption=caption or None)
    for position, (name, value) in enumerate(rows[0].items()):
        board.add_column(
            escape(name.replace("_", " ")),
            no_wrap=position == 0 and not wrap,
            overflow="fold",  # a narrow terminal wraps cells, so that nothing is lost
            justify="right" if isinstance(value, (int, Text)) else "left",
        )
    for row in rows:
        board.add_row(*(_cell(value) for value in row.values()))
    Console().print(board)


def _cell(value: Any) -> str | Text:
    if value is None:
        return "-"
    if isinstance(value, Text):
        return value
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
