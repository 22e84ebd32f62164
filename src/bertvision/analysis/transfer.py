"""Heads trained at one mark, evaluated on the encoder's states at another."""

from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.backbones import encoder as backbone_family
from bertvision.heads.base import Head
from bertvision.metrics.intervals import compare, measure
from bertvision.training.answering import answer
from bertvision.runs.checkpoints import load_heads
from bertvision.training.collect import encode
from bertvision.training.judging import judge_of
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
    shape, scale, kind = evidence.record.shape, evidence.record.scale, evidence.kind
    marks = [one.mark for one in evidence.results.marks]
    parts = {name: evidence.parts[name] for name in (HELD_OUT, evidence.split)}
    metrics = [name for name in (evidence.metric, "found_f1") if name in evidence.record.metrics]
    values: dict[tuple[str, str, str], Any] = {}  # (head, trained at, asked at) -> predictions
    for asked in marks:
        folder = evidence.run.mark_folder(asked) / "encoder"
        encoder = backbone_family.load(str(folder), shape.outputs, 0, span=shape.span, pooled=shape.pooled).eval()
        heads: dict[tuple[str, str], Head] = {}
        ways: dict[tuple[str, str], str] = {}
        for trained in marks:
            plain = [name for name in evidence.results.at(trained).ways if not name.startswith("top-")]
            loaded, read = load_heads(evidence.run.mark_folder(trained), shape, plain)
            heads |= {(name, trained): head for name, head in loaded.items()}
            ways |= {(name, trained): way for name, way in read.items()}
        outputs: dict[str, dict[Any, Any]] = {}
        encoded = {
            name: encode(encoder, part, evidence.recipe, evidence.record.windowed) for name, part in parts.items()
        }
        with evidence.progress.bar(f"states of {asked}", sum(map(len, encoded.values()))) as bar:
            for split in parts:
                outputs[split] = {}
                for way in sorted(set(ways.values())):
                    chosen = {"@".join(key): head for key, head in heads.items() if ways[key] == way}
                    outputs[split] |= answer(encoder, encoded[split], way, chosen, shape, kind, scale,
                                             bar.tick if way == "joint" else lambda rows: None)  # fmt: skip
        judges = {
            split: judge_of(kind, part, encoded[split].together, evidence.recipe) for split, part in parts.items()
        }
        for name, trained in heads:
            label = f"{name}@{trained}"
            threshold = judges[HELD_OUT].threshold(outputs[HELD_OUT][label])
            values[name, trained, asked] = (
                judges[evidence.split].predictions(outputs[evidence.split][label], threshold).values
            )
    rows = []
    for (name, trained, asked), found in values.items():
        own = values[name, trained, trained]
        for metric in metrics:
            change = compare(own, found, evidence.targets, metric, kind)
            rows.append({"head": name, "trained at": trained, "asked at": asked, "metric": metric,
                         "value": measure(found, evidence.targets, metric, kind), "change": change.value,
                         "change low": change.low, "change high": change.high})  # fmt: skip
    return rows
