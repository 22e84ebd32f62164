"""Where models err: together or alone, on which inputs, and how surely."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import NEAR, Evidence
from bertvision.errors import UserError
from bertvision.metrics.glue import decide

SHOWN = 12  # examples per list of errors
MOST = 12  # models in a matrix


@register("overlap", "what encoder and best head each get right alone, and how long those inputs are")
def overlap(evidence: Evidence) -> list[Table]:
    roles = evidence.roles
    if "best head" not in roles:
        return []
    encoder, head = evidence.right(roles["encoder"]), evidence.right(roles["best head"])
    rows = []
    for label, chosen in (
        ("both right", encoder & head),
        ("only the encoder", encoder & ~head),
        ("only the head", ~encoder & head),
        ("neither", ~encoder & ~head),
    ):
        row: dict[str, Any] = {"right": label, "examples": int(chosen.sum()), "share": float(chosen.mean())}
        with suppress(UserError):  # without the texts the counts still say something
            row["mean words"] = float(evidence.words[chosen].mean()) if chosen.any() else None
        if evidence.kind == "span":
            row["answerable"] = float(evidence.targets[chosen].mean()) if chosen.any() else None
        rows.append(row)
    right = {"span": "exact match", "class": "the right class",
             "score": f"within {NEAR:.0%} of the range of scores"}[evidence.kind]  # fmt: skip
    return [Table(f"Error overlap: encoder and {roles['best head']}", f"Right means {right}.", rows)]


@register("disagreement", "how often each two models answer differently")
def disagreement(evidence: Evidence) -> list[Table]:
    metric, found = evidence.metric, evidence.entry[evidence.split]
    ranked = sorted(evidence.outputs, key=lambda name: -found[name][metric]["value"])
    chosen = list(dict.fromkeys([*evidence.roles.values(), *ranked]))[:MOST]

    def decided(model: str) -> np.ndarray:
        if evidence.kind == "span":
            return evidence.said("answers", model)
        values = decide(evidence.outputs[model])
        return values if evidence.kind == "class" else values / (np.ptp(evidence.targets) or 1)

    answers = {model: decided(model) for model in chosen}
    rows = []
    for one in chosen:
        row: dict[str, object] = {"model": one}
        for other in chosen:
            apart = (
                np.abs(answers[one] - answers[other]) > NEAR
                if evidence.kind == "score"
                else answers[one] != answers[other]
            )
            row[other] = float(apart.mean())
        rows.append(row)
    about = f"apart by more than {NEAR:.0%} of the range" if evidence.kind == "score" else "that differ"
    return [Table("Disagreement between models", f"Share of {evidence.split} answers {about}.", rows)]


@register("confusion", "which classes are taken for which", kinds=("class",))
def confusion(evidence: Evidence) -> list[Table]:
    tables = []
    for role in ("encoder", "selected"):
        model = evidence.roles[role]
        chosen = decide(evidence.outputs[model])
        rows = []
        for index, label in enumerate(evidence.labels):
            of_class = chosen[evidence.targets == index]
            counts = {f"said {other}": int((of_class == i).sum()) for i, other in enumerate(evidence.labels)}
            rows.append({"is": label, **counts, "right": float((of_class == index).mean()) if len(of_class) else None})
        tables.append(Table(f"Confusion: {role} ({model})", f"{evidence.split} examples by true class.", rows))
    return tables


@register("breakdown", "scores by length of the input, and by class, score or kind of question")
def breakdown(evidence: Evidence) -> list[Table]:
    groups: dict[str, np.ndarray] = {}
    if evidence.kind != "score":
        for target in np.unique(evidence.targets):
            groups[f"is {evidence.named(target)}"] = evidence.targets == target
    else:
        groups |= {f"score {edges}": inside for edges, inside in _parts(evidence.targets, 5).items()}
    groups |= {f"{edges} words": inside for edges, inside in _parts(evidence.words, 4).items()}
    rows = [row for name, chosen in groups.items() if (row := grouped(evidence, name, chosen))]
    what = {"class": "accuracy", "span": "F1", "score": f"share within {NEAR:.0%} of the range"}[evidence.kind]
    return [Table("Where each model is right", f"{what[0].upper()}{what[1:]} within groups of {evidence.split}.", rows)]


def _parts(values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """About equal parts by value, each example in one of them: "from to below" -> which."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1), method="nearest"))
    found = {}
    for low, high in pairwise(edges):
        last = high == edges[-1]
        found[f"{low:g} to {high:g}" if last else f"{low:g} to below {high:g}"] = (values >= low) & (
            (values <= high) if last else (values < high)
        )
    return found


def grouped(evidence: Evidence, name: str, chosen: np.ndarray) -> dict[str, object] | None:
    """One group's row: how right each role's model is there."""
    if not chosen.any():
        return None
    means = {role: float(evidence.quality(model)[chosen].mean()) for role, model in evidence.roles.items()}
    return {"group": name, "examples": int(chosen.sum()), **means}


@register("errors", "the surest mistakes, with their texts")
def errors(evidence: Evidence) -> list[Table]:
    model = evidence.roles["selected"]
    wrong = np.flatnonzero(~evidence.right(model))
    order = wrong[np.argsort(-surety(evidence, model)[wrong], kind="stable")][:SHOWN]
    examples = evidence.examples
    rows = []
    for i in order:
        row: dict[str, object] = {"text": examples.texts[i]}
        if examples.second_texts is not None:
            row["second text"] = examples.second_texts[i]
        if evidence.kind == "span":
            assert examples.questions is not None
            right = [answer.text for answer in examples.questions.answers[i]]
            row |= {"is": right[0] if right else "", "said": evidence.said("answers", model)[i],
                    "no answer": float(evidence.said("nulls", model)[i])}  # fmt: skip
        elif evidence.kind == "class":
            chosen = int(decide(evidence.outputs[model])[i])
            row |= {"is": evidence.named(evidence.targets[i]), "said": evidence.labels[chosen],
                    "probability": float(evidence.outputs[model][i, chosen])}  # fmt: skip
        else:
            row |= {"is": float(evidence.targets[i]), "said": float(evidence.outputs[model][i, 0])}
        rows.append(row)
    note = {"span": "The surest about whether there is an answer.", "class": "By probability.",
            "score": "The farthest from the truth."}[evidence.kind]  # fmt: skip
    return [Table(f"The surest mistakes of {model}", note, rows)] if rows else []


def surety(evidence: Evidence, model: str) -> np.ndarray:
    """(N,) what mistakes are ordered by, and what a user could refuse answers by."""
    if evidence.kind == "span":
        nulls = evidence.said("nulls", model)
        return np.where(evidence.said("answers", model) == "", nulls, 1 - nulls)
    values = evidence.outputs[model]
    return values.max(1) if evidence.kind == "class" else np.abs(values[:, 0] - evidence.targets)
