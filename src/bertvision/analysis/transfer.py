"""Heads trained at one mark, evaluated on the encoder's states at another."""

from typing import Any

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.backbones import encoder as encoders
from bertvision.backbones.tokenise import JOINT, SEPARATE, tokenise
from bertvision.inference.answer import Outputs, Target, answer
from bertvision.kinds import kinds
from bertvision.metrics.intervals import compare, measure
from bertvision.runs.checkpoints import load_heads
from bertvision.states.passes import Reads, clean_pass
from bertvision.types import HELD_OUT


@register("transfer", "every head of each mark, evaluated on the states of every other mark", deep=True)
def transfer(evidence: Evidence) -> list[Table]:
    if evidence.record.store is not None or len(evidence.results.marks) < 2:
        return []
    rows = evidence.kept("transfer", lambda: _matrix(evidence))
    note = (
        "Change is against the same head on the states it was trained on (paired bootstrap). Null thresholds are tuned"
        " for each pair of marks."
    )
    return [Table("Heads trained at one mark, evaluated at another", note, rows)]


def _matrix(evidence: Evidence) -> list[dict[str, Any]]:
    marks = [one.mark for one in evidence.results.marks]
    values = {asked: _values(evidence, marks, asked) for asked in marks}
    rows = []
    for asked in marks:
        for (name, trained), found in values[asked].items():
            own = values[trained][name, trained]
            for metric in (name for name in (evidence.metric, "found_f1") if name in evidence.record.metrics):
                change = compare(own, found, evidence.targets, metric, evidence.kind)
                rows.append({
                    "head": name, "trained at": trained, "asked at": asked, "metric": metric,
                    "value": measure(found, evidence.targets, metric, evidence.kind),
                    "change": change.value, "change low": change.low, "change high": change.high,
                })  # fmt: skip
    return rows


def _values(evidence: Evidence, marks: list[str], asked: str) -> dict[tuple[str, str], np.ndarray]:
    """(head, mark it was trained at) -> its predictions for the reported split, on the states of the mark `asked`."""
    record, shape, run = evidence.record, evidence.record.shape, evidence.run
    folder, target = run.mark_folder(asked) / "encoder", Target(record.kind, record.scale, shape)
    encoder = encoders.load(str(folder), shape.outputs, 0, span=shape.span, pooled=shape.pooled)
    loaded = {mark: load_heads(run.mark_folder(mark), shape, list(evidence.results.at(mark).ways)) for mark in marks}
    keys = {f"{name}@{mark}": (name, mark) for mark, (heads, _) in loaded.items() for name in heads}
    found: dict[tuple[str, str], np.ndarray] = {}
    thresholds: dict[str, float | None] = {}
    for split in (HELD_OUT, evidence.split):  # thresholds are tuned on held-out examples
        encoded = tokenise(encoder, evidence.parts[split], record.recipe, record.windowed)
        judge, outputs = kinds[record.kind].judge(evidence.parts[split], encoded.together, record.recipe), Outputs()
        for way in (JOINT, SEPARATE):
            heads = {key: loaded[mark][0][name] for key, (name, mark) in keys.items() if loaded[mark][1][name] == way}
            if heads:
                with evidence.progress.bar(f"states of {asked} ({split}, {way})", len(encoded)) as bar:
                    steps = clean_pass(encoder, encoded, Reads(shape.paired, shape.span), way=way)
                    outputs |= answer(steps, encoded.together, heads, target, bar.tick)
        for key, place in keys.items():
            said = judge.predictions(outputs[key], thresholds.get(key))
            thresholds[key], found[place] = said.threshold, said.values
    return found
