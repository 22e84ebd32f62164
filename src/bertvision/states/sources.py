"""Sources of hidden states for training and answering: memory, a store, or the encoder itself."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.backbones.tokenise import JOINT, Encoded
from bertvision.randomness import RandomStream
from bertvision.states.batches import bucketed
from bertvision.states.hidden import TOKENS, HiddenStates, places_of, pool, pooling_weights, views_of
from bertvision.states.passes import Reads, Step, Tick, clean_pass, nothing
from bertvision.stores.reader import Store, StoredBatch

TOKEN_BYTES = 8 * 2**30  # the most that token states take, e.g. of 9,000 SQuAD questions and a 6-layer encoder
BATCH_SIZE = 32
TOKEN_BATCH_SIZE = 16  # windows of tokens, each with about a hundred tokens to learn from
PLAIN_ROWS = 512  # in a batch that trains nothing


class Source(Protocol):
    def steps(self, epochs: int) -> int:
        """Batches in this many epochs."""

    def epoch(self, number: int) -> Iterator[Step]:
        """All windows once, in an order that depends on the seed and the number. Call it with 0, 1, 2, ... in turn."""

    def plain(self) -> Iterator[Step]:
        """All windows once, in any order and in larger batches."""


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
    for step in clean_pass(encoder, encoded, Reads(tokens=True), rows=chosen):
        for i, (place, row) in enumerate(zip(np.searchsorted(chosen, step.rows), step.rows, strict=True)):
            here = slice(int(offsets[place]), int(offsets[place + 1]))
            flat[here] = step.states.layers[i, :, : here.stop - here.start].transpose(0, 1).half().cpu()
            first, last = windows.offsets[row : row + 2]
            segments[here] = torch.from_numpy(windows.segments[first:last])
        tick(len(step.rows))
    return TokenStates(flat, segments, offsets, chosen)


class Memory:
    """States that are in memory."""

    def __init__(self, states: HiddenStates | TokenStates, seed: int) -> None:
        self.states, self.seed = states, seed
        self.order = RandomStream("polish-order", seed)
        self.size = TOKEN_BATCH_SIZE if isinstance(states, TokenStates) else BATCH_SIZE

    def steps(self, epochs: int) -> int:
        return epochs * -(-len(self.states) // self.size)

    def epoch(self, number: int) -> Iterator[Step]:
        if isinstance(self.states, TokenStates):
            batches = [torch.from_numpy(rows) for rows in bucketed(self.states.lengths, self.size, self.seed, number)]
        else:
            with self.order.active():
                batches = list(torch.randperm(len(self.states)).split(self.size))
        return self._steps(batches)

    def plain(self) -> Iterator[Step]:
        return self._steps(torch.arange(len(self.states)).split(PLAIN_ROWS))

    def _steps(self, batches: Iterable[torch.Tensor]) -> Iterator[Step]:
        return (Step(rows.numpy(), self.states.take(rows)) for rows in batches)


@dataclass
class Recompute:
    """States that a frozen encoder computes each time they are needed; nothing is kept."""

    encoder: Encoder
    encoded: Encoded
    reads: Reads
    seed: int
    way: str = JOINT
    depth: int | None = None  # transformer layers to compute, if no head reads those above

    @property
    def size(self) -> int:
        return TOKEN_BATCH_SIZE if self.reads.tokens else BATCH_SIZE

    def steps(self, epochs: int) -> int:
        return epochs * -(-len(self.encoded) // self.size)

    def epoch(self, number: int) -> Iterator[Step]:
        return self._pass(batches=bucketed(self.encoded.together.lengths, self.size, self.seed, number))

    def plain(self) -> Iterator[Step]:
        return self._pass()

    def some(self, rows: np.ndarray) -> Iterator[Step]:
        """The given windows once."""
        return self._pass(rows=rows)

    def _pass(self, **which: Any) -> Iterator[Step]:
        return clean_pass(self.encoder, self.encoded, self.reads, way=self.way, depth=self.depth, **which)


class Stored:
    """States of one split of a store."""

    def __init__(self, store: Store, split: str, seed: int = 0) -> None:
        self.part, self.seed = store.only(split), seed
        self.size = TOKEN_BATCH_SIZE if store.header.span else BATCH_SIZE

    def steps(self, epochs: int) -> int:
        return sum(len(self.part.order(self.size, self._seed(number))) for number in range(epochs))

    def epoch(self, number: int) -> Iterator[Step]:
        return self._steps(self.size, self._seed(number))

    def plain(self) -> Iterator[Step]:
        return self._steps(self.size if self.part.header.tokens else PLAIN_ROWS, None)

    def _seed(self, number: int) -> int:
        return int(np.random.default_rng([self.seed, number]).integers(2**31))

    def _steps(self, size: int, seed: int | None) -> Iterator[Step]:
        for batch in self.part.batches(size, seed, check=True):
            yield Step(self.part.rows.window[batch.rows], states_of(batch, self.part), batch.logits)


def states_of(batch: StoredBatch, store: Store) -> HiddenStates:
    """A batch of a store in the form that heads read."""
    header = store.header
    if not header.tokens:
        return HiddenStates(batch.hidden, tuple(header.views), batch.pooled)
    assert batch.segments is not None
    if header.span:
        return HiddenStates(batch.hidden, TOKENS, None, batch.mask, places_of(batch.segments))
    weights = pooling_weights(batch.mask.long(), batch.segments, header.paired)
    return HiddenStates(pool(batch.hidden.unbind(1), weights), views_of(header.paired), batch.pooled)
