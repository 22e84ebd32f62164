"""Which layers matter: what heads learned to weigh, what each knows alone, and what is lost without it."""

from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.analysis.probe import SEEDS, probe, summed, usual
from bertvision.heads.variants import parse, without
from bertvision.training.checkpoints import POLISHED


@register("layers", "learned weights of layers, and how much each knows alone, as the run's own heads found")
def layers(evidence: Evidence) -> list[Table]:
    weights = learned_weights(evidence)
    tables = []
    if weights:
        note = (
            "Softmax weights of heads that read every layer with mean 0 and deviation 1; of others they mean nothing."
        )
        tables.append(Table("Learned weights of layers", note, weights))
    alone = [
        {"epochs": entry["epoch"], "head": head, "layer": layer, "value": value}
        for entry in evidence.scores["marks"]
        for head, values in ((label.removesuffix(POLISHED), v) for label, v in entry.get("layer_profiles", {}).items())
        for layer, value in zip(parse(head).layers or range(len(values)), values, strict=True)
    ]
    if alone:
        note = "Ridge regression on one layer, leave-one-out on train: correlation, or accuracy of classes."
        tables.append(Table("Each layer alone, in closed form", note, alone))
    return tables


def learned_weights(evidence: Evidence) -> list[dict[str, Any]]:
    """Of every mark, head and seed with normalised states and learned pooling."""
    rows = []
    for entry in evidence.scores["marks"]:
        for label, weights in entry.get("layer_weights", {}).items():
            head = label.removesuffix(POLISHED)
            variant = parse(head)
            for layer, weight in zip(variant.layers or range(len(weights)), weights, strict=True):
                rows.append({
                    "epochs": entry["epoch"], "head": without(head, "seed") + label[len(head) :],
                    "seed": variant.seed or 0, "layer": layer, "weight": weight,
                })  # fmt: skip
    return rows


@register("without-layer", "score of a head that reads all layers but one, for each of them", deep=True)
def without_layer(evidence: Evidence) -> list[Table]:
    name, count = usual(evidence), evidence.info["shape"]["layers"]

    def compute() -> list[dict[str, Any]]:
        chosen = {"none": f"{name}:layers=0-{count - 1}"}
        for layer in range(count):
            rest = "+".join(str(i) for i in range(count) if i != layer)
            chosen[str(layer)] = f"{name}:layers={rest}"
        found = probe(evidence, [f"{label}:seed=0..{SEEDS - 1}" for label in chosen.values()])
        return [{"without": out, "head": name, **summed(found[label], "dev")} for out, label in chosen.items()]

    note = (
        f"Mean of {SEEDS} seeds, with the least and the most; trained on the states of the encoder at {evidence.mark}."
    )
    return [
        Table(f"Without one layer: {evidence.split} {evidence.metric}", note, evidence.kept("without-layer", compute))
    ]
