"""The pass: an encoder runs over windows without gradients.

Everything that reads states of a frozen encoder builds on it: collecting, recomputing, extracting and answering.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from bertvision.backbones.encoder import Batch, Encoder
from bertvision.backbones.tokenise import JOINT, Encoded
from bertvision.states.batches import by_length
from bertvision.states.hidden import (
    PAIR_VIEWS,
    TOKENS,
    HiddenStates,
    joined,
    places_of,
    pool,
    pooling_weights,
    views_of,
)

MEMORY_SHARE = 1 / 3  # of free memory; larger states go to a temporary file

Tick = Callable[[int], object]


def nothing(windows: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Reads:
    """What to keep of a forward pass: pooled views (four for pairs) or every token, of some or all layers."""

    paired: bool = False
    tokens: bool = False
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Step:
    """One batch of a pass: the windows, their hidden states and, if any, the encoder's own logits."""

    rows: np.ndarray
    states: HiddenStates
    logits: Tensor | None = None  # (B, C), for spans (B, T, 2); none for separate texts


def default_device() -> torch.device:
    # Without CUDA: the CPU, the only other device whose random state --resume restores.
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def clean_pass(
    encoder: Encoder,
    encoded: Encoded,
    reads: Reads,
    *,
    way: str = JOINT,
    rows: np.ndarray | None = None,
    batches: Iterable[np.ndarray] | None = None,
    depth: int | None = None,
    precision: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Iterator[Step]:
    """Run the encoder over windows.

    Args:
        encoder: Moved to `device` if one is given; put into evaluation mode for the pass.
        encoded: The tokenised examples.
        reads: What to keep of each forward pass.
        way: Read pairs `joint` or `separate`.
        rows: The windows to read, in batches of similar length, longest first. Default: all.
        batches: The windows of each batch, where the order matters: an epoch of training.
        depth: Transformer layers to compute. Layers above are zeros, and logits are meaningless.
        precision: bfloat16 or float16 run the encoder under autocast; states are always float32.
        device: Where to compute. Default: where the encoder is.
    """
    if device is not None:
        encoder.to(device)
    if batches is None:
        rows = np.arange(len(encoded)) if rows is None else rows
        batches = [rows[order] for order in by_length(encoded.lengths(way)[rows])]
    was_training = encoder.training
    encoder.eval()
    try:
        with encoder.up_to(encoder.layers - 1 if depth is None else depth):
            for batch in batches:
                # Not around `yield`: the caller may train heads on the states.
                with torch.no_grad(), _autocast(encoder, precision):
                    step = _step(encoder, encoded, reads, way, batch, depth)
                yield step
    finally:
        encoder.train(was_training)


def _autocast(encoder: Encoder, precision: torch.dtype) -> AbstractContextManager[object]:
    return nullcontext() if precision == torch.float32 else torch.autocast(encoder.device.type, precision)


def _step(encoder: Encoder, encoded: Encoded, reads: Reads, way: str, rows: np.ndarray, depth: int | None) -> Step:
    found, logits = [], None
    for windows in encoded.texts(way):
        batch = encoder.batch(windows, rows)
        logits, layers, pooled = encoder(batch.inputs)
        if depth is not None:  # layers that are not computed are zeros; no head reads them
            layers = layers[: depth + 1]
            layers += (torch.zeros_like(layers[0]),) * (encoder.layers - len(layers))
        found.append(read(batch, layers, pooled, Reads(reads.paired and way == JOINT, reads.tokens)))
    states = found[0] if way == JOINT else _paired(*found)
    states = states if reads.layers is None else states.only(reads.layers)
    return Step(rows, states, logits if way == JOINT else None)


def read(batch: Batch, layers: Sequence[Tensor], pooled: Tensor | None, reads: Reads) -> HiddenStates:
    """What heads read of a forward pass, in float32: pooled views, or every token with zeros in padding."""
    pooled = None if pooled is None else pooled.float()
    if reads.tokens:
        stacked = torch.stack([layer.float() for layer in layers], 1)
        stacked *= batch.mask[:, None, :, None]
        return HiddenStates(stacked, TOKENS, pooled, batch.mask, places_of(batch.segments))
    views = pool(layers, pooling_weights(batch.mask, batch.segments, reads.paired)).float()
    return HiddenStates(views, views_of(reads.paired), pooled)


def _paired(first: HiddenStates, second: HiddenStates) -> HiddenStates:
    """The four views of a pair whose texts are encoded separately, as sentence encoders do."""
    pooled = None
    if first.pooled is not None and second.pooled is not None:
        pooled = (first.pooled + second.pooled) / 2
    return HiddenStates(joined(first.layers, second.layers), PAIR_VIEWS, pooled)


def collect(
    encoder: Encoder,
    encoded: Encoded,
    reads: Reads,
    way: str,
    tick: Tick = nothing,
    *,
    batches: Iterable[np.ndarray] | None = None,
    folder: Path | None = None,
) -> HiddenStates:
    """The pooled views of all windows, or of those in `batches`: the others are left undefined. If memory is too small,
    they are in an unnamed file in `folder` (or TMPDIR)."""
    whole: HiddenStates | None = None
    for step in clean_pass(encoder, encoded, reads, way=way, batches=batches):
        found = step.states
        if whole is None:
            pooled = torch.empty(len(encoded), encoder.features) if found.pooled is not None else None
            whole = HiddenStates(_room((len(encoded), *found.layers.shape[1:]), folder), found.views, pooled)
        rows = torch.from_numpy(step.rows)
        whole.layers[rows] = found.layers.cpu()
        if whole.pooled is not None and found.pooled is not None:
            whole.pooled[rows] = found.pooled.cpu()
        tick(len(rows))
    assert whole is not None
    return whole


def _room(shape: tuple[int, ...], folder: Path | None) -> Tensor:
    """An empty float32 tensor, in memory or, if it is too large, in a file that vanishes with it."""
    size = 4 * int(np.prod(shape))
    if size < psutil.virtual_memory().available * MEMORY_SHARE:
        return torch.empty(shape)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Reserve the space: a full disk must be an error here, not a bus error while writing.
        os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        pages = mmap.mmap(file.fileno(), size)  # outlives the closed file and is freed with the tensor
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)
