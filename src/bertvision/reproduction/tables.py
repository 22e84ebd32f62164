"""The paper's tables beside ours, and pictures of them."""

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
from bertvision.reproduction.pictures import PAPER, Figure
from bertvision.reproduction.plan import Plan, mean_difference, mean_score
from bertvision.runs import Run
from bertvision.training.checkpoints import POLISHED

Found = list[Table | Figure]

ROLES = ("encoder", "best head", "ensemble (max)", "ensemble (greedy)", "selected")


def squad2(plan: Plan, progress: Progress) -> Found:
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
                row[f"F1 {mark}, paper"] = _plain(theirs[1] if theirs else None)
                row[f"F1 {mark}, ours"] = _said(mean_score(runs, mark, head, "f1"))
                row[f"found F1 {mark}, ours"] = _said(mean_score(runs, mark, head, "found_f1"))
        rows.append(row)
    note = "Found F1: of the best span of answerable questions, withheld or not." + _correlations(runs, marks)
    return [
        Table("Span heads", note, rows),
        figures.span_heads(runs, "1" if "1" in marks else marks[-1]),
        _ensembles(runs, marks, ("exact", "f1", "found_f1"), paper.SPAN_ENSEMBLES),
        figures.over_fine_tuning("squad2", runs, marks, "f1", paper.SPAN_ENSEMBLES),
        *_claims(runs, marks, ("f1", "found_f1")),
        *_less_data(plan, runs, marks[0], progress),
        *_looked_into(runs, progress),
    ]


def answerable(plan: Plan, progress: Progress) -> Found:
    runs = plan.runs("squad2-answerable", ("1/5", "1", "3"), "paper,default", progress)
    marks = _marks(runs)
    rows = []
    for mark in marks:
        for model in ("encoder", "tenney-small", "best head", "ensemble (max)", "selected"):
            theirs = paper.ANSWERABLE.get(mark, {}).get(model)
            rows.append({"epochs": mark, "model": model,
                         "accuracy, paper": _plain(theirs[0] if theirs else None),
                         "accuracy, ours": _said(mean_score(runs, mark, model, "accuracy")),
                         "F1, paper": _plain(theirs[1] if theirs else None),
                         "F1, ours": _said(mean_score(runs, mark, model, "f1"))})  # fmt: skip
    note = "Best head, ensemble and selected: as held-out questions choose."
    picture = figures.over_fine_tuning("squad2-answerable", runs, marks, "accuracy", paper.ANSWERABLE)
    return [Table("Answerability", note, rows), picture, *_claims(runs, marks, ("accuracy",))]


def glue(plan: Plan, progress: Progress) -> Found:
    rows, gains = [], {}
    for task, (metric, encoder, head) in paper.GLUE.items():
        runs = plan.runs(task, ("3/10", "1"), "default", progress)
        mark = _marks(runs)[-1]
        gain = mean_difference(runs, mark, "encoder", "best head", metric)
        both = mean_difference(runs, mark, "encoder", "selected", metric)
        data = runs[0].info["data"]
        gains[task] = (gain, None if encoder is None or head is None else head - encoder)
        rows.append({
            "task": f"{task} ({metric})", "train rows": data["train"]["examples"],
            "encoder, paper": _plain(encoder), "head, paper": _plain(head),
            "encoder, ours": _said(mean_score(runs, mark, "encoder", metric)),
            "best head, ours": _said(mean_score(runs, mark, "best head", metric)),
            "selected, ours": _said(mean_score(runs, mark, "selected", metric)),
            "best head - encoder": _signed(gain), "selected - encoder": _signed(both),
        })  # fmt: skip
    note = f"Dev scores after {plan.epochs} epochs, {len(plan.seeds)} seeds; mnli: matched. Choices on held-out rows."
    return [Table("GLUE", note, rows), figures.gains(gains)]


EXPERIMENTS: dict[str, Callable[[Plan, Progress], Found]] = {
    "squad2": squad2,
    "squad2-answerable": answerable,
    "glue": glue,
}


