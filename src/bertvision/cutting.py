"""Cut an encoder to its first layers and fit new heads on them: a smaller, faster model in a run of its own."""

import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path

from bertvision.analysis.depth import by_depth, smallest
from bertvision.analysis.evidence import Evidence
from bertvision.backbones import encoder as backbone_family
from bertvision.errors import UserError, disk_errors
from bertvision.inference.model import Model
from bertvision.locks import lock
from bertvision.options import fraction
from bertvision.progress import Progress
from bertvision.records import Cut, CutSide
from bertvision.runs import card
from bertvision.runs.directory import Run, check, filling, partial_of
from bertvision.training.fit import fit
from bertvision.types import Examples

ALONE, TOGETHER = 40, 64  # dev examples to time one by one, and in one call
ROUNDS = 3


def cut(
    reference: str | Path, depth: int | None = None, *, tolerance: float = 0.5, heads: str | None = None,
    epochs: str | float = "0", out: str | Path | None = None, progress: Progress | None = None,
) -> Run:  # fmt: skip
    """A new run on the first `depth` transformer layers of a run's encoder, with new heads. It is fine-tuned for
    `epochs` first.

    By default, the depth is the smallest that loses at most `tolerance` points (hundredths of the metric) on held-out
    examples, the heads are those of the run, and the name is RUN-K-layers.
    """
    progress, epochs = progress or Progress(), str(fraction("--epochs", str(epochs)))
    if tolerance < 0:
        raise UserError(f"--tolerance must not be negative; got {tolerance}.")
    evidence = Evidence(reference, tolerance, progress)
    examples = evidence.examples  # refuses runs without texts, and changed data, before anything is written
    old, depth = evidence.run.path, _depth(evidence) if depth is None else depth
    path = Path(out) if out else old.with_name(f"{old.name}-{depth}-layers")
    begun = path.name != "" and partial_of(path).exists()
    check(path, resume=begun)
    with lock(old / "cuts.lock", old / "cuts", "Wait for it."):
        run = _fitted(evidence, depth, path, begun, heads, epochs)
    made, record = run.record, evidence.run.record
    before = record.cut.backbone if record.cut else record.recipe.backbone
    both = sides(Model(reference), Model(run.path), examples)
    made.cut = Cut(str(reference), before, evidence.mark, depth, record.shape.layers - 1, *both)
    made.licence = record.licence
    # The first mark has the encoder as it was cut, so that the new run does not depend on the old one.
    backbone = str(run.mark_folder("0") / "encoder")
    made.request, made.recipe = replace(made.request, backbone=backbone), replace(made.recipe, backbone=backbone)
    made.write(run.path / "run.json")
    card.write(run, run.path)
    return run


def _fitted(evidence: Evidence, depth: int, path: Path, begun: bool, heads: str | None, epochs: str) -> Run:
    """A run on the shorter encoder, which is in a folder of the old run meanwhile."""
    old, record, folder = evidence.run, evidence.run.record, evidence.run.path / "cuts" / str(depth)
    given = record.request.heads if old.results.at(evidence.mark).best_head else "default"
    request = replace(
        record.request, backbone=str(folder), out=str(path), heads=heads or given, epochs=epochs, marks=None,
        budget=None, limit=record.recipe.limit,  # a budget may have set one
        freeze=None,  # it may count layers that were cut
        polish=record.request.polish or None,  # 0 would leave new heads untrained where there is no fine-tuning
    )  # fmt: skip
    try:
        with disk_errors("then try again."):
            _save(evidence, depth, folder)
        run = fit(request, resume=begun, progress=evidence.progress)
    except UserError:
        if not partial_of(path).exists():  # refused, not interrupted: there is nothing to resume
            shutil.rmtree(folder.parent, ignore_errors=True)
        raise
    shutil.rmtree(folder.parent)
    return run


def _depth(evidence: Evidence) -> int:
    """The smallest depth that is within the tolerance."""
    depth, whole = int(smallest(by_depth(evidence), evidence.tolerance)["depth"]), evidence.run.record.shape.layers - 1
    if depth == whole:
        raise UserError(f"Within {evidence.tolerance} points, all {whole} layers are needed. --depth cuts anyway.")
    evidence.progress.say(f"{depth} layers lose at most {evidence.tolerance} points on held-out examples")
    return depth


def _save(evidence: Evidence, depth: int, folder: Path) -> None:
    shape = evidence.run.record.shape
    encoder = backbone_family.load(evidence.encoder_folder, shape.outputs, 0, span=shape.span, pooled=shape.pooled)
    encoder.cut(depth)
    with filling(folder) as place:
        encoder.save(place)


def sides(old: Model, new: Model, examples: Examples) -> tuple[CutSide, CutSide]:
    """Score, size and latency of both models on the same dev examples, timed in turn; the fastest round counts."""
    alone: dict[Model, list[float]] = {old: [], new: []}
    together: dict[Model, list[float]] = {old: [], new: []}
    few, many = (examples.take(range(min(count, len(examples)))) for count in (ALONE, TOGETHER))
    for _ in range(ROUNDS):
        for model in (old, new):
            alone[model].append(statistics.median(_milliseconds(model, few.take([i])) for i in range(len(few))))
            together[model].append(_milliseconds(model, many) / len(many))

    def side(model: Model) -> CutSide:
        results, size = model.run.results, sum(p.numel() for p in model.encoder.parameters())
        score = results.at(model.mark).score(model.name, results.metric)
        return CutSide(model.name, score, size, min(alone[model]), min(together[model]))

    return side(old), side(new)


def _milliseconds(model: Model, examples: Examples) -> float:
    started = time.perf_counter()
    model.predict(examples.texts, examples.second_texts)
    return 1000 * (time.perf_counter() - started)
