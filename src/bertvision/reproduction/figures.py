"""What is drawn of a reproduction: the paper's figures beside ours."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from bertvision.analysis import Table
from bertvision.metrics.intervals import Score
from bertvision.reproduction import paper
from bertvision.reproduction.drawing import PAPER, Figure, Point
from bertvision.reproduction.plan import mean_score
from bertvision.runs import Run


def over_fine_tuning(
    runs: list[Run], marks: list[str], metric: str, models: Sequence[str], theirs: dict[str, dict[str, float]]
) -> Figure:
    """Ours, and what the paper prints of each model at the same marks."""
    task = runs[0].scores["task"]
    figure = Figure("over-fine-tuning", f"{task}: over fine-tuning", ("epochs of fine-tuning", f"dev {metric}"))
    for model in models:
        _add(figure, model, [(_epochs(mark), mean_score(runs, mark, model, metric)) for mark in marks])
    for model in models:
        printed = [(mark, theirs.get(mark, {}).get(model)) for mark in marks]
        _add(figure, f"{PAPER}: {model}", [(_epochs(mark), exactly(value)) for mark, value in printed])
    return figure


def span_heads(runs: list[Run], marks: list[str]) -> Figure:
    """Each head by what the paper prints of it and what it finds here, at the last mark that both have."""
    mark = next((mark for mark in ("1", "3/10") if mark in marks), None)
    figure = Figure("heads", f"Span heads after {mark} epochs", ("F1, paper", "found F1, here"), joined=False)
    for head, (_, early, late) in paper.SPAN_HEADS.items():
        theirs, ours = late if mark == "1" else early, mean_score(runs, mark, head, "found_f1") if mark else None
        if theirs is not None and ours is not None:
            figure.series.setdefault("heads", []).append(Point(theirs[1], ours, head))
    return figure


def less_data(ours: dict[str, dict[float, Score | None]], marks: Sequence[str]) -> Figure:
    """`ours`: what was measured -> share of the data -> score."""
    figure = Figure("less-data", f"{paper.LESS_DATA_HEAD} with less data", ("share of the training questions", "F1"))
    for name, found in ours.items():
        _add(figure, name, list(found.items()))
    for number, mark in enumerate(("3/10", "1")):
        if mark in marks:
            printed = [(share, exactly(both[number])) for share, both in paper.LESS_DATA.items()]
            _add(figure, f"{PAPER}: F1 at {mark}", printed)
    return figure


def layers(tables: list[Table]) -> Figure:
    """Learned weights of layers; of a head with several seeds their mean and range."""
    figure = Figure("layers", "Learned weights of layers", ("layer (0: the embeddings)", "softmax weight"))
    for table in tables:
        for head in dict.fromkeys(row["head"] for row in table.rows):
            by_layer: dict[int, list[float]] = {}
            for row in table.rows:
                if row["head"] == head:
                    by_layer.setdefault(row["layer"], []).append(row["weight"])
            _add(figure, head, [(k, Score(sum(v) / len(v), min(v), max(v))) for k, v in by_layer.items()])
    return figure


def gains(ours: dict[str, Score | None], theirs: dict[str, float]) -> Figure:
    """What the best head adds to the encoder, task by task."""
    figure = Figure("gains", "GLUE: best head - encoder", ("", "difference of dev scores"), joined=False)
    _add(figure, "here", list(ours.items()))
    _add(figure, PAPER, [(task, exactly(value)) for task, value in theirs.items()])
    return figure


def exactly(value: float | None) -> Score | None:
    return None if value is None else Score(value, value, value)


def _add(figure: Figure, name: str, scores: list[tuple[Any, Score | None]]) -> None:
    points = [Point(x, score) for x, score in scores if score is not None]
    if points:
        figure.series[name] = points


def _epochs(mark: str) -> float:
    return float(Fraction(mark))
