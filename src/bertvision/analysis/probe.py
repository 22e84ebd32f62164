"""Train heads on the states of a run's encoder at one mark, with the run's other options."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertvision.analysis.evidence import Evidence
from bertvision.errors import Interrupted
from bertvision.records import ModelName
from bertvision.training.fit import fit
from bertvision.types import HELD_OUT

SEEDS = 3


def usual(evidence: Evidence) -> str:
    """The head to probe with. It normalises states, so that layers have equal scale."""
    return "adapter-64-normalised" if evidence.kind == "span" else "adapter-64-views"


def probe(evidence: Evidence, heads: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """label without seed -> a row per seed: `seed`, `held_out`, `dev` (the task's metric)."""
    _ = evidence.parts  # raises if the data has changed: the heads would not be comparable with the run's
    record, mark = evidence.record, evidence.mark_record
    way = mark.ways.get(mark.best_head or "", "joint") if record.shape.paired else "auto"
    way = "joint" if record.windowed else way
    with tempfile.TemporaryDirectory(dir=evidence.run.path, prefix="probe-") as folder:
        request = replace(
            record.request, backbone=evidence.encoder_folder, heads=",".join(heads), epochs="0", marks="0",
            budget=None, limit=record.recipe.limit, polish=None, pairs=way, words=False, out=f"{folder}/run",
        )  # fmt: skip
        try:
            found = fit(request, progress=evidence.progress).results.marks[0]
        except Interrupted:
            raise Interrupted("Interrupted; nothing of this analysis was saved.") from None
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in map(ModelName.parse, found.ways):
        held_out, dev = (found.score(str(name), evidence.metric, split).value for split in (HELD_OUT, evidence.split))
        row = {"seed": name.variant.seed or 0, "held_out": held_out, "dev": dev}
        rows.setdefault(name.without("seed").label, []).append(row)
    return rows


def summed(rows: list[dict[str, Any]], split: str) -> dict[str, float]:
    """Mean, minimum and maximum over seeds."""
    values = [row[split] for row in rows]
    return {"value": float(np.mean(values)), "low": min(values), "high": max(values)}
