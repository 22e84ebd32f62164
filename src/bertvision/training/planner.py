"""Keep the states of a resting encoder in memory, on disk, or compute them again? Measure a little, then decide."""

import os
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bertvision.errors import UserError
from bertvision.heads.base import Head, Shape
from bertvision.options import Request
from bertvision.progress import Progress
from bertvision.states.hidden import views_of
from bertvision.stores.codec import bytes_per_row, codec
from bertvision.training.collect import MEMORY_SHARE, TOKEN_BYTES
from bertvision.training.heads import HeadTrainer, build, sequences_of
from bertvision.training.setting import Setting, prepare
from bertvision.training.sources import Recomputed

MODES = ("memory", "recompute", "fp16", "int8")  # the more exact, and what leaves the disk alone, first
SOLVING = 2  # passes that a head in closed form makes
TRIALS = 3  # batches that are measured, after one that is not
PROBE_BYTES = 32 * 2**20
CLOSE = 1.1
DISK_SHARE = 0.8  # of the free disk that a store may take


@dataclass(frozen=True)
class Work:
    """What is to be done: sizes of the data, of the encoder and of what is kept of it."""

    windows: int
    tokens: int
    epochs: int
    shape: Shape
    sequences: int = 0  # layers of which heads want every token, where an answer is per text
    depth: int | None = None  # the last layer that some head reads; None is the last of all
    solving: int = 0  # passes over the states before the first epoch, for heads in closed form

    def bytes(self, mode: str) -> int:
        """What the states take in this mode."""
        shape, views = self.shape, len(views_of(self.shape.paired))
        if mode == "recompute":
            return 0
        if mode == "memory":
            if shape.span:
                return self.tokens * shape.layers * shape.features * 2
            return (self.windows * shape.layers * views * 4 + self.tokens * self.sequences * 2) * shape.features
        rows = self.tokens if shape.span or self.sequences else self.windows * views
        return rows * bytes_per_row(mode, None, shape.layers, shape.features)

    def flops(self, depth: int | None = None) -> float:
        """Of one pass of the encoder's layers up to `depth`: matrix products of a usual layer, and attention."""
        shape, length = self.shape, self.tokens / max(self.windows, 1)
        layers = shape.layers - 1 if depth is None else depth
        return self.tokens * layers * (24 * shape.features**2 + 4 * length * shape.features)


@dataclass(frozen=True)
class Rates:
    """What this machine does in a second."""

    flops: float  # of the encoder's forward pass
    heads: float  # windows that all heads together learn from
    read: float  # bytes from disk
    write: float
    decode: dict[str, float]  # bytes of a number format made into float32
    memory: int  # free bytes
    disk: int


@dataclass(frozen=True)
class Estimate:
    mode: str
    seconds: float
    bytes: int
    obstacle: str = ""  # why it cannot be done

    def row(self) -> dict[str, str]:
        return {
            "mode": self.mode,
            "seconds": f"{self.seconds:,.0f}",
            "states": f"{self.bytes / 1e9:,.2f} GB" if self.bytes else "-",
            "": self.obstacle,
        }


