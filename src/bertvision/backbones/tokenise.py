"""Tokenise examples: a text or a pair becomes one window, a question on a long context several that overlap.

Questions and contexts are tokenised separately and joined here: a paragraph that ten questions share is tokenised once,
and an overlong question is truncated instead of failing the batch.
"""

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.recipe import Recipe
from bertvision.types import Examples, Windows

CHUNK = 4096  # texts tokenised at a time: the tokenizer's objects take kilobytes each
BATCH = 1000  # texts tokenised at a time: the tokenizer's objects take far more memory than the tokens
WORTH_KEEPING = 4000  # examples from which on windows are cached on disk
CONTEXT_SHARE = 4  # the context gets at least one in this many tokens of a window, however long the question
VERSION = 2  # of the cache
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

    def take(self, rows: np.ndarray) -> "Encoded":
        """Some examples, given in ascending order."""
        alone = None if self.alone is None else (self.alone[0].take(rows), self.alone[1].take(rows))
        return Encoded(self.together.take(rows), alone)

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


def windowed(tokenizer: Any, examples: Examples, limit: int, stride: int) -> Windows:
    """Question-and-context pairs as windows of at most `limit` tokens, overlapping by `stride` tokens of context."""
    if len(examples) < WORTH_KEEPING:
        return _windowed(tokenizer, examples, limit, stride)
    name = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode())
    name.update(f"{VERSION} {limit} {stride} ".encode() + b"".join(examples.digests()))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertvision" / "windows"
    file = cache / f"{name.hexdigest()}.safetensors"
    try:
        found = load_file(file)
        return Windows(**found | {"truncated": int(found["truncated"])})  # type: ignore[arg-type]
    except (OSError, SafetensorError, KeyError, TypeError):
        made = _windowed(tokenizer, examples, limit, stride)
    aside = file.with_suffix(f".{os.getpid()}.tmp")
    arrays = {key: np.asarray(value) for key, value in vars(made).items() if value is not None}
    try:
        cache.mkdir(parents=True, exist_ok=True)
        save_file(arrays, aside)
        os.replace(aside, file)
    except (OSError, SafetensorError):
        aside.unlink(missing_ok=True)  # without a cache the run is only slower
    return made


def _windowed(tokenizer: Any, examples: Examples, limit: int, stride: int) -> Windows:
    assert examples.second_texts is not None
    before, between, after, part_types = _frame(tokenizer)
    free = limit - len(before) - len(between) - len(after)
    if free < 2 * CONTEXT_SHARE:
        raise UserError(f"--max-length {limit} leaves no room for a question and a context.")
    most = max(1, free - max(1, limit // CONTEXT_SHARE))  # tokens of a question
    contexts = dict.fromkeys(examples.second_texts)
    tokenised = dict(zip(contexts, _with_places(tokenizer, list(contexts)), strict=True))
    parts: list[np.ndarray] = []  # five per window
    places: list[np.ndarray] = []
    rows: list[int] = []
    cut = 0
    for row, (question, _) in enumerate(_with_places(tokenizer, examples.texts)):
        cut += len(question) > most
        question = question[:most]
        context, characters = tokenised[examples.second_texts[row]]
        room = max(1, free - len(question))
        step = room - min(stride, room // 2)
        for start in range(0, max(1, len(context) - room + step), step):
            parts += [before, question, between, context[start : start + room], after]
            places.append(characters[start : start + room])
            rows.append(row)
    lengths = np.array([len(part) for part in parts])
    types, segments = (
        np.repeat(np.tile(np.array(kinds, np.int8), len(rows)), lengths) for kinds in (part_types, [0, 1, 0, 2, 0])
    )
    flat_places = np.zeros((len(segments), 2), np.int32)
    flat_places[segments == 2] = np.concatenate(places)
    offsets = np.concatenate([[0], np.cumsum(lengths)[4::5]])
    return Windows(np.concatenate(parts), types, segments, offsets, cut, np.array(rows), flat_places)


def _frame(tokenizer: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """The special tokens before, between and after the texts of a pair, and the token types of all five parts."""
    made = tokenizer("a", "a").encodings[0]
    owners, ids, types = made.sequence_ids, np.array(made.ids, np.int32), made.type_ids
    first, second = owners.index(0), owners.index(1)
    end_first, end_second = first + owners.count(0), second + owners.count(1)
    kinds = [types[0], types[first], types[end_first], types[second], types[-1]]
    return ids[:first], ids[end_first:second], ids[end_second:], kinds


def _with_places(tokenizer: Any, texts: Sequence[str]) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(tokens, characters) of each text, without special tokens."""
    for i in range(0, len(texts), BATCH):
        made = tokenizer(list(texts[i : i + BATCH]), add_special_tokens=False, verbose=False)
        for text, encoding in zip(texts[i : i + BATCH], made.encodings, strict=True):
            places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            for i, (start, end) in enumerate(encoding.offsets):
                if start < end and text[start].isspace():  # SentencePiece tokens include the space before the word
                    places[i, 0] += end - start - len(text[start:end].lstrip())
            if not text.isascii():
                _keep_marks(text, places)
            yield np.array(encoding.ids, np.int32), places


def _keep_marks(text: str, places: np.ndarray) -> None:
    """Count combining marks, which no token has if the tokenizer strips accents, to the letter before them."""
    for mark in (i for i, letter in enumerate(text) if unicodedata.category(letter) in ("Mn", "Me", "Cf")):
        places[places[:, 1] == mark, 1] = mark + 1


def labelled(windows: Windows, examples: Examples) -> tuple[Windows, int]:
    """The windows with the tokens of each example's first answer, and how many answers token boundaries cut."""
    assert windows.characters is not None
    assert examples.questions is not None
    answers = np.zeros((len(windows), 2), np.int64)
    cut: set[int] = set()
    for window, row in enumerate(windows.examples):
        wanted = examples.questions.answers[row]
        if not wanted or wanted[0].start < 0:
            continue
        here = slice(windows.offsets[window], windows.offsets[window + 1])
        context = np.flatnonzero(windows.segments[here] == 2)
        text = wanted[0].text
        start, end = wanted[0].start + len(text) - len(text.lstrip()), wanted[0].start + len(text.rstrip())
        starts, ends = windows.characters[here][context].T
        left, right = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end, "left") - 1
        if len(context) and starts[0] <= start and end <= ends[-1] and left <= right:
            answers[window] = context[left], context[right]
            if starts[left] != start or ends[right] != end:
                cut.add(int(row))
    return replace(windows, answers=answers), len(cut)
