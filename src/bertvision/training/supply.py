"""Make ready the states that heads are polished on, the way the planner or the user wants it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bertvision.heads.base import Head
from bertvision.stores.reader import open_store
from bertvision.training.collect import collect, collect_separate, collect_tokens, token_budget
from bertvision.training.extract import ExtractOptions, keep
from bertvision.training.heads import sequences_of
from bertvision.training.planner import choose, depth_of, estimates, measure, work_of
from bertvision.training.setting import Setting
from bertvision.training.sources import Collected, Recomputed, Source, Stored


@dataclass(frozen=True)
class Supply:
    mode: str
    source: Source
    heads: dict[str, Head]  # those that can be fed
    rows: np.ndarray | None = None  # the training windows, where not all of them fit in memory


@contextmanager
def supplied(setting: Setting, way: str, heads: dict[str, Head], mark: str, folder: Path) -> Iterator[Supply]:
    """States of the train part while heads are polished on them; on disk they lie in `folder`, for so long."""
    label = f"{mark.replace('/', '-')}-{way}-"
    mode, seed = _mode(setting, way, heads, mark, folder, label), setting.options.seed
    if mode == "recompute":
        depth, encoded = depth_of(setting.shape, heads), setting.encoded["train"]
        source = Recomputed(setting.encoder, encoded, way, setting.shape, sequences_of(heads), depth, seed)
        yield Supply(mode, source, heads)
    elif mode == "memory":
        yield _in_memory(setting, way, heads, mark)
    else:
        views = "tokens" if setting.shape.span or sequences_of(heads) else "auto"
        there = replace(setting, options=replace(setting.options, pairs=way))
        options = ExtractOptions(str(folder / (label + mode)), dtype=mode, views=views)
        keep(there, options, ["train"], {"mark": mark}, {"encoder": ""}, "bertvision fit ... --resume")
        yield Supply(mode, Stored(open_store(options.out), seed), heads)
        shutil.rmtree(folder)


def _mode(setting: Setting, way: str, heads: dict[str, Head], mark: str, folder: Path, label: str) -> str:
    """memory, fp16, int8 or recompute."""
    options = setting.options
    if options.mode in ("memory", "recompute"):
        return options.mode
    begun = [mode for mode in ("fp16", "int8") if (folder / (label + mode)).exists()]
    if begun:
        return begun[0]  # before the run was interrupted
    frozen = options.freeze == "all" or options.fractions()[-1] == 0
    if options.mode == "auto" and not frozen and _fits(setting, heads):
        return "memory"  # nothing to find out: it is read once, and the next mark has other states
    folder.mkdir(parents=True, exist_ok=True)
    found = estimates(work_of(setting, heads, way), measure(setting, heads, way, folder))
    chosen = choose(found, options.mode)
    listed = ", ".join(f"{e.mode} {e.seconds:,.0f} s{f' ({e.obstacle})' if e.obstacle else ''}" for e in found)
    setting.progress.say(f"mark {mark} ({way}): states from {chosen.mode}; estimates: {listed}")
    return chosen.mode


def _fits(setting: Setting, heads: dict[str, Head]) -> bool:
    kept = setting.encoder.layers if setting.shape.span else len(sequences_of(heads))
    return not kept or len(setting.encoded["train"].together.tokens) <= token_budget(setting.encoder, kept)


def _in_memory(setting: Setting, way: str, heads: dict[str, Head], mark: str) -> Supply:
    encoded, encoder, seed = setting.encoded["train"], setting.encoder, setting.options.seed
    if not setting.shape.span and not _fits(setting, heads):
        out = ", ".join(name for name in heads if heads[name].sequences)
        setting.progress.say(f"polish: {out} left out, as every token's states do not fit in memory")
        heads = {name: head for name, head in heads.items() if not head.sequences}
    with setting.progress.bar(f"mark {mark}: states ({way})", len(encoded) * (2 if way == "separate" else 1)) as bar:
        if setting.shape.span:
            tokens = collect_tokens(encoder, encoded.together, seed, bar.tick)
            if len(tokens) < len(encoded):
                setting.progress.say(f"polish: token states of {len(tokens)} of {len(encoded)} windows fit in memory")
            return Supply("memory", Collected(tokens, seed), heads, tokens.rows)
        if way == "separate":
            states = collect_separate(encoder, encoded, bar.tick)
        else:
            states = collect(encoder, encoded.together, setting.shape.paired, bar.tick, sequences_of(heads))
    return Supply("memory", Collected(states, seed), heads)
