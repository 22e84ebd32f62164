"""Tokenise examples: a text or a pair becomes one window, a question on a long context several."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.backbones.encoder import Encoder
from bertvision.backbones.windows import labelled, windowed
from bertvision.recipe import Recipe
from bertvision.types import Examples, Windows

CHUNK = 4096  # texts tokenised at a time: the tokenizer's objects take kilobytes each
JOINT, SEPARATE = "joint", "separate"  # the two ways to read a pair: both texts in one window, or each alone


@dataclass(frozen=True)
class Encoded:
    """Tokenised examples for both ways to read a pair. `alone` (each text by itself) is None for single texts and for
    questions, whose contexts may take several windows."""

    together: Windows
    alone: tuple[Windows, Windows] | None = None
    cut_answers: int = 0  # answers that begin or end inside a token

    def __len__(self) -> int:
        return len(self.together)

    def texts(self, way: str) -> tuple[Windows, ...]:
        """The windows that the encoder reads: those of the pair, or of each text."""
        if way == JOINT:
            return (self.together,)
        assert self.alone is not None
        return self.alone

    def lengths(self, way: str) -> np.ndarray:
        """Tokens of each example; for separate texts, those of the longer one."""
        return np.maximum.reduce([windows.lengths for windows in self.texts(way)])


def tokenise(encoder: Encoder, examples: Examples, recipe: Recipe, split_contexts: bool) -> Encoded:
    """With `split_contexts`, pairs are a question and a context of any length."""
    limit = min(recipe.max_length, encoder.longest)
    if split_contexts:
        windows = windowed(encoder.tokenizer, examples, limit, recipe.stride)
        if examples.questions is None:
            return Encoded(windows)
        windows, cut = labelled(windows, examples)
        return Encoded(windows, None, cut)
    if examples.second_texts is None:
        return Encoded(_tokenised(encoder, [examples.texts], limit))
    columns = [examples.texts, examples.second_texts]
    first, second = (_tokenised(encoder, [texts], limit) for texts in columns)
    return Encoded(_tokenised(encoder, columns, limit), (first, second))


def _tokenised(encoder: Encoder, columns: list[list[str]], limit: int) -> Windows:
    """Texts that are too long are truncated, the longer text of a pair first, and counted."""
    count, cut = len(columns[0]), 0
    lengths: list[int] = []
    chunks: list[np.ndarray] = []  # (3, tokens) each
    for first in range(0, count, CHUNK):
        texts = [column[first : first + CHUNK] for column in columns]
        made = encoder.tokenizer(*texts, truncation="longest_first", max_length=limit, padding=False, verbose=False)
        cut += sum(bool(encoding.overflowing) for encoding in made.encodings)
        lengths += [len(encoding.ids) for encoding in made.encodings]
        chunks.append(np.concatenate([_rows(encoding) for encoding in made.encodings], 1))
    encoder.tokenizer.backend_tokenizer.no_truncation()  # which would be saved with the tokenizer
    tokens, types, segments = np.concatenate(chunks, 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Windows(tokens, types.astype(np.int8), segments.astype(np.int8), offsets, cut, np.arange(count))


def _rows(encoding: Any) -> np.ndarray:
    """Tokens, token types and segments."""
    segments = [0 if text is None else text + 1 for text in encoding.sequence_ids]
    return np.array([encoding.ids, encoding.type_ids, segments], dtype=np.int32)
