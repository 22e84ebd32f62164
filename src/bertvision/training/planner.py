"""Keep the states of a frozen encoder in memory, on disk, or recompute them? Measure a few batches, then decide."""

import math
import os
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import torch

from bertvision.backbones.tokenise import JOINT, SEPARATE
from bertvision.errors import UserError
from bertvision.heads.base import Head, Rows, Shape
from bertvision.heads.variants import build
from bertvision.options import Request
from bertvision.prepare import Prepared, prepare
from bertvision.progress import Progress
from bertvision.states.hidden import HiddenStates, views_of
from bertvision.states.passes import MEMORY_SHARE
from bertvision.states.sources import TOKEN_BYTES, Recompute
from bertvision.stores.codec import bytes_per_row, codec
from bertvision.training.head_trainer import HeadTrainer
from bertvision.types import TRAIN

MODES = ("memory", "recompute", "fp16", "int8")  # the more exact, and those that spare the disk, first
SOLVING = 2  # passes that a head in closed form makes
SOLVED = 128  # rows on which heads without gradients are timed
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
            return self.windows * shape.layers * views * 4 * shape.features
        rows = self.tokens if shape.span else self.windows * views
        return rows * bytes_per_row(mode, shape.layers, shape.features)

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
            room = most if work.shape.span else int(rates.memory * MEMORY_SHARE)
            obstacle = f"only {room / 1e9:.1f} GB of memory for it" if size > room else ""
        else:
            # What is in the page cache after writing is not read from disk again.
            cold = passes * max(0, size - rates.memory // 2)
            reading = cold / rates.read + passes * size / rates.decode[mode]
            seconds = forward + size / rates.write + reading + learning
            obstacle = f"only {rates.disk / 1e9:.1f} GB of disk" if size > rates.disk * DISK_SHARE else ""
        found.append(Estimate(mode, seconds, size, obstacle))
    return found


def choose(found: list[Estimate], mode: str) -> Estimate:
    """The fastest mode that is possible and allowed. Of two that are close, the more exact one that spares the disk, so
    that noise in the measurement does not decide."""
    allowed = {"auto": MODES, "stored": ("fp16", "int8")}.get(mode, (mode,))
    able = [estimate for estimate in found if estimate.mode in allowed and not estimate.obstacle]
    if not able:
        why = "; ".join(f"{e.mode}: {e.bytes / 1e9:.1f} GB, {e.obstacle}" for e in found if e.mode in allowed)
        raise UserError(f"--mode {mode} is not possible here ({why}). --mode recompute keeps nothing.")
    fastest = min(estimate.seconds for estimate in able)
    return next(estimate for estimate in able if estimate.seconds <= fastest * CLOSE)


def work_of(setting: Prepared, heads: dict[str, Head], way: str) -> Work:
    encoded, shape = setting.encoded[TRAIN], setting.shape
    tokens = sum(len(part.tokens) for part in encoded.texts(way))
    solving = SOLVING if any(head.solved for head in heads.values()) else 0
    return Work(len(encoded), tokens, setting.recipe.polish, shape, depth_of(shape, heads), solving)


def depth_of(shape: Shape, heads: dict[str, Head]) -> int:
    """The last layer that some head reads. The pooler reads the last of all."""
    last = shape.layers - 1
    return last if shape.pooled else max((max(head.layers or (last,)) for head in heads.values()), default=last)


@dataclass(frozen=True)
class Machine:
    """Another machine or encoder to plan for; None is what is here."""

    layers: int | None = None  # of hidden states, the embeddings included
    features: int | None = None
    flops: float | None = None
    disk_rate: float | None = None
    disk: float | None = None
    memory: float | None = None


@dataclass(frozen=True)
class Plan:
    """What `bertvision plan` prints."""

    modes: list[dict[str, str]]
    best: str
    why: str


def plan(request: Request, machine: Machine, progress: Progress) -> Plan:
    """Measure here, and estimate what each mode would take here or on another machine with another encoder."""
    setting = prepare(request, progress)
    way = SEPARATE if request.pairs == SEPARATE else JOINT
    heads = build(setting.names, setting.shape, request.seed)
    work, rates = work_of(setting, heads, way), measure(setting, heads, way, Path.cwd())
    if machine.flops is not None:
        # Heads are matrix products too: a faster machine is as much faster at them.
        faster = machine.flops / rates.flops
        decode = {mode: rate * max(1.0, faster / 10) for mode, rate in rates.decode.items()}
        rates = replace(rates, flops=machine.flops, heads=rates.heads * faster, decode=decode)
    if machine.disk_rate is not None:
        rates = replace(rates, read=machine.disk_rate, write=machine.disk_rate)
    rates = replace(rates, disk=int(machine.disk or rates.disk), memory=int(machine.memory or rates.memory))
    if machine.layers or machine.features:
        old = work.shape
        shape = replace(old, layers=machine.layers or old.layers, features=machine.features or old.features)
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
    return Plan([estimate.row() for estimate in found], best.mode, why)


def measure(
    setting: Prepared, heads: dict[str, Head], way: str, folder: Path | None, longest: float = math.inf
) -> Rates:
    """A few batches of the encoder and of the heads (copies of them), and a small file in `folder`, if a store is an
    option. If batches take longer than `longest` seconds, two are enough."""
    encoded, device = setting.encoded[TRAIN], setting.encoder.device
    trained = {name: deepcopy(head) for name, head in heads.items() if head.trained}
    trainer = HeadTrainer(trained, setting.dataset.kind, lr=0.0, seed=setting.recipe.seed)
    targets, seen = setting.train_targets(), []
    before = time.perf_counter()
    # The first batches of a plain pass are the longest ones; those of an epoch are of all lengths.
    for step in Recompute(setting.encoder, encoded, setting.reads, setting.recipe.seed, way=way).epoch(0):
        _synchronise()
        forward = time.perf_counter() - before
        before = time.perf_counter()
        if trained:
            trainer.accumulate(step.states.to(device), targets[step.rows].to(device))
            trainer.step(0.0)
            _synchronise()
        seen.append((step, forward, time.perf_counter() - before))
        spent = sum(forward + learning for _, forward, learning in seen)
        if len(seen) > TRIALS or (len(seen) > 1 and spent > longest):
            break
        before = time.perf_counter()
    counted = seen[1:] or seen  # the first also warms up, but may be all there is
    windows = sum(len(step.rows) for step, _, _ in counted)
    tokens = sum(int(encoded.together.lengths[step.rows].sum()) for step, _, _ in counted)
    done = replace(work_of(setting, heads, way), windows=windows, tokens=tokens)
    sample = seen[-1][0].states.layers.transpose(1, 2).flatten(0, 1)[:2048].cpu()
    read, write = (0.0, 0.0) if folder is None else _disk(folder)
    return Rates(
        flops=done.flops() / max(sum(forward for _, forward, _ in counted), 1e-9),
        heads=windows / max(sum(learning for _, _, learning in counted), 1e-9),
        read=read,
        write=write,
        decode={mode: _decoding(sample, mode) for mode in ("fp16", "int8") if folder is not None},
        memory=psutil.virtual_memory().available,
        disk=0 if folder is None else psutil.disk_usage(str(folder)).free,
    )


def solving_rate(setting: Prepared) -> float:
    """Seconds per row in which heads without gradients are solved, from a few rows of invented states: regressions of
    many classes take long."""
    shape, some = setting.shape, setting.train_targets()[:SOLVED]
    solved = build(setting.names, shape, setting.recipe.seed)
    solved = {name: head for name, head in solved.items() if head.solved}
    if not solved or shape.span:
        return 0.0
    views, draw = views_of(shape.paired), torch.Generator().manual_seed(0)
    states = torch.randn(len(some), shape.layers, len(views), shape.features, generator=draw)
    centres = torch.randn(shape.outputs, shape.features, generator=draw)
    told = centres[some] if shape.outputs > 1 else some[:, None] * centres
    rows = [Rows(HiddenStates(states + told[:, None, None].float() / 4, views), some)]
    before = time.perf_counter()
    for head in solved.values():
        head.solve(lambda: rows, setting.dataset.kind)
    return (time.perf_counter() - before) / len(some)


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _decoding(sample: torch.Tensor, mode: str) -> float:
    made = codec(mode, sample)
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
