"""How good heads are that read only the first layers, and how many layers an encoder needs."""

from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.analysis.probe import SEEDS, probe, summed, usual


@register("depth", "score by number of computed layers, and the smallest depth within --tolerance", deep=True)
def depth(evidence: Evidence) -> list[Table]:
    rows = by_depth(evidence)
    within = smallest(rows, evidence.tolerance)
    note = (
        f"Heads that read layers 0 to the depth: mean, minimum and maximum of {SEEDS} seeds. At each depth, held-out"
        " examples choose between a trained head and one in closed form."
    )
    where = {
        "tolerance in points": evidence.tolerance,
        "layers": within["depth"],
        "of": rows[-1]["depth"],
        "dev": within["value"],
        "dev at full depth": rows[-1]["value"],
    }
    about = "The smallest depth whose held-out score is within the tolerance of the best; `bertvision cut` uses it."
    return [Table(f"{evidence.split} {evidence.metric} by depth", note, rows), Table("Where to cut", about, [where])]


def by_depth(evidence: Evidence) -> list[dict[str, Any]]:
    """A row per number of computed layers, with the head that held-out examples choose there."""
    top = evidence.record.shape.layers - 1
    names = [usual(evidence)] if evidence.kind == "span" else [usual(evidence), "closed-form"]

    def compute() -> list[dict[str, Any]]:
        asked = {f"{name}:layers=0-{k}": k for k in range(top + 1) for name in names}
        seeds = {usual(evidence): f":seed=0..{SEEDS - 1}"}  # closed forms have no seed
        found = probe(evidence, [label + seeds.get(label.partition(":")[0], "") for label in asked])
        rows = []
        for k in range(top + 1):
            label = max((label for label in asked if asked[label] == k), key=lambda one: _held_out(found[one]))
            row = {"depth": k, "head": label.partition(":")[0], "held_out": _held_out(found[label])}
            rows.append(row | summed(found[label], "dev"))
        return rows

    return evidence.kept("depth", compute)


def smallest(rows: list[dict[str, Any]], tolerance: float) -> dict[str, Any]:
    """The first row, from one layer on, whose held-out score is within `tolerance` points (hundredths) of the best."""
    least = max(row["held_out"] for row in rows[1:]) - tolerance / 100 - 1e-9  # .795 is within half a point of .8
    return next(row for row in rows[1:] if row["held_out"] >= least)


def _held_out(rows: list[dict[str, Any]]) -> float:
    return summed(rows, "held_out")["value"]
