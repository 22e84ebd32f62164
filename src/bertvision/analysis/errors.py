"""Errors: which models share them, on which inputs, and how confident the models are."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.metrics import confusion_matrix

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import NEAR, Evidence
from bertvision.errors import UserError
from bertvision.metrics.glue import decide

SHOWN = 12  # examples per list of errors
MOST = 12  # models in a matrix


@register("overlap", "examples that encoder, best head, both or neither get right, and how long they are")
def overlap(evidence: Evidence) -> list[Table]:
    if "best head" not in evidence.roles:
        return []
    encoder, head = (evidence.right(evidence.roles[role]) for role in ("encoder", "best head"))
    groups = {
        "both right": encoder & head,
        "only the encoder": encoder & ~head,
        "only the head": ~encoder & head,
        "neither": ~encoder & ~head,
    }
    rows = []
    for label, chosen in groups.items():
        row: dict[str, Any] = {"right": label, "examples": int(chosen.sum()), "share": float(chosen.mean())}
        with suppress(UserError):  # the counts need no texts
            row["mean words"] = mean(evidence.words[chosen])
        if evidence.kind == "span":
            row["answerable"] = mean(evidence.targets[chosen])
        rows.append(row)
    right = {"span": "an exact match", "class": "the right class", "score": f"within {NEAR:.0%} of the range of scores"}
    title = f"Error overlap: encoder and {evidence.roles['best head']}"
    return [Table(title, f"Right means {right[evidence.kind]}.", rows)]


@register("disagreement", "how often any two models answer differently")
def disagreement(evidence: Evidence) -> list[Table]:
    def score(model: str) -> float:
        return evidence.mark_record.score(model, evidence.metric).value

    chosen = list(dict.fromkeys([*evidence.roles.values(), *sorted(evidence.outputs, key=score, reverse=True)]))[:MOST]
    answers = {model: _decided(evidence, model) for model in chosen}

    def differ(one: str, other: str) -> float:
        if evidence.kind == "score":
            return float((np.abs(answers[one] - answers[other]) > NEAR).mean())
        return float((answers[one] != answers[other]).mean())

    rows = [{"model": one} | {other: differ(one, other) for other in chosen} for one in chosen]
    about = f"more than {NEAR:.0%} of the range apart" if evidence.kind == "score" else "that differ"
    return [Table("Disagreement between models", f"Share of {evidence.split} answers {about}.", rows)]


def _decided(evidence: Evidence, model: str) -> np.ndarray:
    """(N,) answers to compare; scores in units of the targets' range."""
    if evidence.kind == "span":
        return evidence.said("answers", model)
    values = decide(evidence.outputs[model])
    return values if evidence.kind == "class" else values / (np.ptp(evidence.targets) or 1)


@register("confusion", "confusion matrix of encoder and selected model", kinds=("class",))
def confusion(evidence: Evidence) -> list[Table]:
    tables, labels = [], evidence.labels
    unknown = int((evidence.targets >= len(labels)).sum())
    left_out = f" {unknown} examples of classes that train lacks are left out." if unknown else ""
    for role in ("encoder", "selected"):
        model = evidence.roles[role]
        matrix = confusion_matrix(evidence.targets, decide(evidence.outputs[model]), labels=range(len(labels)))
        rows = [
            {"is": label}
            | {f"said {other}": int(count) for other, count in zip(labels, matrix[i], strict=True)}
            | {"right": float(matrix[i, i] / matrix[i].sum()) if matrix[i].any() else None}
            for i, label in enumerate(labels)
        ]
        tables.append(
            Table(f"Confusion: {role} ({model})", f"{evidence.split} examples by true class.{left_out}", rows)
        )
    return tables


@register("breakdown", "scores by length of the input, and by class, score or kind of question")
def breakdown(evidence: Evidence) -> list[Table]:
    groups: dict[str, np.ndarray] = {}
    if evidence.kind == "score":
        groups |= {f"score {edges}": inside for edges, inside in _parts(evidence.targets, 5).items()}
    else:
        groups |= {f"is {evidence.named(one)}": evidence.targets == one for one in np.unique(evidence.targets)}
    groups |= {f"{edges} words": inside for edges, inside in _parts(evidence.words, 4).items()}
    what = {"class": "Accuracy", "span": "F1", "score": f"Share within {NEAR:.0%} of the range"}[evidence.kind]
    return [Table("Score by group", f"{what} within groups of {evidence.split}.", grouped(evidence, groups))]


def _parts(values: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """About equal parts by value: "low to high" -> mask. Every example is in one part."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1), method="nearest"))
    found = {}
    for low, high in pairwise(edges):
        if high == edges[-1]:
            found[f"{low:g} to {high:g}"] = (values >= low) & (values <= high)
        else:
            found[f"{low:g} to below {high:g}"] = (values >= low) & (values < high)
    return found


def grouped(evidence: Evidence, groups: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A row per group (name -> mask) that has examples, with the mean quality of each role's model."""
    quality = {role: evidence.quality(model) for role, model in evidence.roles.items()}
    return [
        {"group": name, "examples": int(chosen.sum())}
        | {role: float(values[chosen].mean()) for role, values in quality.items()}
        for name, chosen in groups.items()
        if chosen.any()
    ]


@register("errors", "the most confident errors, with their texts")
def errors(evidence: Evidence) -> list[Table]:
    model = evidence.roles["selected"]
    wrong = np.flatnonzero(~evidence.right(model))
    order = wrong[np.argsort(-confidence(evidence, model)[wrong], kind="stable")][:SHOWN]
    examples = evidence.examples
    rows = []
    for i in order:
        row: dict[str, Any] = {"text": examples.texts[i]}
        if examples.second_texts is not None:
            row["second text"] = examples.second_texts[i]
        rows.append(row | _answer(evidence, model, int(i)))
    note = {
        "span": "Ordered by the probability that there is (or is not) an answer.",
        "class": "Ordered by probability.",
        "score": "Ordered by distance from the target.",
    }[evidence.kind]
    return [Table(f"Most confident errors of {model}", note, rows)]


def _answer(evidence: Evidence, model: str, i: int) -> dict[str, Any]:
    """The right and the given answer to one example."""
    if evidence.kind == "span":
        assert evidence.examples.questions is not None
        right = [answer.text for answer in evidence.examples.questions.answers[i]]
        said, null = evidence.said("answers", model)[i], float(evidence.said("nulls", model)[i])
        return {"is": right[0] if right else "", "said": said, "no answer": null}
    target, values = evidence.targets[i], evidence.outputs[model]
    if evidence.kind == "class":
        chosen = int(decide(values)[i])
        probability = float(values[i, chosen])
        return {"is": evidence.named(target), "said": evidence.labels[chosen], "probability": probability}
    return {"is": float(target), "said": float(values[i, 0])}


def confidence(evidence: Evidence, model: str) -> np.ndarray:
    """(N,) what errors are ordered by; for scores the distance from the target."""
    if evidence.kind == "span":
        nulls = evidence.said("nulls", model)
        return np.where(evidence.said("answers", model) == "", nulls, 1 - nulls)
    values = evidence.outputs[model]
    return values.max(1) if evidence.kind == "class" else np.abs(values[:, 0] - evidence.targets)


def mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
