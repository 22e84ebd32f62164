"""Tokenise examples: a text or a pair becomes one window; a question on a long context, or with --long windows a long
text, several that overlap.

Texts are tokenised by themselves and truncated and joined here. A paragraph that ten questions share is tokenised once,
and an overlong question is truncated instead of failing the batch. The tokenizer's own truncation keeps all it cut off:
of two long texts, every combination of their pieces.
"""

import hashlib
import os
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
        return Encoded(_truncated(encoder.tokenizer, [examples.texts], limit))
    columns = [examples.texts, examples.second_texts]
    first, second = (_truncated(encoder.tokenizer, [texts], limit) for texts in columns)
    return Encoded(_truncated(encoder.tokenizer, columns, limit), (first, second))


class _Frame:
    """The special tokens around one text or two, and windows under construction: bytes that grow in place, so that
    memory is that of the tokens and little more."""

    def __init__(self, tokenizer: Any, texts: int) -> None:
        made = tokenizer(*["a"] * texts).encodings[0]
        ends = [(made.sequence_ids.index(i), made.sequence_ids.count(i)) for i in range(texts)]
        bounds = [0, *(place for first, count in ends for place in (first, first + count)), len(made.ids)]
        parts = [made.ids[first:last] for first, last in pairwise(bounds)]
        self.special = [np.array(part, np.int32) for part in parts[::2]]
        self.size = sum(map(len, self.special))
        self.kinds = [made.type_ids[min(place, len(made.ids) - 1)] for place in bounds[:-1]]  # token types of each part
        self.tokens, self.types, self.segments = bytearray(), bytearray(), bytearray()
        self.offsets, self.examples = array("q", [0]), array("q")

    def add(self, example: int, *texts: np.ndarray) -> None:
        """A window with the tokens of each text."""
        for place in range(2 * len(texts) + 1):
            part = texts[place // 2] if place % 2 else self.special[place // 2]
            self.tokens += part.tobytes()
            self.types += bytes([self.kinds[place]]) * len(part)
            self.segments += bytes([(place + 1) // 2 if place % 2 else 0]) * len(part)
        self.offsets.append(len(self.types))
        self.examples.append(example)

    def windows(self, truncated: int, characters: np.ndarray | None = None) -> Windows:
        types, segments = (np.frombuffer(values, np.int8) for values in (self.types, self.segments))
        offsets, examples = (np.frombuffer(values, np.int64) for values in (self.offsets, self.examples))
        tokens = np.frombuffer(self.tokens, np.int32)
        return Windows(tokens, types, segments, offsets, truncated, examples, characters)


def _truncated(tokenizer: Any, columns: list[list[str]], limit: int) -> Windows:
    """Texts that are too long are truncated, the longer text of a pair first, and counted."""
    frame, cut = _Frame(tokenizer, len(columns)), 0
    room = limit - frame.size
    if room < 1:
        raise UserError(f"--max-length {limit} leaves no room for a text.")
    # Of two texts that are both cut, the longer one gets a token more: their lengths are needed.
    tokenised = [_tokens(tokenizer, texts, room if len(columns) == 1 else None) for texts in columns]
    for row, texts in enumerate(zip(*tokenised, strict=True)):
        lengths = [len(tokens) for tokens in texts]
        cut += sum(lengths) > room
        frame.add(row, *(tokens[:most] for tokens, most in zip(texts, _shares(lengths, room), strict=True)))
    return frame.windows(cut)


def _shares(lengths: list[int], room: int) -> list[int]:
    """How many tokens of each text fit, as the tokenizers library has it (`longest_first`)."""
    if sum(lengths) <= room or len(lengths) == 1:
        return [min(room, length) for length in lengths]
    less = min(*lengths, room // 2)
    return [less, room - less] if lengths[0] <= lengths[1] else [room - less, less]


def _tokens(tokenizer: Any, texts: Sequence[str], enough: int | None = None) -> Iterator[np.ndarray]:
    """Tokens of each text, without special tokens. Of a text with more than `enough`, perhaps not all."""
    for some in _chunks(texts):
        shown = some if enough is None else [_beginning(text, WIDE * enough) for text in some]
        for text, part, encoding in zip(some, shown, _plain(tokenizer, shown), strict=True):
            if enough is not None and len(part) < len(text) and len(encoding.ids) <= enough:
                (encoding,) = _plain(tokenizer, [text])
            yield np.array(encoding.ids, np.int32)


def _beginning(text: str, most: int) -> str:
    """About `most` characters, up to a space: what follows does not change the tokens before it."""
    space = re.compile(r"\s").search(text, most) if len(text) > most else None
    return text if space is None else text[: space.start()]


def _chunks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Consecutive texts, as many as have CHUNK characters together."""
    first, size = 0, 0
    for row, text in enumerate(texts):
        size += ROW + len(text)
        if first < row and size > CHUNK:
            yield list(texts[first:row])
            first, size = row, ROW + len(text)
    yield list(texts[first:])


def _plain(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Encodings without special tokens, of any length."""
    found: list[Any] = tokenizer(texts, add_special_tokens=False, verbose=False).encodings
    return found


def _in_windows(tokenizer: Any, texts: list[str], limit: int, stride: int) -> Windows:
    """Texts as windows of at most `limit` tokens, overlapping by at least `stride` (or a quarter of a window).

    Windows of a text are of equal length and spread evenly. A text is truncated if MOST_WINDOWS leave gaps.
    """
    frame, cut = _Frame(tokenizer, 1), 0
    room = limit - frame.size
    if room < 1:
        raise UserError(f"--max-length {limit} leaves no room for a text.")
    step = room - min(stride, room // 4)
    for row, tokens in enumerate(_tokens(tokenizer, texts)):
        spare = max(0, len(tokens) - room)
        starts = np.linspace(0, spare, 1 + min(MOST_WINDOWS - 1, -(-spare // step))).astype(int)
        cut += bool(np.diff(starts).max(initial=0) > room)
        for start in starts:
            frame.add(row, tokens[start : start + room])
    return frame.windows(cut)


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
    frame, cut, characters = _Frame(tokenizer, 2), 0, bytearray()
    before, between, after = (len(part) for part in frame.special)
    free = limit - frame.size
    if free < 2 * CONTEXT_SHARE:
        raise UserError(f"--max-length {limit} leaves no room for a question and a context.")
    most = max(1, free - max(1, limit // CONTEXT_SHARE))  # tokens of a question
    contexts = dict.fromkeys(examples.second_texts)
    tokenised = dict(zip(contexts, _with_places(tokenizer, list(contexts)), strict=True))
    for row, question in enumerate(_tokens(tokenizer, examples.texts, most)):
        cut += len(question) > most
        question = question[:most]
        context, places = tokenised[examples.second_texts[row]]
        room = max(1, free - len(question))
        step = room - min(stride, room // 2)
        for start in range(0, max(1, len(context) - room + step), step):
            frame.add(row, question, context[start : start + room])
            characters += bytes(8 * (before + len(question) + between))
            characters += places[start : start + room].tobytes() + bytes(8 * after)
    return frame.windows(cut, np.frombuffer(characters, np.int32).reshape(-1, 2))


def _with_places(tokenizer: Any, texts: Sequence[str]) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(tokens, characters) of each text, without special tokens."""
    for some in _chunks(texts):
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
