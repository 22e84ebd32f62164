"""Where the batches of hidden states come from on which heads are polished: memory, a store, or the encoder again."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.heads.base import Shape
from bertvision.randomness import RandomStream
from bertvision.states.hidden import (
    PAIR_VIEWS,
    TOKENS,
    HiddenStates,
    Sequences,
    joined,
    places_of,
    pool,
    pooling_weights,
    views_of,
)
from bertvision.stores.reader import Batch, Store
from bertvision.training.answering import read
from bertvision.training.batches import bucketed, by_length
from bertvision.training.collect import Encoded, TokenStates

BATCH_SIZE = 32
TOKEN_BATCH_SIZE = 16  # windows of tokens, each of which is a hundred small examples
PLAIN_ROWS = 512  # of a pass that trains nothing

Pass = Iterator[tuple[HiddenStates, Tensor]]  # states, and which of the training windows they are of


class Source(Protocol):
    def steps(self, epochs: int) -> int:
        """Batches in so many epochs."""

    def epoch(self, number: int) -> Pass:
        """All windows once, in an order that depends on the seed and the number; asked for one after the other."""

    def plain(self) -> Pass:
        """All windows once, in any order and in larger batches."""


class Collected:
    """States that are in memory."""

    def __init__(self, states: HiddenStates | TokenStates, seed: int) -> None:
        self.states, self.seed = states, seed
        self.order = RandomStream("polish-order", seed)
        self.size = TOKEN_BATCH_SIZE if isinstance(states, TokenStates) else BATCH_SIZE

    def steps(self, epochs: int) -> int:
        return epochs * -(-len(self.states) // self.size)

    def epoch(self, number: int) -> Pass:
        if isinstance(self.states, TokenStates):
            batches = [torch.from_numpy(rows) for rows in bucketed(self.states.lengths, self.size, self.seed, number)]
        else:
            with self.order.active():
                batches = list(torch.randperm(len(self.states)).split(self.size))
        return ((self.states.take(rows), rows) for rows in batches)

    def plain(self) -> Pass:
        return ((self.states.take(rows), rows) for rows in torch.arange(len(self.states)).split(PLAIN_ROWS))


class Recomputed:
    """States that the encoder, which stays as it is, computes whenever they are asked for; nothing is kept."""

    def __init__(
        self,
        encoder: Encoder,
        encoded: Encoded,
        way: str,
        shape: Shape,
        sequences: tuple[int, ...],
        depth: int,
        seed: int,
    ) -> None:
        """`depth`: the last layer that some head reads; those above it are not computed."""
        self.encoder, self.encoded, self.separate = encoder, encoded, way == "separate"
        self.shape, self.sequences, self.depth, self.seed = shape, sequences, depth, seed
        self.size = TOKEN_BATCH_SIZE if shape.span else BATCH_SIZE

    def steps(self, epochs: int) -> int:
        return epochs * -(-len(self.encoded) // self.size)

    def epoch(self, number: int) -> Pass:
        return self._states(bucketed(self.encoded.together.lengths, self.size, self.seed, number))

    def plain(self) -> Pass:
        return self.some(np.arange(len(self.encoded)))

    def some(self, rows: np.ndarray) -> Pass:
        """These windows once."""
        return self._states([rows[order] for order in by_length(self.encoded.together.lengths[rows])])

    def _states(self, batches: list[np.ndarray]) -> Pass:
        was_training = self.encoder.training
        self.encoder.eval()
        try:
            with self.encoder.up_to(self.depth):
                for rows in batches:
                    with torch.no_grad():
                        states = self._apart(rows) if self.separate else self._together(rows)
                    yield states, torch.from_numpy(rows)
        finally:
            self.encoder.train(was_training)

    def _together(self, rows: np.ndarray) -> HiddenStates:
        batch = self.encoder.batch(self.encoded.together, rows)
        _, layers, pooled = self.encoder(batch.inputs)
        return read(batch, self._whole(layers), pooled, self.shape, self.sequences)

    def _apart(self, rows: np.ndarray) -> HiddenStates:
        assert self.encoded.alone is not None
        found = []
        for windows in self.encoded.alone:
            batch = self.encoder.batch(windows, rows)
            _, layers, pooled = self.encoder(batch.inputs)
            weights = pooling_weights(batch.mask, batch.segments, False)
            found.append((pool(self._whole(layers), weights).float(), pooled))
        (one, first), (other, second) = found
        both = (first + second) / 2 if first is not None and second is not None else None
        return HiddenStates(joined(one, other), PAIR_VIEWS, both)

    def _whole(self, layers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Layers that were not computed, which no head reads, stand as zeros."""
        layers = layers[: self.depth + 1]
        return layers + (torch.zeros_like(layers[0]),) * (self.shape.layers - len(layers))


class Stored:
    """States of a store's training windows."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.part, self.seed = store, store.only("train"), seed
        self.size = TOKEN_BATCH_SIZE if store.header.span else BATCH_SIZE

    def seeds(self, number: int) -> int:
        return int(np.random.default_rng([self.seed, number]).integers(2**31))

    def steps(self, epochs: int) -> int:
        return sum(len(self.part.order(self.size, self.seeds(number))) for number in range(epochs))

    def epoch(self, number: int) -> Pass:
        return self._states(self.size, self.seeds(number))

    def plain(self) -> Pass:
        return self._states(self.size if self.store.header.tokens else PLAIN_ROWS, None)

    def _states(self, size: int, seed: int | None) -> Pass:
        for batch in self.part.batches(size, seed, check=True):
            yield states_of(batch, self.store), torch.from_numpy(self.part.rows.window[batch.rows])


def states_of(batch: Batch, store: Store) -> HiddenStates:
    """A batch of a store as heads read it."""
    header = store.header
    if not header.tokens:
        return HiddenStates(batch.hidden, tuple(header.views), batch.pooled)
    assert batch.segments is not None
    if header.span:
        return HiddenStates(batch.hidden, TOKENS, None, batch.mask, places_of(batch.segments))
    layers = batch.hidden.unbind(1)
    weights = pooling_weights(batch.mask.long(), batch.segments, header.task["pairs"])
    whole = Sequences(dict(enumerate(layers)), batch.mask, batch.segments)
    return HiddenStates(pool(layers, weights), views_of(header.task["pairs"]), batch.pooled, sequences=whole)
