"""Which layers matter: learned weights, the score of each layer alone, and the score without it."""

from typing import Any

from bertvision.analysis import Table, register
from bertvision.analysis.evidence import Evidence
from bertvision.analysis.probe import SEEDS, probe, summed, usual
from bertvision.records import ModelName


@register("layers", "learned layer weights, and the score of each layer alone, from the run's own heads")
def layers(evidence: Evidence) -> list[Table]:
    weights, alone = [], []
    for mark in evidence.results.marks:
        for name, values in ((ModelName.parse(label), values) for label, values in mark.layer_weights.items()):
            head, seed = str(name.without("seed")), name.variant.seed or 0
            for layer, weight in name.by_layer(values).items():
                weights.append({"epochs": mark.mark, "head": head, "seed": seed, "layer": layer, "weight": weight})
        for name, values in ((ModelName.parse(label), values) for label, values in mark.layer_profiles.items()):
            for layer, value in name.by_layer(values).items():
                alone.append({"epochs": mark.mark, "head": name.label, "layer": layer, "value": value})
    weighed = "Softmax weights of heads with normalised states; weights of other heads cannot be compared."
    solved = "Ridge regression on one layer, leave-one-out on train: correlation, or accuracy for classes."
    return [Table("Learned layer weights", weighed, weights), Table("Each layer alone", solved, alone)]


@register("without-layer", "score of a head that reads all layers but one, for each layer", deep=True)
def without_layer(evidence: Evidence) -> list[Table]:
    name, count = usual(evidence), evidence.record.shape.layers

    def compute() -> list[dict[str, Any]]:
        chosen = {"none": f"{name}:layers=0-{count - 1}"}
        for layer in range(count):
            rest = "+".join(str(i) for i in range(count) if i != layer)
            chosen[str(layer)] = f"{name}:layers={rest}"
        found = probe(evidence, [f"{label}:seed=0..{SEEDS - 1}" for label in chosen.values()])
        return [{"without": out, "head": name, **summed(found[label], "dev")} for out, label in chosen.items()]

    rows = evidence.kept("without-layer", compute)
    note = f"Mean, minimum and maximum of {SEEDS} seeds, on the states of the encoder at {evidence.mark} epochs."
    return [Table(f"{evidence.split} {evidence.metric} without one layer", note, rows)]
