"""Scores over fine-tuning, over the amount of data, and against what they cost."""

from fractions import Fraction

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence, roles_of
from bertvision.heads.variants import parse, without
from bertvision.training.checkpoints import POLISHED


@register("curve", "score of encoder, best head and ensembles over epochs of fine-tuning")
def curve(evidence: Evidence) -> list[Table]:
    rows = []
    for entry in evidence.scores["marks"]:
        found = entry.get(evidence.split, entry["held_out"])
        for role, model in roles_of(entry).items():
            rows.append({
                "epochs": entry["epoch"], "seconds": entry["seconds"], "role": role, "model": model,
                "parameters": evidence.info["parameters"].get(model.removesuffix(POLISHED)),
                **found[model][evidence.metric],
            })  # fmt: skip
    note = (
        "Best head, ensembles and selected are those that held-out examples chose at each mark. Seconds are those of"
        " the run up to there, with every head and every evaluation in it."
    )
    return [Table(f"{evidence.split} {evidence.metric} over fine-tuning", note, rows)]


@register("less-data", "score of heads that were trained on shares of the data (`--heads NAME:data=0..100`)")
def less_data(evidence: Evidence) -> list[Table]:
    rows = []
    for entry in evidence.scores["marks"]:
        for label, found in entry.get(evidence.split, entry["held_out"]).items():
            head = label.removesuffix(POLISHED)
            if "data=" not in head:
                continue
            variant = parse(head)
            name = without(head, "data", "seed") + label[len(head) :]
            rows.append({"epochs": entry["epoch"], "head": name, "seed": variant.seed or 0,
                         "data": variant.data, **found[evidence.metric]})  # fmt: skip
    rows.sort(key=lambda row: (Fraction(row["epochs"]), row["head"], row["data"], row["seed"]))
    return (
        [Table("How little data is enough", "Shares are nested: each contains the smaller ones.", rows)] if rows else []
    )


@register("cost", "seconds, memory, parameters and disk")
def cost(evidence: Evidence) -> list[Table]:
    spent, counts = evidence.info["costs"], evidence.info["parameters"]
    whole = [{
        "seconds": spent["seconds"], "peak_memory_bytes": spent["peak_memory_bytes"], "disk_bytes": spent["disk_bytes"],
        "encoder_parameters": counts.get("encoder"),
        "head_parameters": sum(value for name, value in counts.items() if name != "encoder"),
    }]  # fmt: skip
    parts = [{"epochs": entry["epoch"], "part": part.replace("_", " "), "seconds": seconds}
             for entry in evidence.scores["marks"] for part, seconds in entry["costs"].items()]  # fmt: skip
    note = "Fine-tuning is counted from the start of the run, all else is of that mark."
    return [Table("The whole run", "", whole), Table("Where the seconds went", note, parts)]
