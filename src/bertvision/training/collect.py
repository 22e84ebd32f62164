"""One clean pass of the encoder over examples: its logits and the pooled views of every layer, for all heads."""

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor

from bertvision.backbones.encoder import Encoder, Windows
from bertvision.states import PAIR_VIEWS, HiddenStates, joined, pool, pooling_weights, views_of
from bertvision.training.batches import by_length
from bertvision.types import Examples

BATCH_SIZE = 32
MEMORY_SHARE = 1 / 3  # of the free memory; larger states go to a temporary file


@dataclass(frozen=True)
class Encoded:
    """Examples tokenised for both ways of reading a pair; `alone` (each text by itself) is None for single texts."""

    together: Windows
    alone: tuple[Windows, Windows] | None

    def __len__(self) -> int:
        return len(self.together)


def encode(encoder: Encoder, examples: Examples, max_length: int) -> Encoded:
    together = encoder.encode(examples, max_length)
    if examples.pairs is None:
        return Encoded(together, None)
    first, second = (Examples(texts, None, None) for texts in (examples.texts, examples.pairs))
    return Encoded(together, (encoder.encode(first, max_length), encoder.encode(second, max_length)))


Tick = Callable[[int], object]


def collect(encoder: Encoder, encoded: Encoded, tick: Tick = lambda examples: None) -> tuple[Tensor, HiddenStates]:
    """Logits (N, C) and views of each text or joint pair."""
    pairs = encoded.alone is not None
    logits, views, pooled = _pass(encoder, encoded.together, pairs, tick)
    return logits, HiddenStates(views, views_of(pairs), pooled)


def collect_separate(encoder: Encoder, encoded: Encoded, tick: Tick = lambda examples: None) -> HiddenStates:
    """The same four views from each text encoded alone, as sentence encoders do."""
    assert encoded.alone is not None
    (_, first, pooled), (_, second, other) = (_pass(encoder, windows, False, tick) for windows in encoded.alone)
    both = (pooled + other) / 2 if pooled is not None and other is not None else None
    views = _room((len(encoded), first.shape[1], len(PAIR_VIEWS), first.shape[3]))
    for rows in torch.arange(len(encoded)).split(1024):
        views[rows] = joined(first[rows], second[rows])
    return HiddenStates(views, PAIR_VIEWS, both)


@torch.no_grad()  # not inference_mode: heads are trained on what this returns
def _pass(encoder: Encoder, windows: Windows, pairs: bool, tick: Tick) -> tuple[Tensor, Tensor, Tensor | None]:
    was_training = encoder.training
    encoder.eval()
    views = _room((len(windows), encoder.layers, len(views_of(pairs)), encoder.features))
    logits = torch.empty(len(windows), encoder.model.config.num_labels)
    pooled = torch.empty(len(windows), encoder.features) if encoder.pooled else None
    for rows in by_length(windows.lengths, BATCH_SIZE):
        batch = encoder.batch(windows, rows)
        answer, layers, pooler = encoder(batch.inputs)
        index = torch.from_numpy(rows)
        views[index] = pool(layers, pooling_weights(batch.mask, batch.segments, pairs)).cpu()
        logits[index] = answer.float().cpu()
        if pooled is not None and pooler is not None:
            pooled[index] = pooler.cpu()
        tick(len(rows))
    encoder.train(was_training)
    return logits, views, pooled


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
