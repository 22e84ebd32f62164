"""Hidden states collected in memory: pooled views of every layer, or every token in half precision."""

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.backbones.tokenise import Encoded
from bertvision.states.batches import by_length
from bertvision.states.hidden import TOKENS, HiddenStates, places_of
from bertvision.states.passes import Reads, clean_pass

MEMORY_SHARE = 1 / 3  # of free memory; larger states go to a temporary file
TOKEN_BYTES = 8 * 2**30  # the most that token states take, e.g. of 9,000 SQuAD questions and a 6-layer encoder

Tick = Callable[[int], object]


def nothing(windows: int) -> None:
    """Report no progress."""


def collect(encoder: Encoder, encoded: Encoded, reads: Reads, way: str, tick: Tick = nothing) -> HiddenStates:
    """The pooled views of all windows."""
    whole: HiddenStates | None = None
    for step in clean_pass(encoder, encoded, reads, way=way):
        found = step.states
        if whole is None:
            pooled = torch.empty(len(encoded), encoder.features) if found.pooled is not None else None
            whole = HiddenStates(_room((len(encoded), *found.layers.shape[1:])), found.views, pooled)
        rows = torch.from_numpy(step.rows)
        whole.layers[rows] = found.layers.cpu()
        if whole.pooled is not None and found.pooled is not None:
            whole.pooled[rows] = found.pooled.cpu()
        tick(len(rows))
    assert whole is not None
    return whole


@dataclass(frozen=True)
class TokenStates:
    """States of every token and layer of some windows, without padding; `take` makes padded batches."""

    flat: Tensor  # (all tokens, L, D) float16
    segments: Tensor  # (all tokens,)
    offsets: np.ndarray
    rows: np.ndarray  # which windows these are

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> HiddenStates:
        starts, lengths = self.offsets[rows.numpy()], self.lengths[rows.numpy()]
        mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths)[:, None]
        layers = torch.zeros(len(rows), self.flat.shape[1], mask.shape[1], self.flat.shape[2])
        segments = torch.zeros(mask.shape, dtype=torch.int8)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            layers[i, :, :length] = self.flat[start : start + length].transpose(0, 1)
            segments[i, :length] = self.segments[start : start + length]
        return HiddenStates(layers, TOKENS, None, mask, places_of(segments))


def token_budget(encoder: Encoder) -> int:
    """How many tokens' states to keep in memory: a fixed number, so that runs repeat, unless memory is smaller."""
    room = min(TOKEN_BYTES, int(psutil.virtual_memory().available * 2 / 3))
    return room // (2 * encoder.layers * encoder.features)


def collect_tokens(encoder: Encoder, encoded: Encoded, seed: int, tick: Tick = nothing) -> TokenStates:
    """Every token's states of as many windows as fit in memory; a random sample if not all fit."""
    windows = encoded.together
    order = np.random.default_rng([seed, len(windows)]).permutation(len(windows))
    fitting = int(np.searchsorted(np.cumsum(windows.lengths[order]), token_budget(encoder), "right"))
    chosen = np.sort(order[: max(1, fitting)])
    offsets = np.concatenate([[0], np.cumsum(windows.lengths[chosen])])
    flat = torch.empty(int(offsets[-1]), encoder.layers, encoder.features, dtype=torch.float16)
    segments = torch.empty(int(offsets[-1]), dtype=torch.int8)
    batches = by_length(windows.lengths[chosen])
    steps = clean_pass(encoder, encoded, Reads(tokens=True), batches=[chosen[places] for places in batches])
    for places, step in zip(batches, steps, strict=True):
        for i, (place, row) in enumerate(zip(places, step.rows, strict=True)):
            here = slice(int(offsets[place]), int(offsets[place + 1]))
            flat[here] = step.states.layers[i, :, : here.stop - here.start].transpose(0, 1).half().cpu()
            first, last = windows.offsets[row : row + 2]
            segments[here] = torch.from_numpy(windows.segments[first:last])
        tick(len(places))
    return TokenStates(flat, segments, offsets, chosen)


def _room(shape: tuple[int, ...]) -> Tensor:
    """An empty float32 tensor, in memory or, if it is too large, in a temporary file."""
    size = 4 * int(np.prod(shape))
    if size < psutil.virtual_memory().available * MEMORY_SHARE:
        return torch.empty(shape)
    with tempfile.TemporaryFile() as file:
        # Reserve the space: a full disk must be an error here, not a bus error while writing.
        os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        pages = mmap.mmap(file.fileno(), size)  # outlives the closed file and is freed with the tensor
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)