def reproduce(what: str, plan: Plan, progress: Progress) -> Found:
    if what not in EXPERIMENTS:
        raise UserError(f"`bertvision reproduce {what}`: one of {', '.join(EXPERIMENTS)}.")
    found = EXPERIMENTS[what](plan, progress)
    return [one for one in found if (one.rows if isinstance(one, Table) else one.series)]


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
            said += f" Rank correlation with the paper at {mark}: {METRICS['spearman'].value(one, other, 1):.2f}."
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
    return Table("Ensembling", "Best head, ensembles and selected: as held-out questions choose.", rows)


def _claims(runs: list[Run], marks: list[str], metrics: tuple[str, ...]) -> list[Table]:
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
    return [Table("The paper's claims, here", "Differences with 95% intervals, paired over dev questions.", rows)]


def _less_data(plan: Plan, runs: list[Run], mark: str, progress: Progress) -> Found:
    """One head on shares of the data, three seeds each, in one pass over the states of the first mark."""
    head = f"{paper.LESS_DATA_HEAD}:data={'/'.join(f'{share * 100:.0f}' for share in paper.LESS_DATA)}:seed=0..2"
    made = [plan.on_states_of(run, mark, head, progress) for run in runs]
    labels = [label for label in made[0].info["parameters"] if label != "encoder"]
    ours = {
        metric: {
            share: mean_score(made, "0", [label for label in labels if parse(label).data == share], metric)
            for share in paper.LESS_DATA
        }
        for metric in ("f1", "found_f1")
    }
    rows = [
        {
            "data": f"{share:.0%}", "F1, paper (3/10)": _plain(printed[1]),
            f"F1, ours ({mark})": _said(ours["f1"][share]),
            f"found F1, ours ({mark})": _said(ours["found_f1"][share]),
        }
        for share, printed in paper.LESS_DATA.items()
    ]  # fmt: skip
    printed = {share: Score(both[1], both[1], both[1]) for share, both in paper.LESS_DATA.items()}
    picture = figures.less_data({"F1": ours["f1"], "found F1": ours["found_f1"], f"{PAPER}: F1": dict(printed)})
    return [Table("Less data", f"The head {paper.LESS_DATA_HEAD}, mean of three seeds.", rows), picture]


def _looked_into(runs: list[Run], progress: Progress) -> Found:
    """The paper's analyses, of the first seed: transfer, second answers, silence, lengths, layers."""
    run, last = runs[0], _marks(runs)[-1]
    found = analyse(f"{run.path}@{last}", ["transfer", "second", "shares", "overlap", "layers"], progress=progress)
    moved = []
    for table in found.get("transfer", []):
        early = table.rows[0]["trained at"]
        for row in table.rows:
            if row["trained at"] == early and row["asked at"] == last and row["head"].endswith(POLISHED):
                change = Score(row["change"], row["change low"], row["change high"])
                moved.append({"head": row["head"], "metric": row["metric"], f"asked at {last}": f"{row['value']:.3f}",
                              f"change from {early}": _verdict(change)})  # fmt: skip
    theirs = f"In the paper F1 rises from {paper.TRANSFER['3/10'][1]:.3f} to {paper.TRANSFER['1'][1]:.3f}."
    tables: Found = [Table("Heads trained early, asked later", theirs, moved)] if moved else []
    notes = {
        "second": f"In the paper {paper.SECOND_RIGHT:.0%} of second answers are right.",
        "shares": f"In the paper {paper.SILENT_ERRORS:.0%} of the head's errors on answerable questions are silence.",
    }
    for name in ("second", "shares", "overlap"):
        tables += [
            Table(t.title, f"{notes.get(name, '')} {t.note}".strip(), _rounded(t.rows)) for t in found.get(name, [])
        ]
    weights = [
        Table(table.title, f"{table.note} The paper: later layers are favoured.", _rounded([
            row for row in table.rows if row["epochs"] == last and row["head"].endswith(POLISHED)]))
        for table in found.get("layers", [])
    ]  # fmt: skip
    return [*tables, *weights, figures.layers(weights)]


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()} for row in rows]


def _count(runs: list[Run], head: str) -> str:
    counts = runs[0].info["parameters"]
    return f"{counts[head] / counts['encoder']:.3%}" if head in counts else "-"


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
