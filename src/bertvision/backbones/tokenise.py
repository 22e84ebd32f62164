"""Tokenise examples for an encoder: a text or a pair as one window, a question on a long context as several."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertvision.backbones.encoder import Encoder
from bertvision.backbones.windows import labelled, windowed
from bertvision.recipe import Recipe
from bertvision.types import Examples, Windows

CHUNK = 4096  # texts tokenised at once: what the tokenizer returns takes kilobytes each
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
        """The windows that the encoder reads: of the pair, or of each text."""
        if way == JOINT:
            return (self.together,)
        assert self.alone is not None
        return self.alone

    def lengths(self, way: str) -> np.ndarray:
        """Tokens of each example; of separate texts, those of the longer one."""
        return np.maximum.reduce([windows.lengths for windows in self.texts(way)])


def tokenise(encoder: Encoder, examples: Examples, recipe: Recipe, split_contexts: bool) -> Encoded:
    """`split_contexts` for questions on contexts of any length."""
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
    parts: dict[str, list[np.ndarray]] = {"tokens": [], "types": [], "segments": [], "lengths": []}
    for first in range(0, count, CHUNK):
        found = _encodings(encoder, [column[first : first + CHUNK] for column in columns], None)
        long = [i for i, encoding in enumerate(found) if len(encoding.ids) > limit]
        if long:
            some = _encodings(encoder, [[column[first + i] for i in long] for column in columns], limit)
            for i, encoding in zip(long, some, strict=True):
                found[i] = encoding
        cut += len(long)
        segments = ([0 if s is None else s + 1 for s in encoding.sequence_ids] for encoding in found)
        parts["tokens"].append(_flat((encoding.ids for encoding in found), np.int32))
        parts["types"].append(_flat((encoding.type_ids for encoding in found), np.int8))
        parts["segments"].append(_flat(segments, np.int8))
        parts["lengths"].append(np.array([len(encoding.ids) for encoding in found]))
    flat = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    offsets = np.concatenate([[0], np.cumsum(flat["lengths"])]).astype(np.int64)
    return Windows(flat["tokens"], flat["types"], flat["segments"], offsets, cut, np.arange(count))


def _encodings(encoder: Encoder, texts: list[list[str]], limit: int | None) -> list[Any]:
    how = {"truncation": False} if limit is None else {"truncation": "longest_first", "max_length": limit}
    return list(encoder.tokenizer(*texts, padding=False, verbose=False, **how).encodings)


def _flat(rows: Iterable[list[int]], dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(row, dtype=dtype) for row in rows])
