"""Cut an encoder short and refit heads on what is left: a smaller, faster model, as a run of its own."""

import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertvision.analysis.depth import by_depth, smallest
from bertvision.analysis.evidence import Evidence
from bertvision.backbones import encoder as backbone_family
from bertvision.errors import UserError
from bertvision.model import Model
from bertvision.options import fraction
from bertvision.progress import Progress
from bertvision.runs import Run, check, filling, partial_of, write_json
from bertvision.training import card
from bertvision.training.fit import fit
from bertvision.types import Examples

ALONE, TOGETHER = 40, 64  # texts asked one by one, and at once
ROUNDS = 3


def cut(
    reference: str | Path,
    layers: int | None = None,
    *,
    tolerance: float = 0.5,
    heads: str | None = None,
    epochs: str | float = "0",
    out: str | None = None,
    progress: Progress | None = None,
) -> Run:
    """A new run whose encoder has only the first `layers` of the old one's, or as few as lose no more than `tolerance`
    points on held-out examples; heads are fitted anew, after `epochs` more of fine-tuning."""
    progress, epochs = progress or Progress(), str(fraction("--epochs", str(epochs)))
    if tolerance < 0:
        raise UserError(f"--tolerance {tolerance} must not be negative.")
    evidence = Evidence(reference, tolerance, progress)
    examples = evidence.examples  # refuses stores, and data that has changed, before anything is made
    whole = evidence.info["shape"]["layers"] - 1
    if layers is None:
        layers = int(smallest(by_depth(evidence), tolerance)["depth"])
        if layers == whole:
            raise UserError(
                f"All {whole} layers are needed to stay within {tolerance} points. --layers cuts all the same."
            )
        progress.say(f"{layers} layers lose no more than {tolerance} points on held-out examples")
    path = Path(out) if out else evidence.run.path.with_name(f"{evidence.run.path.name}-{layers}-layers")
    begun = partial_of(path).exists()
    check(path, resume=begun)
    shape = evidence.run.record.shape
    encoder = backbone_family.load(evidence.encoder_folder, shape.outputs, 0, span=shape.span, pooled=shape.pooled)
    encoder.cut(layers)
    place = evidence.run.path / "cuts" / str(layers)
    with filling(place) as folder:
        encoder.save(folder)
    given = evidence.options.heads if evidence.entry["best_head"] else "default"
    options = replace(
        evidence.run.record.request, backbone=str(place), heads=heads or given, epochs=epochs, freeze=None, lead=None,
        budget=None, limit=evidence.options.limit, polish=None, marks="0" if epochs == "0" else None, out=str(path),
    )  # fmt: skip
    try:
        run = fit(options, resume=begun, progress=progress)
    except UserError:
        if not partial_of(path).exists():  # refused, not interrupted: nothing will go on from here
            shutil.rmtree(place.parent)
        raise
    info = run.info
    backbone = evidence.info.get("cut", evidence.options.as_dict())["backbone"]
    info["cut"] = {"from": str(reference), "backbone": backbone, "mark": evidence.mark, "layers": layers, "of": whole}
    info["cut"] |= beside(Model(reference), Model(run.path), examples)
    info["licence"] = evidence.info.get("licence")
    # The first mark has the encoder as it was cut: from here on the new run needs nothing of the old one.
    info["options"]["backbone"] = str(run.mark_folder("0") / "encoder")
    write_json(run.path / "run.json", info)
    card.write(run, run.path)
    shutil.rmtree(place.parent)
    return run


def beside(old: Model, new: Model, examples: Examples) -> dict[str, Any]:
    """Score, size and latency before and after, on the same dev texts; timed in turn, the best of a few rounds."""
    sides = {"before": old, "after": new}
    milliseconds: dict[str, dict[str, list[float]]] = {name: {"alone": [], "together": []} for name in sides}
    few, many = (examples.take(range(min(count, len(examples)))) for count in (ALONE, TOGETHER))
    for _ in range(ROUNDS):
        for name, model in sides.items():
            took = [_seconds(model, few.take([i])) for i in range(len(few))]
            milliseconds[name]["alone"].append(1000 * statistics.median(took))
            milliseconds[name]["together"].append(1000 * _seconds(model, many) / len(many))
    found: dict[str, Any] = {}
    for name, model in sides.items():
        entry = model.run.mark(model.mark)
        split = next((key for key in entry if key.startswith("dev")), "held_out")
        found[name] = {
            "model": model.name,
            "score": entry[split][model.name][model.run.scores["metric"]],
            "encoder_parameters": sum(p.numel() for p in model.encoder.parameters()),
            "milliseconds_alone": min(milliseconds[name]["alone"]),
            "milliseconds_each_together": min(milliseconds[name]["together"]),
        }
    return found


def _seconds(model: Model, examples: Examples) -> float:
    started = time.perf_counter()
    model.predict(examples.texts, examples.second_texts)
    return time.perf_counter() - started
