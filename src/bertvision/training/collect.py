"""One clean pass of the encoder over examples, to keep what heads read: pooled views of every layer, or every token."""

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.backbones.windows import labelled
from bertvision.recipe import Recipe
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
from bertvision.training.batches import by_length
from bertvision.types import Examples, Windows

MEMORY_SHARE = 1 / 3  # of the free memory; larger states go to a temporary file
TOKEN_BYTES = 8 * 2**30  # of token states at most, e.g. of 9,000 SQuAD questions and a 6-layer encoder


@dataclass(frozen=True)
class Encoded:
    """Examples tokenised for both ways of reading a pair; `alone` (each text by itself) is None for single texts and
    for questions, whose contexts may take several windows."""

    together: Windows
    alone: tuple[Windows, Windows] | None = None
    cut_answers: int = 0  # that token boundaries cut

    def __len__(self) -> int:
        return len(self.together)


def encode(encoder: Encoder, examples: Examples, options: Recipe, windowed: bool) -> Encoded:
    """`windowed` for questions on contexts of any length."""
    max_length = options.max_length
    if windowed:
        windows = encoder.encode_windows(examples, max_length, options.stride)
        if examples.questions is None:
            return Encoded(windows)
        windows, cut = labelled(windows, examples)
        return Encoded(windows, None, cut)
    together = encoder.encode(examples, max_length)
    if examples.second_texts is None:
        return Encoded(together)
    first, second = (Examples(texts, None, None) for texts in (examples.texts, examples.second_texts))
    return Encoded(together, (encoder.encode(first, max_length), encoder.encode(second, max_length)))


Tick = Callable[[int], object]


def collect(
    encoder: Encoder, windows: Windows, pairs: bool, tick: Tick = lambda examples: None, sequences: tuple[int, ...] = ()
) -> HiddenStates:
    """Views of each text or joint pair, and every token of the layers in `sequences`."""
    views, pooled, ragged = _pass(encoder, windows, pairs, tick, sequences)
    return HiddenStates(views, views_of(pairs), pooled, sequences=ragged)


def collect_separate(encoder: Encoder, encoded: Encoded, tick: Tick = lambda examples: None) -> HiddenStates:
    """The same four views from each text encoded alone, as sentence encoders do."""
    assert encoded.alone is not None
    (first, pooled, _), (second, other, _) = (_pass(encoder, windows, False, tick) for windows in encoded.alone)
    both = (pooled + other) / 2 if pooled is not None and other is not None else None
    views = _room((len(encoded), first.shape[1], len(PAIR_VIEWS), first.shape[3]))
    for rows in torch.arange(len(encoded)).split(1024):
        views[rows] = joined(first[rows], second[rows])
    return HiddenStates(views, PAIR_VIEWS, both)


@torch.no_grad()  # not inference_mode: heads are trained on what this returns
def _pass(
    encoder: Encoder, windows: Windows, pairs: bool, tick: Tick, sequences: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None, "RaggedSequences | None"]:
    was_training = encoder.training
    encoder.eval()
    views = _room((len(windows), encoder.layers, len(views_of(pairs)), encoder.features))
    pooled = torch.empty(len(windows), encoder.features) if encoder.pooled else None
    ragged = Ragged.empty(windows.lengths, len(sequences), encoder.features) if sequences else None
    for rows in by_length(windows.lengths):
        batch = encoder.batch(windows, rows)
        _, layers, pooler = encoder(batch.inputs)
        index = torch.from_numpy(rows)
        views[index] = pool(layers, pooling_weights(batch.mask, batch.segments, pairs)).cpu()
        if pooled is not None and pooler is not None:
            pooled[index] = pooler.cpu()
        if ragged is not None:
            ragged.put(rows, [layers[number] for number in sequences], batch.segments)
        tick(len(rows))
    encoder.train(was_training)
    return views, pooled, RaggedSequences(ragged, sequences) if ragged is not None else None


