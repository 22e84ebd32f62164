"""Scores over fine-tuning, over the amount of data, and costs."""

from fractions import Fraction
from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.records import ENCODER, WORDS, ModelName


@register("curve", "score of encoder, best head and ensembles over epochs of fine-tuning")
def curve(evidence: Evidence) -> list[Table]:
    rows = [
        {
            "epochs": mark.mark,
            "seconds": mark.seconds,
            "role": role,
            "model": model,
            "parameters": evidence.record.size(model),
            **mark.score(model, evidence.metric, evidence.split).as_dict(),
        }
        for mark in evidence.results.marks
        for role, model in mark.roles.items()
    ]
    note = (
        "Best head, ensembles and selected model are chosen on held-out examples at each mark. The time is that of the"
        " run up to the mark, including all heads and evaluations."
    )
    return [Table(f"{evidence.split} {evidence.metric} over fine-tuning", note, rows)]


@register("less-data", "score of heads trained on shares of the data (`--heads NAME:data=0..100`)")
def less_data(evidence: Evidence) -> list[Table]:
    rows: list[dict[str, Any]] = []
    for mark in evidence.results.marks:
        for name in map(ModelName.parse, mark.models):
            if "data=" not in name.label:
                continue
            score = mark.score(str(name), evidence.metric, evidence.split)
            seed, data = name.variant.seed or 0, name.variant.data
            head = str(name.without("data", "seed"))
            rows.append({"epochs": mark.mark, "head": head, "seed": seed, "data": data, **score.as_dict()})
    rows.sort(key=lambda row: (Fraction(row["epochs"]), row["head"], row["data"], row["seed"]))
    return [Table("Score by share of the training data", "Each share contains the smaller ones.", rows)]


@register("cost", "seconds, memory, parameters and disk")
def cost(evidence: Evidence) -> list[Table]:
    spent, counts = evidence.record.costs, evidence.record.parameters
    whole = []
    if spent is not None:
        whole.append(
            {
                "seconds": spent.seconds,
                "peak_memory_bytes": spent.peak_memory_bytes,
                "disk_bytes": spent.disk_bytes,
                "encoder_parameters": counts.get(ENCODER),
                "head_parameters": sum(count for name, count in counts.items() if name not in (ENCODER, WORDS)),
            }
        )
    parts = [
        {"epochs": mark.mark, "part": part.replace("_", " "), "seconds": seconds}
        for mark in evidence.results.marks
        for part, seconds in mark.costs.items()
    ]
    note = "Fine-tuning is counted from the start of the run, everything else from the mark before."
    return [Table("Cost of the run", "", whole), Table("Time by mark and part", note, parts)]
