"""Tokenise examples: a text or a pair becomes one window; a question on a long context, or with --long windows a long
text, several that overlap.

Questions and contexts are tokenised separately and joined here: a paragraph that ten questions share is tokenised once,
and an overlong question is truncated instead of failing the batch.
"""

import hashlib
import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.options import WINDOWS
from bertvision.recipe import Recipe
from bertvision.types import Examples, Windows

CHUNK = 2**20  # characters tokenised at a time: the tokenizer's objects take far more memory than the tokens
ROW = 64  # characters that an object without any counts for
WIDE = 16  # characters per token that are tokenised at first if the rest is truncated anyway
MOST_WINDOWS = 8  # of a text; those of a longer one are spread over it
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
        if recipe.long == WINDOWS:
            return Encoded(_in_windows(encoder.tokenizer, examples.texts, limit, recipe.stride))
        return Encoded(_tokenised(encoder.tokenizer, [examples.texts], limit))
    columns = [examples.texts, examples.second_texts]
    first, second = (_tokenised(encoder.tokenizer, [texts], limit) for texts in columns)
    return Encoded(_tokenised(encoder.tokenizer, columns, limit), (first, second))


class _Flat:
    """Windows under construction, in arrays that grow in place: memory is that of the tokens and little more."""

    def __init__(self) -> None:
        self.tokens, self.types, self.segments = array("i"), array("b"), array("b")
        self.offsets, self.examples, self.truncated = array("q", [0]), array("q"), 0

    def add(self, row: int, tokens: Sequence[int], types: Sequence[int], segments: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.types.extend(types)
        self.segments.extend(segments)
        self.offsets.append(len(self.tokens))
        self.examples.append(row)

    def windows(self) -> Windows:
        tokens, types, segments, offsets, examples = (
            np.frombuffer(values, dtype)
            for values, dtype in (
                (self.tokens, np.int32), (self.types, np.int8), (self.segments, np.int8),
                (self.offsets, np.int64), (self.examples, np.int64),
            )
        )  # fmt: skip
        return Windows(tokens, types, segments, offsets, self.truncated, examples)


def _tokenised(tokenizer: Any, columns: list[list[str]], limit: int) -> Windows:
    """Texts that are too long are truncated, the longer text of a pair first, and counted."""
    flat = _Flat()
    for row, encoding in enumerate(_truncated(tokenizer, columns, limit)):
        flat.truncated += bool(encoding.overflowing)
        segments = [0 if text is None else text + 1 for text in encoding.sequence_ids]
        flat.add(row, encoding.ids, encoding.type_ids, segments)
    tokenizer.backend_tokenizer.no_truncation()  # which would be saved with the tokenizer
    return flat.windows()


def _truncated(tokenizer: Any, columns: list[list[str]], limit: int) -> Iterator[Any]:
    """Encodings of at most `limit` tokens. Of a single text that is far longer, the beginning is tokenised; all of it
    if that has too few tokens. (How a pair is truncated depends on the lengths of both.)"""
    options = {"truncation": "longest_first", "max_length": limit, "padding": False, "verbose": False}
    for texts in _chunks(*columns):
        shown = texts if len(texts) > 1 else [[_beginning(text, WIDE * limit) for text in texts[0]]]
        for i, encoding in enumerate(tokenizer(*shown, **options).encodings):
            if len(shown[0][i]) < len(texts[0][i]) and not encoding.overflowing:
                encoding = tokenizer(texts[0][i], **options).encodings[0]
            yield encoding


def _beginning(text: str, most: int) -> str:
    """About `most` characters, up to a space: what follows does not change the tokens before it."""
    space = re.compile(r"\s").search(text, most) if len(text) > most else None
    return text if space is None else text[: space.start()]


def _chunks(*columns: Sequence[str]) -> Iterator[list[list[str]]]:
    """Consecutive rows of the columns, as many as have CHUNK characters together."""
    first, size = 0, 0
    for row, texts in enumerate(zip(*columns, strict=True)):
        here = ROW + sum(map(len, texts))
        if first < row and size + here > CHUNK:
            yield [list(column[first:row]) for column in columns]
            first, size = row, 0
        size += here
    yield [list(column[first:]) for column in columns]


def _in_windows(tokenizer: Any, texts: list[str], limit: int, stride: int) -> Windows:
    """Texts as windows of at most `limit` tokens, overlapping by at least `stride` (or a quarter of a window).

    Windows of a text are of equal length and spread evenly. A text is truncated if MOST_WINDOWS leave gaps.
    """
    made = tokenizer("a").encodings[0]
    first, count = made.sequence_ids.index(0), made.sequence_ids.count(0)
    room = limit - (len(made.ids) - count)
    if room < 1:
        raise UserError(f"--max-length {limit} leaves no room for a text.")
    before, after = slice(None, first), slice(first + count, None)
    flat, step = _Flat(), room - min(stride, room // 4)
    rows = (tokens for (chunk,) in _chunks(texts) for tokens in _plain(tokenizer, chunk))
    for row, encoding in enumerate(rows):
        tokens = encoding.ids
        spare = max(0, len(tokens) - room)
        starts = np.linspace(0, spare, 1 + min(MOST_WINDOWS - 1, -(-spare // step))).astype(int)
        flat.truncated += bool(np.diff(starts).max(initial=0) > room)
        for start in starts:
            inside = tokens[start : start + room]
            flat.add(
                row,
                made.ids[before] + inside + made.ids[after],
                made.type_ids[before] + [made.type_ids[first]] * len(inside) + made.type_ids[after],
                [0] * first + [1] * len(inside) + [0] * (len(made.ids) - first - count),
            )
    return flat.windows()


def _plain(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Encodings without special tokens, of any length."""
    found: list[Any] = tokenizer(texts, add_special_tokens=False, verbose=False).encodings
    return found


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
    for (some,) in _chunks(texts):
        for text, encoding in zip(some, _plain(tokenizer, some), strict=True):
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