@dataclass(frozen=True)
class Ragged:
    """States of every token of some windows and layers, un-padded and in half precision."""

    flat: Tensor  # (all tokens, layers, D) float16
    offsets: np.ndarray
    segments: Tensor  # (all tokens,)

    @classmethod
    def empty(cls, lengths: np.ndarray, layers: int, features: int) -> "Ragged":
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = torch.empty(int(offsets[-1]), layers, features, dtype=torch.float16)
        return cls(flat, offsets, torch.empty(int(offsets[-1]), dtype=torch.int8))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def put(self, rows: np.ndarray, layers: Sequence[Tensor], segments: Tensor) -> None:
        """Keep the states L x (B, T, D) of a batch, without its padding."""
        for i, row in enumerate(rows):
            here = slice(int(self.offsets[row]), int(self.offsets[row + 1]))
            length = here.stop - here.start
            for number, layer in enumerate(layers):
                self.flat[here, number] = layer[i, :length].cpu().half()
            self.segments[here] = segments[i, :length].cpu()

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Layers (B, L, T, D) float32, mask (B, T), segments (B, T)."""
        starts, lengths = self.offsets[rows.numpy()], self.lengths[rows.numpy()]
        mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths)[:, None]
        layers = torch.zeros(len(rows), self.flat.shape[1], mask.shape[1], self.flat.shape[2])
        segments = torch.zeros(mask.shape, dtype=torch.int8)
        for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            layers[i, :, :length] = self.flat[start : start + length].transpose(0, 1)
            segments[i, :length] = self.segments[start : start + length]
        return layers, mask, segments


@dataclass(frozen=True)
class RaggedSequences:
    """What stands in HiddenStates.sequences for a whole split; `take` makes padded batches of it."""

    ragged: Ragged
    numbers: tuple[int, ...]

    def take(self, rows: Tensor) -> Sequences:
        layers, mask, segments = self.ragged.padded(rows)
        return Sequences(dict(zip(self.numbers, layers.unbind(1), strict=True)), mask, segments)


@dataclass(frozen=True)
class TokenStates:
    """States of every token and layer, for spans; `take` makes padded batches of them."""

    ragged: Ragged
    rows: np.ndarray  # which windows of train these are

    @property
    def lengths(self) -> np.ndarray:
        return self.ragged.lengths

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor) -> HiddenStates:
        layers, mask, segments = self.ragged.padded(rows)
        return HiddenStates(layers, TOKENS, None, mask, places_of(segments))


def token_budget(encoder: Encoder, layers: int) -> int:
    """How many tokens' states may be kept in memory: a fixed number, so that a run can be repeated, unless the machine
    has not even that much."""
    room = min(TOKEN_BYTES, int(psutil.virtual_memory().available * 2 / 3))
    return room // (2 * layers * encoder.features)


@torch.no_grad()
def collect_tokens(encoder: Encoder, windows: Windows, seed: int, tick: Tick = lambda windows: None) -> TokenStates:
    """Every token's states of as many windows as memory allows, drawn at random where that is not all of them."""
    was_training = encoder.training
    encoder.eval()
    order = np.random.default_rng([seed, len(windows)]).permutation(len(windows))
    budget = token_budget(encoder, encoder.layers)
    fitting = int(np.searchsorted(np.cumsum(windows.lengths[order]), budget, "right"))
    chosen = np.sort(order[: max(1, fitting)])
    ragged = Ragged.empty(windows.lengths[chosen], encoder.layers, encoder.features)
    for rows in by_length(ragged.lengths):
        batch = encoder.batch(windows, chosen[rows])
        _, layers, _ = encoder(batch.inputs)
        ragged.put(rows, layers, batch.segments)
        tick(len(rows))
    encoder.train(was_training)
    return TokenStates(ragged, chosen)


def _room(shape: tuple[int, ...]) -> Tensor:
    """An empty float32 tensor: in memory or, where it would take too much of that, in a temporary file."""
    size = 4 * int(np.prod(shape))
    if size < psutil.virtual_memory().available * MEMORY_SHARE:
        return torch.empty(shape)
    with tempfile.TemporaryFile() as file:
        # Reserved, not just promised: a full disk must be an error here and not a bus error while writing.
        os.posix_fallocate(file.fileno(), 0, size) if hasattr(os, "posix_fallocate") else file.truncate(size)
        pages = mmap.mmap(file.fileno(), size)  # lives on after the file is closed, and vanishes with the tensor
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)
