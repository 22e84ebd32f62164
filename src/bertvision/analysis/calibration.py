"""Calibration: whether probabilities match frequencies, and the score if uncertain answers are withheld."""

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.errors import confidence
from bertvision.analysis.evidence import Evidence

BINS = 10
STATED = {
    "class": "Probability of the predicted class against the share that is right",
    "span": "Probability that there is an answer against the share that has one",
    "score": "Mean prediction against mean target, by tenths of the predictions",
}


@register("calibration", "predicted against observed frequencies in ten bins, and the expected calibration error")
def calibration(evidence: Evidence) -> list[Table]:
    rows, summary = [], []
    for role, model in evidence.roles.items():
        stated, actual = _stated(evidence, model)
        edges = np.linspace(0, 1, BINS + 1)[1:-1]
        if evidence.kind == "score":  # bins of equal numbers of examples
            edges = np.quantile(stated, edges)
        bins, gap = np.searchsorted(edges, stated, "right"), 0.0
        for number in np.unique(bins):
            inside = bins == number
            said, was = float(stated[inside].mean()), float(actual[inside].mean())
            gap += abs(said - was) * inside.mean()
            rows.append({"role": role, "stated": said, "actual": was, "examples": int(inside.sum())})
        summary.append({"role": role, "model": model, "expected calibration error": gap})
    note = f"{STATED[evidence.kind]}. A calibrated model is on the diagonal."
    about = "Mean distance between stated and actual over bins; lower is better."
    return [Table("Expected calibration error", about, summary), Table("Calibration", note, rows)]


def _stated(evidence: Evidence, model: str) -> tuple[np.ndarray, np.ndarray]:
    """What a model states of each example, and what is true, (N,) each."""
    if evidence.kind == "span":
        return 1 - evidence.said("nulls", model), evidence.targets.astype(float)
    if evidence.kind == "class":
        return evidence.outputs[model].max(1), evidence.right(model).astype(float)
    return evidence.outputs[model][:, 0], evidence.targets.astype(float)


@register("coverage", "score of the most confident answers, if the others are withheld", kinds=("class", "span"))
def coverage(evidence: Evidence) -> list[Table]:
    rows = []
    for role, model in evidence.roles.items():
        order = np.argsort(-confidence(evidence, model), kind="stable")
        quality = evidence.quality(model)[order]
        for share in np.linspace(0.1, 1, 10):
            kept = max(1, round(share * len(order)))
            rows.append({"role": role, "coverage": float(round(share, 2)), "score": float(quality[:kept].mean())})
    what = "F1" if evidence.kind == "span" else "Accuracy"
    return [Table("Risk and coverage", f"{what} on each model's most confident answers; 100% is all of them.", rows)]
