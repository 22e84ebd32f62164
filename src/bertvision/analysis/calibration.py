"""Do probabilities mean what they say, and what is gained by refusing the unsure answers?"""

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.errors import surety
from bertvision.analysis.evidence import Evidence

BINS = 10


@register("calibration", "stated against actual: reliability by tenths, and the mean gap (ECE)")
def calibration(evidence: Evidence) -> list[Table]:
    """Of classes, the probability of the answer given; of spans, that there is an answer; of scores, the score."""
    rows, summary = [], []
    for role, model in evidence.roles.items():
        stated, actual = _stated(evidence, model)
        if evidence.kind == "score":  # equal numbers of examples
            edges = np.quantile(stated, np.linspace(0, 1, BINS + 1)[1:-1])
        else:
            edges = np.linspace(0, 1, BINS + 1)[1:-1]
        bins, gap = np.searchsorted(edges, stated, "right"), 0.0
        for number in np.unique(bins):
            inside = bins == number
            said, was = float(stated[inside].mean()), float(actual[inside].mean())
            gap += abs(said - was) * inside.mean()
            rows.append({"role": role, "stated": said, "actual": was, "examples": int(inside.sum())})
        summary.append({"role": role, "model": model, "expected calibration error": gap})
    about = {"class": "probability of the class that was chosen against how often it was right",
             "span": "probability that there is an answer against how often there is one",
             "score": "mean prediction against mean truth, by tenths of the predictions"}[evidence.kind]  # fmt: skip
    note = f"{about[0].upper()}{about[1:]}. A perfect model lies on the diagonal."
    return [
        Table("Mean gap", "Between stated and actual: the lower the better.", summary),
        Table("Calibration", note, rows),
    ]


@register("coverage", "score of the surest answers, if the others are refused", kinds=("class", "span"))
def coverage(evidence: Evidence) -> list[Table]:
    rows = []
    for role, model in evidence.roles.items():
        order = np.argsort(-surety(evidence, model), kind="stable")
        quality = evidence.quality(model)[order]
        for share in np.linspace(0.1, 1, 10):
            kept = max(1, round(share * len(order)))
            rows.append({"role": role, "coverage": float(round(share, 2)), "score": float(quality[:kept].mean())})
    what = "F1" if evidence.kind == "span" else "Accuracy"
    return [Table("Risk and coverage", f"{what} on the surest answers of each model; 1 is all of them.", rows)]


def _stated(evidence: Evidence, model: str) -> tuple[np.ndarray, np.ndarray]:
    if evidence.kind == "span":
        return 1 - evidence.said("nulls", model), evidence.targets.astype(float)
    if evidence.kind == "class":
        return evidence.outputs[model].max(1), evidence.right(model).astype(float)
    return evidence.outputs[model][:, 0], evidence.targets.astype(float)
