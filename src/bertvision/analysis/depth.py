"""Where to cut: how good heads are that read only the first layers, so that the others need not be computed."""

from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.analysis.probe import SEEDS, probe, summed, usual


@register("depth", "score against the number of layers that are computed, and where to cut", deep=True)
def depth(evidence: Evidence) -> list[Table]:
    rows = by_depth(evidence)
    within = smallest(rows, evidence.tolerance)
    note = (
        f"Heads on layers 0 to the depth, {SEEDS} seeds (mean, least, most). At each depth held-out examples choose"
        " between a trained and a solved head."
    )
    where = [{
        "tolerance in points": evidence.tolerance, "layers": within["depth"], "of": rows[-1]["depth"],
        "dev": within["value"], "dev at full depth": rows[-1]["value"],
    }]  # fmt: skip
    about = "The least depth whose held-out score is that close to the best; `bertvision cut` makes it."
    return [Table(f"{evidence.split} {evidence.metric} by depth", note, rows), Table("Where to cut", about, where)]


def by_depth(evidence: Evidence) -> list[dict[str, Any]]:
    """A row per number of computed layers, with the head that held-out examples choose there."""
    top = evidence.info["shape"]["layers"] - 1
    names = [usual(evidence)] if evidence.kind == "span" else [usual(evidence), "closed-form"]

    def compute() -> list[dict[str, Any]]:
        asked = {f"{name}:layers=0-{k}": k for k in range(top + 1) for name in names}
        seeds = {usual(evidence): f":seed=0..{SEEDS - 1}"}  # what is solved has none
        found = probe(evidence, [label + seeds.get(label.partition(":")[0], "") for label in asked])
        rows = []
        for k in range(top + 1):
            label = max((label for label in asked if asked[label] == k), key=lambda one: _held_out(found[one]))
            rows.append({"depth": k, "head": label.partition(":")[0], "held_out": _held_out(found[label]),
                         **summed(found[label], "dev")})  # fmt: skip
        return rows

    return evidence.kept("depth", compute)


def smallest(rows: list[dict[str, Any]], tolerance: float) -> dict[str, Any]:
    """The first row whose held-out score is within `tolerance` points (hundredths) of the best one's; an encoder keeps
    at least one layer."""
    least = max(row["held_out"] for row in rows[1:]) - tolerance / 100 - 1e-9  # .795 is within half a point of .8
    return next(row for row in rows[1:] if row["held_out"] >= least)


def _held_out(rows: list[dict[str, Any]]) -> float:
    return summed(rows, "held_out")["value"]
