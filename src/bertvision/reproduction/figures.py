"""What the pictures show: the paper's figures beside ours."""

from fractions import Fraction
from typing import Any

from bertvision.analysis import Table
from bertvision.metrics.intervals import Score
from bertvision.reproduction import paper
from bertvision.reproduction.pictures import PAPER, Figure, Point
from bertvision.reproduction.plan import mean_score
from bertvision.runs import Run


def over_fine_tuning(task: str, runs: list[Run], marks: list[str], metric: str, theirs: dict[str, Any]) -> Figure:
    """`theirs`: mark -> model -> its two printed scores, of which `metric` is the second, or the first of accuracy."""
    figure = Figure(f"{task}-over-fine-tuning", f"{task}: over fine-tuning", ("epochs of fine-tuning", f"dev {metric}"))
    for role in ("encoder", "best head", "ensemble (greedy)"):
        scores = [(mark, mean_score(runs, mark, role, metric)) for mark in marks]
        _add(figure, role, [(_epochs(mark), score) for mark, score in scores])
    for model in dict.fromkeys(model for printed in theirs.values() for model in printed):
        printed = [(_epochs(mark), theirs[mark][model]) for mark in theirs if mark in marks and model in theirs[mark]]
        _add(figure, f"{PAPER}: {model}", [(x, _exactly(both[metric != "accuracy"])) for x, both in printed])
    return figure


def span_heads(runs: list[Run], mark: str) -> Figure:
    """Each head by what the paper prints of it and what it finds here."""
    figure = Figure("squad2-heads", f"Span heads after {mark} epochs", ("F1, paper", "found F1, here"), joined=False)
    points = []
    for head, (_, *printed) in paper.SPAN_HEADS.items():
        theirs, ours = printed[mark == "1"], mean_score(runs, mark, head, "found_f1")
        if theirs is not None and ours is not None:
            points.append(Point(theirs[1], ours, head))
    if points:
        figure.series["heads"] = points
    return figure


def less_data(shares: dict[str, dict[float, Score | None]]) -> Figure:
    title = f"{paper.LESS_DATA_HEAD} with less data"
    figure = Figure("squad2-less-data", title, ("share of the training questions", "F1"))
    for name, found in shares.items():
        _add(figure, name, list(found.items()))
    return figure


def layers(tables: list[Table]) -> Figure:
    """Learned weights of layers; where there are several seeds, their mean and range."""
    figure = Figure("squad2-layers", "Learned weights of layers", ("layer (0: the embeddings)", "softmax weight"))
    for table in tables:
        for head in dict.fromkeys(row["head"] for row in table.rows):
            by_layer: dict[int, list[float]] = {}
            for row in table.rows:
                if row["head"] == head:
                    by_layer.setdefault(row["layer"], []).append(row["weight"])
            _add(figure, head, [(k, Score(sum(v) / len(v), min(v), max(v))) for k, v in by_layer.items()])
    return figure


def gains(found: dict[str, tuple[Score | None, float | None]]) -> Figure:
    """What the best head adds to the encoder, task by task: ours, and the paper's."""
    figure = Figure("glue-gains", "GLUE: best head - encoder", ("", "difference of dev scores"), joined=False)
    _add(figure, "here", [(task, ours) for task, (ours, _) in found.items()])
    _add(figure, PAPER, [(task, None if them is None else _exactly(them)) for task, (_, them) in found.items()])
    return figure


def _add(figure: Figure, name: str, scores: list[Any]) -> None:
    points = [Point(x, score) for x, score in scores if score is not None]
    if points:
        figure.series[name] = points


def _epochs(mark: str) -> float:
    return float(Fraction(mark))


def _exactly(value: float) -> Score:
    return Score(value, value, value)
