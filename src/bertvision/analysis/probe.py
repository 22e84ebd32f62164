"""Heads made for a question: trained on the states of a run's encoder as it is at one mark, all else as in the run."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertvision.analysis.evidence import Evidence
from bertvision.errors import Interrupted
from bertvision.heads.variants import parse, without
from bertvision.training.checkpoints import POLISHED
from bertvision.training.fit import fit

SEEDS = 3


def usual(evidence: Evidence) -> str:
    """The head that questions are asked with: normalised, so that layers weigh alike."""
    return "adapter-64-normalised" if evidence.kind == "span" else "adapter-64-views"


def probe(evidence: Evidence, heads: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """label without seed -> a row per seed: `seed`, `held_out`, `dev` (the task's metric)."""
    _ = evidence.parts  # heads trained on other data would say nothing of this run
    best = evidence.entry["best_head"]
    way = evidence.entry["pairs"].get(best, "joint") if evidence.info["shape"]["pairs"] else "auto"
    way = "joint" if evidence.info.get("windowed") else way
    with tempfile.TemporaryDirectory(dir=evidence.run.path, prefix="probe-") as folder:
        options = replace(
            evidence.run.record.request, backbone=evidence.encoder_folder, heads=",".join(heads), epochs="0", marks="0",
            budget=None, limit=evidence.options.limit, polish=None, pairs=way, out=f"{folder}/run",
        )  # fmt: skip
        try:
            scores = fit(options, progress=evidence.progress).scores
        except Interrupted:
            raise Interrupted("Interrupted; nothing of this analysis was kept.") from None
    found: dict[str, list[dict[str, Any]]] = {}
    entry = scores["marks"][0]
    for label in entry["pairs"]:
        head = label.removesuffix(POLISHED)
        name = without(head, "seed")
        values = {split: entry[split][label][evidence.metric]["value"] for split in ("held_out", evidence.split)}
        found.setdefault(name, []).append({"seed": parse(head).seed or 0, "held_out": values["held_out"],
                                           "dev": values[evidence.split]})  # fmt: skip
    return found


def summed(rows: list[dict[str, Any]], split: str) -> dict[str, float]:
    """Mean over seeds, and the least and the most of them."""
    values = [row[split] for row in rows]
    return {"value": float(np.mean(values)), "low": min(values), "high": max(values)}
