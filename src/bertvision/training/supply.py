"""Make ready the states that heads are polished on, the way the planner or the user wants it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertvision.heads.base import Head
from bertvision.inference.extract import Origin, StoreOptions, write_store
from bertvision.prepare import Prepared
from bertvision.states.memory import collect, collect_tokens, token_budget
from bertvision.states.sources import Memory, Recompute, Source, Stored
from bertvision.stores.reader import open_store
from bertvision.training.planner import choose, depth_of, estimates, measure, work_of
from bertvision.types import TRAIN


@dataclass(frozen=True)
class Supply:
    mode: str
    source: Source
    rows: np.ndarray | None = None  # the training windows, if not all of them fit in memory


@contextmanager
def supplied(setting: Prepared, way: str, heads: dict[str, Head], mark: str, folder: Path) -> Iterator[Supply]:
    """States of the training examples while heads are polished on them. A temporary store is in `folder`."""
    label = f"{mark.replace('/', '-')}-{way}-"
    mode, seed = _mode(setting, way, heads, mark, folder, label), setting.recipe.seed
    if mode == "recompute":
        depth, encoded = depth_of(setting.shape, heads), setting.encoded[TRAIN]
        yield Supply(mode, Recompute(setting.encoder, encoded, setting.reads, seed, way=way, depth=depth))
    elif mode == "memory":
        yield _in_memory(setting, way, mark)
    else:
        options = StoreOptions(str(folder / (label + mode)), dtype=mode)
        there = replace(setting, recipe=replace(setting.recipe, pairs=way))
        write_store(there, options, [TRAIN], Origin("", mark), {"encoder": ""}, "bertvision fit ... --resume")
        yield Supply(mode, Stored(open_store(options.out), TRAIN, seed))
        shutil.rmtree(folder)


def _mode(setting: Prepared, way: str, heads: dict[str, Head], mark: str, folder: Path, label: str) -> str:
    """memory, fp16, int8 or recompute."""
    recipe = setting.recipe
    if recipe.mode in ("memory", "recompute"):
        return recipe.mode
    begun = [mode for mode in ("fp16", "int8") if (folder / (label + mode)).exists()]
    if begun:
        return begun[0]  # before the run was interrupted
    frozen = recipe.freeze == "all" or recipe.fractions()[-1] == 0
    if recipe.mode == "auto" and not frozen and _fits(setting):
        return "memory"  # nothing to measure: states are read once, and the next mark has other states
    folder.mkdir(parents=True, exist_ok=True)
    found = estimates(work_of(setting, heads, way), measure(setting, heads, way, folder))
    chosen = choose(found, recipe.mode)
    listed = ", ".join(f"{e.mode} {e.seconds:,.0f} s{f' ({e.obstacle})' if e.obstacle else ''}" for e in found)
    setting.progress.say(f"mark {mark} ({way}): states from {chosen.mode}; estimates: {listed}")
    return chosen.mode


def _fits(setting: Prepared) -> bool:
    return not setting.shape.span or len(setting.windows[TRAIN].tokens) <= token_budget(setting.encoder)


def _in_memory(setting: Prepared, way: str, mark: str) -> Supply:
    encoded, encoder, seed = setting.encoded[TRAIN], setting.encoder, setting.recipe.seed
    with setting.progress.bar(f"mark {mark}: states ({way})", len(encoded)) as bar:
        if not setting.shape.span:
            return Supply("memory", Memory(collect(encoder, encoded, setting.reads, way, bar.tick), seed))
        tokens = collect_tokens(encoder, encoded, seed, bar.tick)
    if len(tokens) < len(encoded):
        setting.progress.say(f"polish: token states of {len(tokens)} of {len(encoded)} windows fit in memory")
    return Supply("memory", Memory(tokens, seed), tokens.rows)