def estimates(work: Work, rates: Rates) -> list[Estimate]:
    """What each mode would take, all epochs included."""
    forward = work.flops() / rates.flops
    passes = work.epochs + work.solving
    learning = work.epochs * work.windows / rates.heads
    found = []
    for mode in MODES:
        size, obstacle = work.bytes(mode), ""
        if mode == "recompute":
            seconds = passes * work.flops(work.depth) / rates.flops + learning
        elif mode == "memory":
            seconds = forward + learning
            most = min(TOKEN_BYTES, rates.memory * 2 // 3)
            tokens = work.tokens * work.sequences * work.shape.features * 2
            room = most if work.shape.span or tokens > most else int(rates.memory * MEMORY_SHARE)
            obstacle = f"only {room / 1e9:.1f} GB of memory for it" if max(size, tokens) > room else ""
        else:
            # What is in the page cache after writing needs not be read from disk again.
            cold = passes * max(0, size - rates.memory // 2)
            reading = cold / rates.read + passes * size / rates.decode[mode]
            seconds = forward + size / rates.write + reading + learning
            obstacle = f"only {rates.disk / 1e9:.1f} GB of disk" if size > rates.disk * DISK_SHARE else ""
        found.append(Estimate(mode, seconds, size, obstacle))
    return found


def choose(found: list[Estimate], mode: str) -> Estimate:
    """The fastest that can be done, among those that the user allows; of two that are close, the one that is more
    exact and keeps the disk free, so that noise in the measurement does not decide."""
    allowed = {"auto": MODES, "stored": ("fp16", "int8")}.get(mode, (mode,))
    able = [estimate for estimate in found if estimate.mode in allowed and not estimate.obstacle]
    if not able:
        why = "; ".join(f"{e.mode}: {e.bytes / 1e9:.1f} GB, {e.obstacle}" for e in found if e.mode in allowed)
        raise UserError(f"--mode {mode} cannot be done here ({why}). --mode recompute keeps nothing.")
    fastest = min(estimate.seconds for estimate in able)
    return next(estimate for estimate in able if estimate.seconds <= fastest * CLOSE)


def work_of(setting: Setting, heads: dict[str, Head], way: str) -> Work:
    encoded, epochs = setting.encoded["train"], setting.options.polish or 0
    windows = encoded.alone if way == "separate" and encoded.alone is not None else (encoded.together,)
    tokens = sum(len(part.tokens) for part in windows)
    sequences = 0 if setting.shape.span else len(sequences_of(heads))
    solving = SOLVING if any(head.solved for head in heads.values()) else 0
    return Work(len(encoded), tokens, epochs, setting.shape, sequences, depth_of(setting.shape, heads), solving)


def depth_of(shape: Shape, heads: dict[str, Head]) -> int:
    """The last layer that some head reads. The pooler reads the last of all."""
    everything = shape.layers - 1
    if shape.pooled:
        return everything
    return max((max(head.layers or head.sequences or (everything,)) for head in heads.values()), default=everything)


def report(
    options: Request, layers: int | None, features: int | None, machine: dict[str, float], progress: Progress
) -> dict[str, Any]:
    """`bertvision plan`: the table for this machine, or reckoned for another machine and another encoder."""
    setting = prepare(options, progress)
    way = "separate" if options.pairs == "separate" else "joint"
    heads = build(setting.names, setting.shape, options.seed, donor=setting.encoder.top)
    work, rates = work_of(setting, heads, way), measure(setting, heads, way, Path.cwd())
    here = rates.flops
    if "flops" in machine:
        # Heads are matrix products too: a faster machine is as much faster at them.
        rates = replace(rates, flops=machine["flops"], heads=rates.heads * machine["flops"] / here)
        rates = replace(rates, decode={m: r * max(1.0, machine["flops"] / here / 10) for m, r in rates.decode.items()})
    if "disk_rate" in machine:
        rates = replace(rates, read=machine["disk_rate"], write=machine["disk_rate"])
    rates = replace(rates, disk=int(machine.get("disk", rates.disk)), memory=int(machine.get("memory", rates.memory)))
    if layers or features:
        old = work.shape
        shape = replace(old, layers=(layers or old.layers - 1) + 1, features=features or old.features)
        rates = replace(rates, heads=rates.heads * old.layers * old.features / (shape.layers * shape.features))
        work = replace(work, shape=shape, depth=None)
    found = estimates(work, rates)
    best = choose(found, "auto")
    length = work.tokens / max(work.windows, 1)
    why = (
        f"{best.mode}: {work.windows:,} windows of {length:.0f} tokens, {work.epochs} epochs of {len(heads)} heads;"
        f" the encoder takes {work.flops() / rates.flops:,.0f} s a pass ({rates.flops / 1e9:,.0f} GFLOP/s), the heads"
        f" {work.windows / rates.heads:,.0f} s an epoch, the disk reads {rates.read / 1e6:,.0f} MB/s."
    )
    return {"modes": [estimate.row() for estimate in found], "best": best.mode, "why": why}


def measure(setting: Setting, heads: dict[str, Head], way: str, folder: Path) -> Rates:
    """A few batches of the encoder and of the heads (copies of them), and a small file."""
    shape, encoded, options = setting.shape, setting.encoded["train"], setting.options
    source = Recomputed(setting.encoder, encoded, way, shape, sequences_of(heads), shape.layers - 1, options.seed)
    trained = {name: deepcopy(head) for name, head in heads.items() if head.trained}
    trainer = HeadTrainer(trained, setting.dataset.kind, lr=0.0, seed=options.seed)
    targets = setting.train_targets()
    windows = tokens = 0
    seconds = {"forward": 0.0, "heads": 1e-9}
    states = None
    before = time.perf_counter()
    # The first batches of a plain pass are the longest ones; those of an epoch are of all lengths.
    for number, (states, rows) in enumerate(source.epoch(0)):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        spent = time.perf_counter() - before
        before = time.perf_counter()
        if trained:
            trainer.accumulate(states.to(setting.encoder.device), targets[rows].to(setting.encoder.device))
            trainer.step(0.0)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        if number:
            seconds["forward"] += spent
            seconds["heads"] += time.perf_counter() - before
            windows += len(rows)
            tokens += int(encoded.together.lengths[rows.numpy()].sum())
        if number == TRIALS:
            break
        before = time.perf_counter()
    assert states is not None
    if not windows:  # one batch is all there is
        windows, tokens, seconds = len(rows), int(encoded.together.lengths.sum()), {"forward": spent, "heads": spent}
    done = replace(work_of(setting, heads, way), windows=windows, tokens=tokens)
    sample = states.layers.transpose(1, 2).flatten(0, 1)[:2048].cpu()
    read, write = _disk(folder)
    return Rates(
        flops=done.flops() / max(seconds["forward"], 1e-9),
        heads=windows / seconds["heads"],
        read=read,
        write=write,
        decode={mode: _decoding(sample, mode) for mode in ("fp16", "int8")},
        memory=psutil.virtual_memory().available,
        disk=psutil.disk_usage(str(folder)).free,
    )


def _decoding(sample: torch.Tensor, mode: str) -> float:
    made = codec(mode, None, sample)
    stored = made.encode(sample)
    size = sum(value.numel() * value.element_size() for value in stored.values())
    room = torch.empty_like(sample.transpose(0, 1).contiguous())
    return size / _fastest(lambda: made.decode(stored, room))


def _fastest(run: Callable[[], object]) -> float:
    found = []
    for _ in range(TRIALS + 1):
        before = time.perf_counter()
        run()
        found.append(time.perf_counter() - before)
    return max(min(found), 1e-9)


def _disk(folder: Path) -> tuple[float, float]:
    """Bytes per second, read (not from the page cache, where the system lets us say so) and written."""
    content = np.random.default_rng(0).bytes(PROBE_BYTES)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
        before = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        write = PROBE_BYTES / (time.perf_counter() - before)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        before = time.perf_counter()
        file.read()
        return PROBE_BYTES / (time.perf_counter() - before), write
