"""`train`: heads from a store alone. No encoder is loaded and no text is read."""

import shutil
import time
from pathlib import Path

import numpy as np
import torch

from bertvision.errors import Interrupted, UserError, disk_errors
from bertvision.heads.base import Head
from bertvision.heads.variants import build, parse
from bertvision.inference.evaluate import fed, stored_outputs
from bertvision.interrupts import Interrupts
from bertvision.options import Request
from bertvision.prepare import Setting, prepare_store
from bertvision.progress import Progress
from bertvision.records import Results
from bertvision.runs import card
from bertvision.runs import directory as runs
from bertvision.runs.checkpoints import save_mark
from bertvision.runs.directory import RESULTS, Run
from bertvision.runs.predictions import write_predictions
from bertvision.states.passes import default_device
from bertvision.states.sources import Stored
from bertvision.stores.reader import Store
from bertvision.training import marks, provenance
from bertvision.training.polish import Lesson, polish
from bertvision.types import HELD_OUT, TRAIN


def train(store: Store, request: Request, progress: Progress) -> Run:
    """One run from a store; the request says what is trained and how, the store says on what."""
    started = time.perf_counter()
    for split in (TRAIN, HELD_OUT):
        if split not in store.header.data:
            raise UserError(f"The store '{store.place}' has no training examples: extract it with --split train,dev.")
    setting = prepare_store(store, request, progress)
    if not setting.names:
        raise UserError("--heads: there is nothing to train.")
    heads = fed(build(setting.names, setting.shape, request.seed, default_device()), store, progress)
    path = Path(request.out) if request.out else runs.default_name(setting.dataset.task, f"{store.place}", False)
    runs.check(path, False)
    record = provenance.describe_stored(setting, store, heads)
    if not record.encoder_answered:
        progress.say("Imported states have no encoder logits: the baseline `encoder` is uniform.")
    with Interrupts() as interrupts, runs.start(path, False, not request.out) as run:
        try:
            with disk_errors("then try again; nothing was kept."):
                with progress.guarded(interrupts.check):
                    seconds = _train(setting, store, heads, run, started)
                record.costs = provenance.costs(time.perf_counter() - started, seconds, run)
                run.write(record)
                card.write(run, runs.whole_of(run.path))
        except KeyboardInterrupt:
            shutil.rmtree(run.path)
            raise Interrupted("Interrupted; nothing was kept.") from None
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        return runs.finish(run)


def _train(setting: Setting, store: Store, heads: dict[str, Head], run: Run, started: float) -> dict[str, float]:
    """Learn, answer, judge and record; returns the seconds of learning."""
    mark = store.header.source["mark"] or "0"
    seconds = _learn(setting, store, heads)
    made = marks.Answers({store.header.way: marks.Said(heads, stored_outputs(setting, store, heads))})
    verdict = marks.judge(setting, made, mark, {})
    save_mark(run, mark, None, verdict.heads, verdict.record.ways, verdict.ensembles)
    targets = {split: setting.targets(split) for split in setting.evaluated}
    write_predictions(run.predictions_file(mark), targets, verdict.predictions)
    verdict.record.seconds, verdict.record.costs = time.perf_counter() - started, seconds
    Results.of(setting.dataset.task, setting.metric, [verdict.record], verdict.record).write(run.path / RESULTS)
    return seconds


def _learn(setting: Setting, store: Store, heads: dict[str, Head]) -> dict[str, float]:
    """Train heads in place; returns the seconds spent on training and on waiting for the store."""
    recipe, kind, source = setting.recipe, setting.dataset.kind, Stored(store, TRAIN, setting.recipe.seed)
    rows = source.part.rows
    places = np.argsort(rows.window)  # windows in their own order, which is how a source numbers them
    targets = setting.scale.shrink(rows.targets[places]) if kind == "score" else torch.from_numpy(rows.targets[places])
    shares = any(parse(name).data < 1 for name in heads)
    ranks = torch.from_numpy(rows.rank[places]) if shares and rows.rank is not None else None
    with setting.progress.bar("train", source.steps(recipe.polish)) as bar:
        seconds = polish(heads, Lesson(source, targets, kind, ranks), recipe, bar.tick)
    share = seconds["wait"] / max(seconds["wait"] + seconds["train"], 1e-9)
    setting.progress.say(f"trained for {sum(seconds.values()):.0f} s, {share:.1%} of it waiting for the store")
    return seconds
