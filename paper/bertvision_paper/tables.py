"""The paper's experiments: its tables and figures, with our results beside them."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from bertvision.analysis import Table
from bertvision.analysis.conduct import analyse
from bertvision.errors import UserError
from bertvision.heads.variants import parse
from bertvision.metrics.glue import METRICS
from bertvision.metrics.intervals import Score
from bertvision.progress import Progress
from bertvision.records import ENCODER, ModelName
from bertvision_paper import paper
from bertvision_paper.drawing import OURS, PAPER, Figure, Point, Series
from bertvision_paper.paper import EARLY, LATE, Pair
from bertvision_paper.plan import Plan, Replicates, on_states_of

Shown = list[Table | Figure]

ROLES = ("encoder", "best head", "ensemble (max)", "ensemble (greedy)", "selected")
CHOSEN = "Best head, ensembles and selected model are chosen on held-out examples."
NAMES = {"accuracy": "accuracy", "exact": "exact", "f1": "F1", "found_f1": "found F1"}  # of metrics


def squad2(plan: Plan, progress: Progress) -> Shown:
    heads = "paper,adapter-64-normalised,adapter-64-ngram,learned-pooling-normalised"
    runs = plan.runs("squad2", (EARLY, LATE, "2"), heads, progress)
    metrics = ("exact", "f1", "found_f1")
    return [
        *_span_heads(runs, metrics),
        *_over_fine_tuning("Ensembling", runs, metrics, paper.SPAN_ENSEMBLES, ROLES[:4]),
        _claims(runs, ("f1", "found_f1")),
        *_less_data(runs, progress),
        *_analyses(runs, progress),
    ]


def answerable(plan: Plan, progress: Progress) -> Shown:
    runs = plan.runs("squad2-answerable", paper.ANSWERABLE, "paper,default", progress)
    drawn = ("encoder", "tenney-small", "best head", "ensemble (greedy)")
    shown = _over_fine_tuning("Answerability", runs, ("accuracy", "f1"), paper.ANSWERABLE, drawn)
    return [*shown, _claims(runs, ("accuracy",))]


def glue(plan: Plan, progress: Progress) -> Shown:
    rows: list[dict[str, Any]] = []
    gains: Series = {}
    for name, (metric, theirs) in paper.GLUE.items():
        task, split = ("mnli", "dev_mismatched") if name == "mnli-mm" else (name, "dev")
        runs = plan.runs(task, (EARLY, LATE), "default", progress)
        data = runs.record.data
        for mark in runs.marks:
            gains[name] = runs.difference(mark, "encoder", "best head", metric, split)  # the last mark's stays
            rows.append({
                "task": f"{name} ({metric})", "epochs": mark,
                "examples (train / dev)": f"{data['train'].examples} / {data[split].examples}",
                "encoder / head, paper": _cell(theirs if mark == LATE else None),
                "encoder, ours": _cell(runs.score(mark, "encoder", metric, split)),
                "best head, ours": _cell(runs.score(mark, "best head", metric, split)),
                "best head - encoder": _cell(gains[name], "+"),
                "selected - encoder": _cell(runs.difference(mark, "encoder", "selected", metric, split), "+"),
            })  # fmt: skip
    figure = Figure("gains", "GLUE: best head - encoder", ("", "difference of dev scores"), joined=False)
    figure.add(OURS, gains)
    figure.add(PAPER, {name: theirs[1] - theirs[0] for name, (_, theirs) in paper.GLUE.items() if theirs})
    note = f"Dev scores, {runs.note}. {CHOSEN} The paper fine-tunes BERT-base for one epoch on all examples."
    return [Table("GLUE", note, rows), figure]


Experiment = Callable[[Plan, Progress], Shown]
EXPERIMENTS: dict[str, Experiment] = {"squad2": squad2, "squad2-answerable": answerable, "glue": glue}


def reproduce(what: str, plan: Plan, progress: Progress) -> Shown:
    """Run an experiment of the paper; returns tables and figures that are not empty."""
    if what not in EXPERIMENTS:
        raise UserError(f"`bertvision reproduce` needs one of {', '.join(EXPERIMENTS)}; got '{what}'.")
    shown = EXPERIMENTS[what](plan, progress)
    return [one for one in shown if (one.rows if isinstance(one, Table) else one.series)]


def _span_heads(runs: Replicates, metrics: tuple[str, ...]) -> Shown:
    """Every head of the paper, and how much the paper and we agree on their ranks."""
    rows = []
    for head, (share, *_) in paper.SPAN_HEADS.items():
        size = runs.record.size(head)
        if size is None:
            continue  # --heads asked for others
        row = {"head": head, "parameters, paper": f"{share}%"}
        row["parameters, ours"] = f"{size / runs.record.parameters[ENCODER]:.3%}"
        for mark in (mark for mark in paper.SPAN_SCORES if mark in runs.marks):
            row[f"exact / F1 {mark}, paper"] = _cell(paper.SPAN_SCORES[mark].get(head))
            for metric in metrics:
                row[f"{NAMES[metric]} {mark}, ours"] = _cell(runs.score(mark, head, metric))
        rows.append(row)
    note = "Found F1 is the F1 of the best span of answerable questions, even if it is withheld."
    last = LATE if LATE in runs.marks else EARLY
    figure = Figure("heads", f"Span heads, epochs: {last}", ("F1, paper", "found F1, ours"), joined=False)
    for mark, printed in paper.SPAN_SCORES.items():
        scores = {head: runs.score(mark, head, "found_f1") for head in printed}
        points = [Point(printed[head][1], score, head) for head, score in scores.items() if score is not None]
        if len(points) > 4:
            theirs, ours = np.array([(point.x, point.y.value) for point in points]).T
            value = METRICS["spearman"].value(theirs, ours, 1)
            note += f" Rank correlation of the paper's F1 and our found F1 at {mark}: {value:.2f}."
        if points and mark == last:
            figure.series["heads"] = points
    return [Table("Span heads", note, rows), figure]


def _over_fine_tuning(
    title: str, runs: Replicates, metrics: tuple[str, ...], printed: dict[str, dict[str, Pair]], drawn: tuple[str, ...]
) -> Shown:
    """A table of all models at every mark, and a figure of some. The paper prints the first two metrics."""
    rows = []
    for mark in runs.marks:
        theirs = printed.get(mark, {})
        for model in dict.fromkeys([*theirs, *ROLES]):
            ours = {metric: runs.score(mark, model, metric) for metric in metrics}
            if model in theirs or any(ours.values()):
                both = {f"{NAMES[metrics[0]]} / {NAMES[metrics[1]]}, paper": _cell(theirs.get(model))}
                both |= {f"{NAMES[metric]}, ours": _cell(score) for metric, score in ours.items()}
                rows.append({"epochs": mark, "model": model} | both)
    metric, epochs = runs.record.metric, {mark: float(Fraction(mark)) for mark in runs.marks}
    figure = Figure("over-fine-tuning", f"{runs.task}: over fine-tuning", ("epochs of fine-tuning", f"dev {metric}"))
    for model in drawn:
        pairs = {x: printed.get(mark, {}).get(model) for mark, x in epochs.items()}
        figure.add(f"{model}, {OURS}", {x: runs.score(mark, model, metric) for mark, x in epochs.items()})
        figure.add(f"{model}, {PAPER}", {x: pair and pair[metrics.index(metric)] for x, pair in pairs.items()})
    return [Table(title, f"{CHOSEN} Scores: {runs.note}.", rows), figure]


def _claims(runs: Replicates, metrics: tuple[str, ...]) -> Table:
    rows = []
    for claim, one, other in (
        ("head above encoder", "encoder", "best head"),
        ("ensemble (max) above encoder", "encoder", "ensemble (max)"),
        ("ensemble (max) above head", "best head", "ensemble (max)"),
        ("ensemble (greedy) above head", "best head", "ensemble (greedy)"),
    ):
        for metric in metrics:
            found = {mark: _verdict(runs.difference(mark, one, other, metric)) for mark in runs.marks}
            rows.append({"claim": claim, "metric": metric} | {f"epochs: {mark}": text for mark, text in found.items()})
    note = (
        f"Differences with 95% intervals, paired over dev questions; {runs.note}. The intervals do not include the"
        " variation between seeds."
    )
    return Table("The paper's claims, here", note, rows)


def _less_data(runs: Replicates, progress: Progress) -> Shown:
    """One head on shares of the data, all shares in one pass over the hidden states of each mark."""
    shares = [tenth / 10 for tenth in range(1, 11)]
    heads = f"{paper.LESS_DATA_HEAD}:data={'/'.join(f'{share:.0%}'.removesuffix('%') for share in shares)}"
    columns: dict[str, Series] = {}
    for mark, printed in paper.LESS_DATA.items():
        if mark in runs.marks:
            made = on_states_of(runs, mark, heads, progress)
            labels = {parse(label).data: label for label in made.record.parameters if label != ENCODER}
            columns[f"F1 at {mark}, {PAPER}"] = dict(zip(shares, printed, strict=True))
            for metric in ("f1", "found_f1"):
                scores: Series = {share: made.score("0", label, metric) for share, label in labels.items()}
                columns[f"{NAMES[metric]} at {mark}, {OURS}"] = scores
    figure = Figure("less-data", f"{paper.LESS_DATA_HEAD} with less data", ("share of the training questions", "F1"))
    for name, of in columns.items():
        figure.add(name, of)
    rows = [{"data": f"{share:.0%}"} | {name: _cell(of[share]) for name, of in columns.items()} for share in shares]
    note = (
        f"The head {paper.LESS_DATA_HEAD}, {runs.note}, on the encoder of each mark (which was fine-tuned on all of the"
        " data). Smaller shares train for as many steps, in smaller batches."
    )
    return [Table("Less data", note, rows if columns else []), figure]


def _analyses(runs: Replicates, progress: Progress) -> Shown:
    """The paper's analyses of the first seed: transfer, second answers, missing answers, lengths and layer weights."""
    early, last = runs.marks[0], runs.marks[-1]
    found = analyse(f"{runs.runs[0].path}@{early}", ["second", "shares", "overlap"], progress=progress)
    found |= analyse(f"{runs.runs[0].path}@{last}", ["transfer", "layers"], progress=progress)
    moved = []
    for row in (row for table in found.pop("transfer", []) for row in table.rows):
        if (row["trained at"], row["asked at"]) == (early, last) and ModelName.parse(row["head"]).polished:
            change = Score(row["change"], row["change low"], row["change high"])
            moved.append({"head": row["head"], "metric": row["metric"], f"score at {last}": f"{row['value']:.3f}",
                          f"change from {early}": _verdict(change)})  # fmt: skip
    shown: Shown = [Table("Heads trained early, used later", paper.ANALYSES["transfer"], moved)]
    figure = Figure("layers", "Learned weights of layers", ("layer (0: the embeddings)", "softmax weight"))
    for name, tables in found.items():
        for table in tables:
            rows = table.rows
            if name == "layers":
                rows = [row for row in rows if row["epochs"] == last and ModelName.parse(row["head"]).polished]
                _draw_layers(figure, rows)
            note = f"{paper.ANALYSES[name]} {table.note}" + f" Epochs: {early}." * (name in ("second", "overlap"))
            shown.append(Table(table.title, note, rows))
    return [*shown, figure]


def _draw_layers(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """The mean weight of each layer and its range over seeds."""
    weights: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        weights.setdefault(row["head"], {}).setdefault(row["layer"], []).append(row["weight"])
    for head, by_layer in weights.items():
        figure.add(head, {layer: Score(sum(v) / len(v), min(v), max(v)) for layer, v in by_layer.items()})


def _cell(found: Score | Pair | float | None, sign: str = "-") -> str:
    if found is None:
        return "-"
    if isinstance(found, Score):
        return f"{found.value:{sign}.3f} [{found.low:{sign}.3f}, {found.high:{sign}.3f}]"
    return f"{found[0]:.3f} / {found[1]:.3f}" if isinstance(found, tuple) else f"{found:.3f}"


def _verdict(found: Score | None) -> str:
    if found is None:
        return "-"
    return f"{'yes' if found.low > 0 else 'no' if found.high < 0 else 'not clear'}: {_cell(found, '+')}"
