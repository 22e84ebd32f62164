"""The paper's tables beside ours, and figures of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bertvision.analysis import Table
from bertvision.analysis.conduct import analyse
from bertvision.errors import UserError
from bertvision.heads.variants import parse
from bertvision.metrics.glue import METRICS
from bertvision.metrics.intervals import Score
from bertvision.progress import Progress
from bertvision.reproduction import figures, paper
from bertvision.reproduction.drawing import Figure
from bertvision.reproduction.plan import Plan, mean_difference, mean_score
from bertvision.runs import Run
from bertvision.training.checkpoints import POLISHED

Shown = list[Table | Figure]

ROLES = ("encoder", "best head", "ensemble (max)", "ensemble (greedy)", "selected")
CHOSEN = "Best head, ensembles and selected: as held-out examples choose."


def squad2(plan: Plan, progress: Progress) -> Shown:
    heads = "paper,adapter-64-normalised,adapter-64-ngram,learned-pooling-normalised"
    runs = plan.runs("squad2", ("3/10", "1", "2"), heads, progress)
    marks = _marks(runs)
    rows = []
    for head, (share, *printed) in paper.SPAN_HEADS.items():
        if head not in runs[0].info["parameters"]:
            continue  # --heads asked for others
        row: dict[str, Any] = {"head": head, "parameters, paper": f"{share}%", "ours": _count(runs, head)}
        for mark, theirs in zip(("3/10", "1"), printed, strict=True):
            if mark in marks:
                row[f"exact / F1 {mark}, paper"] = _both(theirs)
                exact = mean_score(runs, mark, head, "exact")
                row[f"exact {mark}, ours"] = _plain(exact.value if exact else None)
                row[f"F1 {mark}, ours"] = _said(mean_score(runs, mark, head, "f1"))
                row[f"found F1 {mark}, ours"] = _said(mean_score(runs, mark, head, "found_f1"))
        rows.append(row)
    note = "Found F1: of the best span of answerable questions, withheld or not." + _correlations(runs, marks)
    f1 = {mark: {model: both[1] for model, both in of.items()} for mark, of in paper.SPAN_ENSEMBLES.items()}
    return [
        Table("Span heads", note, rows),
        figures.span_heads(runs, marks),
        _ensembles(runs, marks, ("exact", "f1", "found_f1"), paper.SPAN_ENSEMBLES),
        figures.over_fine_tuning(runs, marks, "f1", ROLES[:4], f1),
        _claims(runs, marks, ("f1", "found_f1")),
        *_less_data(plan, runs, [mark for mark in marks if mark in ("3/10", "1")], progress),
        *_looked_into(runs, progress),
    ]


def answerable(plan: Plan, progress: Progress) -> Shown:
    runs = plan.runs("squad2-answerable", ("1/5", "1", "3"), "paper,default", progress)
    marks = _marks(runs)
    rows = []
    for mark in marks:
        printed = paper.ANSWERABLE.get(mark, {})
        for model in dict.fromkeys([*printed, *ROLES]):
            ours = mean_score(runs, mark, model, "accuracy")
            if ours is not None or model in printed:
                rows.append({"epochs": mark, "model": model, "accuracy / F1, paper": _both(printed.get(model)),
                             "accuracy, ours": _said(ours),
                             "F1, ours": _said(mean_score(runs, mark, model, "f1"))})  # fmt: skip
    theirs = {mark: {model: both[0] for model, both in of.items()} for mark, of in paper.ANSWERABLE.items()}
    models = ("encoder", "tenney-small", "best head", "ensemble (greedy)")
    return [
        Table("Answerability", CHOSEN, rows),
        figures.over_fine_tuning(runs, marks, "accuracy", models, theirs),
        _claims(runs, marks, ("accuracy",)),
    ]


def glue(plan: Plan, progress: Progress) -> Shown:
    rows: list[dict[str, Any]] = []
    gains: dict[str, Score | None] = {}
    for name, (metric, encoder, head) in paper.GLUE.items():
        task, split = ("mnli", "dev_mismatched") if name == "mnli-mm" else (name, "dev")
        runs = plan.runs(task, ("3/10", "1"), "default", progress)
        data = runs[0].info["data"]
        for mark in _marks(runs):
            gains[name] = mean_difference(runs, mark, "encoder", "best head", metric, split)  # in the end the last
            rows.append({
                "task": f"{name} ({metric})", "epochs": mark,
                "rows (train / dev)": f"{data['train']['examples']} / {data[split]['examples']}",
                "encoder / head, paper": _both((encoder, head) if mark == "1" and encoder and head else None),
                "encoder, ours": _said(mean_score(runs, mark, "encoder", metric, split)),
                "best head, ours": _said(mean_score(runs, mark, "best head", metric, split)),
                "best head - encoder": _signed(gains[name]),
                "selected - encoder": _signed(mean_difference(runs, mark, "encoder", "selected", metric, split)),
            })  # fmt: skip
    theirs = {name: head - encoder for name, (_, encoder, head) in paper.GLUE.items() if encoder and head}
    note = f"Dev scores; {_seeds(runs)}. {CHOSEN} The paper has one epoch of BERT-base on all rows."
    return [Table("GLUE", note, rows), figures.gains(gains, theirs)]


EXPERIMENTS: dict[str, Callable[[Plan, Progress], Shown]] = {
    "squad2": squad2,
    "squad2-answerable": answerable,
    "glue": glue,
}


def reproduce(what: str, plan: Plan, progress: Progress) -> Shown:
    if what not in EXPERIMENTS:
        raise UserError(f"`bertvision reproduce {what}`: one of {', '.join(EXPERIMENTS)}.")
    shown = EXPERIMENTS[what](plan, progress)
    return [one for one in shown if (one.rows if isinstance(one, Table) else one.series)]


def _marks(runs: list[Run]) -> list[str]:
    return [entry["epoch"] for entry in runs[0].scores["marks"]]


def _correlations(runs: list[Run], marks: list[str]) -> str:
    """How alike the paper and we rank the heads."""
    said = ""
    for i, mark in enumerate(("3/10", "1")):
        both = []
        for head, (_, *printed) in paper.SPAN_HEADS.items():
            theirs, ours = printed[i], mean_score(runs, mark, head, "found_f1") if mark in marks else None
            if theirs is not None and ours is not None:
                both.append((theirs[1], ours.value))
        if len(both) > 4:
            one, other = np.array(both).T
            value = METRICS["spearman"].value(one, other, 1)
            said += f" Rank correlation of the paper's F1 and our found F1 at {mark}: {value:.2f}."
    return said


def _ensembles(runs: list[Run], marks: list[str], metrics: tuple[str, ...], theirs: dict[str, Any]) -> Table:
    rows = []
    for mark in marks:
        for role in ROLES:
            printed = theirs.get(mark, {}).get(role)
            row: dict[str, Any] = {"epochs": mark, "model": role}
            for i, name in enumerate(("exact, paper", "F1, paper")):
                row[name] = _plain(printed[i] if printed else None)
            row |= {f"{metric}, ours": _said(mean_score(runs, mark, role, metric)) for metric in metrics}
            rows.append(row)
    return Table("Ensembling", f"{CHOSEN} {_seeds(runs)}.", rows)


def _claims(runs: list[Run], marks: list[str], metrics: tuple[str, ...]) -> Table:
    rows = []
    for claim, one, other in (
        ("head above encoder", "encoder", "best head"),
        ("ensemble (max) above encoder", "encoder", "ensemble (max)"),
        ("ensemble (max) above head", "best head", "ensemble (max)"),
        ("ensemble (greedy) above head", "best head", "ensemble (greedy)"),
    ):
        for metric in metrics:
            row: dict[str, Any] = {"claim": claim, "metric": metric}
            for mark in marks:
                row[f"{mark} epochs"] = _verdict(mean_difference(runs, mark, one, other, metric))
            rows.append(row)
    note = f"Differences with 95% intervals, paired over dev questions; {_seeds(runs)}, whose noise they leave out."
    return Table("The paper's claims, here", note, rows)


def _less_data(plan: Plan, runs: list[Run], marks: list[str], progress: Progress) -> Shown:
    """One head on shares of the data, in one pass over the states of each mark."""
    shares = "/".join(f"{share * 100:.0f}" for share in paper.LESS_DATA)
    ours: dict[str, dict[float, Score | None]] = {}
    for mark in marks:
        made = [plan.on_states_of(run, mark, f"{paper.LESS_DATA_HEAD}:data={shares}", progress) for run in runs]
        labels = {parse(label).data: label for label in made[0].info["parameters"] if label != "encoder"}
        for name, metric in (("F1", "f1"), ("found F1", "found_f1")):
            scores = {share: mean_score(made, "0", label, metric) for share, label in labels.items()}
            ours[f"{name} at {mark}"] = scores
    rows = [
        {"data": f"{share:.0%}"}
        | {f"F1 at {mark}, paper": _plain(printed[mark == "1"]) for mark in marks}
        | {f"{name}, ours": _said(found[share]) for name, found in ours.items()}
        for share, printed in paper.LESS_DATA.items()
    ]
    note = (
        f"The head {paper.LESS_DATA_HEAD}, {_seeds(runs)}, on the encoder as it was at each mark (it has seen all"
        " of the data). Smaller shares take as many steps, in smaller batches."
    )
    return [Table("Less data", note, rows), figures.less_data(ours, marks)]


def _looked_into(runs: list[Run], progress: Progress) -> Shown:
    """The paper's analyses, of the first seed: transfer, second answers, silence, lengths, layers."""
    marks = _marks(runs)
    early, last = marks[0], marks[-1]
    names = ["second", "shares", "overlap"]
    found = analyse(f"{runs[0].path}@{early}", names, progress=progress)
    found |= analyse(f"{runs[0].path}@{last}", ["transfer", "layers"], progress=progress)
    moved = []
    for table in found.get("transfer", []):
        for row in table.rows:
            if row["trained at"] == early and row["asked at"] == last and row["head"].endswith(POLISHED):
                change = Score(row["change"], row["change low"], row["change high"])
                moved.append({"head": row["head"], "metric": row["metric"], f"asked at {last}": f"{row['value']:.3f}",
                              f"change from {early}": _verdict(change)})  # fmt: skip
    theirs = f"In the paper F1 rises from {paper.TRANSFER['3/10'][1]:.3f} to {paper.TRANSFER['1'][1]:.3f}."
    shown: Shown = [Table("Heads trained early, asked later", theirs, moved)]
    notes = {
        "second": f"The paper, head at 3/10: {paper.SECOND_RIGHT:.0%} of second answers are right, of which"
        f" {paper.SECOND_ANSWERABLE:.0%} are of answerable questions; of right first answers"
        f" {paper.FIRST_ANSWERABLE:.0%} are.",
        "shares": f"The paper, head at 3/10: {paper.SILENT_ERRORS:.0%} of errors on answerable questions are silence.",
        "overlap": f"The paper at 3/10, mean tokens of what only one gets right: encoder {paper.ALONE_RIGHT[0]}, head"
        f" {paper.ALONE_RIGHT[1]}.",
    }
    for name in names:
        at = "" if name == "shares" else f" At {early} epochs."
        shown += [Table(t.title, f"{notes[name]}{at} {t.note}", _rounded(t.rows)) for t in found.get(name, [])]
    weights = [
        Table(table.title, f"{table.note} The paper: later layers are favoured.", _rounded([
            row for row in table.rows if row["epochs"] == last and row["head"].endswith(POLISHED)]))
        for table in found.get("layers", [])
    ]  # fmt: skip
    return [*shown, *weights, figures.layers(weights)]


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


def _seeds(runs: list[Run]) -> str:
    return "one seed" if len(runs) == 1 else f"means over {len(runs)} seeds"


def _count(runs: list[Run], head: str) -> str:
    counts = runs[0].info["parameters"]
    return f"{counts[head] / counts['encoder']:.3%}"


def _both(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{pair[0]:.3f} / {pair[1]:.3f}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _said(found: Score | None) -> str:
    return "-" if found is None else f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _signed(found: Score | None) -> str:
    return "-" if found is None else f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _verdict(found: Score | None) -> str:
    if found is None:
        return "-"
    return f"{'yes' if found.low > 0 else 'no' if found.high < 0 else 'not clear'}: {_signed(found)}"
