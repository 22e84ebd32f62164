"""`train`: heads from a store alone. No encoder is loaded; texts, if they are at hand, are read for `words` only."""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from bertvision.errors import Interrupted, UserError, disk_errors
from bertvision.heads.base import Head
from bertvision.heads.variants import build, parse
from bertvision.inference.answer import Outputs
from bertvision.inference.evaluate import fed, stored_outputs
from bertvision.interrupts import Interrupts
from bertvision.options import Request
from bertvision.prepare import Setting, parts_of, prepare_store, window_weights
from bertvision.progress import Progress
from bertvision.records import WORDS, Results
from bertvision.runs import card
from bertvision.runs import directory as runs
from bertvision.runs.checkpoints import save_mark, save_words
from bertvision.runs.directory import RESULTS, Run
from bertvision.runs.predictions import write_predictions
from bertvision.states.passes import default_device
from bertvision.states.sources import Stored
from bertvision.stores.reader import Store
from bertvision.tasks import load as load_task
from bertvision.training import marks, provenance
from bertvision.training.polish import Lesson, polish
from bertvision.types import HELD_OUT, TRAIN
from bertvision.words.model import Words, fit_words


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
    record, words = provenance.describe_stored(setting, store, heads), _words(setting, store)
    if words is not None:
        record.parameters[WORDS] = words.model.parameters
    if not record.encoder_answered:
        progress.say("Imported states have no encoder logits: the baseline `encoder` is uniform.")
    with Interrupts() as interrupts, runs.start(path, False, not request.out) as run:
        try:
            with disk_errors("then try again; nothing was kept."):
                with progress.guarded(interrupts.check):
                    seconds = _train(setting, store, heads, words, run, started)
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


@dataclass(frozen=True)
class _Told:
    """The model `words`, and what it says, by split."""

    model: Words
    outputs: Outputs


def _words(setting: Setting, store: Store) -> _Told | None:
    """Fitted on the texts that the store was made of, if they are at hand and unchanged."""
    request, header = setting.request, store.header
    if setting.shape.span or not request.words:
        return None
    try:
        if not any(name and Path(name).exists() for name in (request.data, request.train)):
            raise UserError("the files with the texts are not at hand")
        parts = parts_of(load_task(request), replace(request, folds="0"))
        if any(split not in parts or parts[split].digest() != part["sha256"] for split, part in header.data.items()):
            raise UserError("the texts have changed since the store was made")
    except UserError as error:
        setting.progress.say(f"without the model `words`: {error}")
        return None
    model = fit_words(parts[TRAIN], setting.dataset.kind, setting.dataset.outputs, setting.recipe.seed)
    return _Told(model, {split: model.outputs(parts[split]) for split in setting.evaluated})


def _train(
    setting: Setting, store: Store, heads: dict[str, Head], words: _Told | None, run: Run, started: float
) -> dict[str, float]:
    """Learn, answer, judge and record; returns the seconds of learning."""
    mark = store.header.source["mark"] or "0"
    seconds = _learn(setting, store, heads)
    outputs = stored_outputs(setting, store, heads)
    if words is not None:
        for split, said in words.outputs.items():
            outputs[split][WORDS] = said
        save_words(run, words.model)
    made = marks.Answers({store.header.way: marks.Said(heads, outputs)})
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
    weights = window_weights(rows.example[places], None, store.header.task["windowed"])
    with setting.progress.bar("train", source.steps(recipe.polish)) as bar:
        seconds = polish(heads, Lesson(source, targets, kind, ranks, weights), recipe, bar.tick)
    share = seconds["wait"] / max(seconds["wait"] + seconds["train"], 1e-9)
    setting.progress.say(f"trained for {sum(seconds.values()):.0f} s, {share:.1%} of it waiting for the store")
    return seconds
