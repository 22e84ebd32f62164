"""Tokens of examples, un-padded; and long contexts cut into windows that overlap, each with the whole question.

Questions and contexts are tokenised apart and put together here: a paragraph that ten questions share is tokenised
once, and an overlong question costs that question some of its end and not the whole batch an error.
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

from bertvision.errors import UserError
from bertvision.types import Examples, Windows

BATCH = 1000  # texts tokenised at a time: the tokenizer's own objects take far more memory than what is kept of them
WORTH_KEEPING = 4000  # examples from which on the windows are cached on disk
CONTEXT_SHARE = 4  # at least this part (one in ...) of a window is left to the context, however long the question
VERSION = 2  # of what the cache holds


@dataclass(frozen=True)
class Frame:
    """The special tokens around a pair, as the tokenizer sets them, with the token types of all parts."""

    before: list[int]
    between: list[int]
    after: list[int]
    types: tuple[int, int, int, int, int]  # before, first text, between, second text, after

    @classmethod
    def of(cls, tokenizer: Any) -> "Frame":
        made = tokenizer("a", "a").encodings[0]
        owners, ids, types = made.sequence_ids, made.ids, made.type_ids
        first, second = owners.index(0), owners.index(1)
        end_first = len(owners) - 1 - owners[::-1].index(0)
        end_second = len(owners) - 1 - owners[::-1].index(1)
        kinds = (types[0], types[first], types[end_first + 1], types[second], types[-1])
        return cls(ids[:first], ids[end_first + 1 : second], ids[end_second + 1 :], kinds)

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)


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
        aside.unlink(missing_ok=True)  # a cache that cannot be written costs only time
    return made


def _windowed(tokenizer: Any, examples: Examples, limit: int, stride: int) -> Windows:
    assert examples.second_texts is not None
    frame = Frame.of(tokenizer)
    if limit < len(frame) + 2 * CONTEXT_SHARE:
        raise UserError(f"--max-length {limit} leaves no room for a question and a context.")
    number: dict[str, int] = {}
    which = [number.setdefault(context, len(number)) for context in examples.second_texts]
    contexts = list(_tokenised(tokenizer, list(number)))
    most = max(1, limit - len(frame) - max(1, limit // CONTEXT_SHARE))
    plan: list[tuple[int, np.ndarray, int, int]] = []  # example, question, first and last context token
    cut = 0
    for row, (question, _) in enumerate(_tokenised(tokenizer, examples.texts)):
        cut += len(question) > most
        question = question[:most]
        room, total = max(1, limit - len(frame) - len(question)), len(contexts[which[row]][0])
        step = room - min(stride, room // 2)
        starts = range(0, max(1, total - room + step), step)
        plan += [(row, question, start, min(start + room, total)) for start in starts]
    return _filled(frame, contexts, which, plan, cut)


def _tokenised(tokenizer: Any, texts: Sequence[str]) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(tokens, characters) of each text, without special tokens."""
    for i in range(0, len(texts), BATCH):
        made = tokenizer(list(texts[i : i + BATCH]), add_special_tokens=False, verbose=False)
        for text, encoding in zip(texts[i : i + BATCH], made.encodings, strict=True):
            places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            for i, (start, end) in enumerate(encoding.offsets):
                if start < end and text[start].isspace():  # SentencePiece's tokens begin with the space before the word
                    places[i, 0] += end - start - len(text[start:end].lstrip())
            if not text.isascii():
                _keep_marks(text, places)
            yield np.array(encoding.ids, np.int32), places


def _keep_marks(text: str, places: np.ndarray) -> None:
    """A tokenizer that strips accents leaves combining marks to no token: they belong to the letter before them."""
    for mark in (i for i, letter in enumerate(text) if unicodedata.category(letter) in ("Mn", "Me", "Cf")):
        places[places[:, 1] == mark, 1] = mark + 1


def _filled(
    frame: Frame,
    contexts: list[tuple[np.ndarray, np.ndarray]],
    which: list[int],
    plan: list[tuple[int, np.ndarray, int, int]],
    cut: int,
) -> Windows:
    lengths = [len(frame) + len(question) + end - start for _, question, start, end in plan]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.empty(offsets[-1], np.int32)
    types, segments = np.empty(offsets[-1], np.int8), np.zeros(offsets[-1], np.int8)
    characters = np.zeros((offsets[-1], 2), np.int32)
    for at, (row, question, start, end) in zip(offsets, plan, strict=False):
        ids, places = contexts[which[row]]
        for part, kind, segment in (
            (frame.before, frame.types[0], 0),
            (question, frame.types[1], 1),
            (frame.between, frame.types[2], 0),
            (ids[start:end], frame.types[3], 2),
            (frame.after, frame.types[4], 0),
        ):
            here = slice(at, at + len(part))
            tokens[here], types[here] = part, kind
            if segment:
                segments[here] = segment
            if segment == 2:
                characters[here] = places[start:end]
            at += len(part)
    return Windows(tokens, types, segments, offsets, cut, np.array([row for row, *_ in plan]), characters)


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
        text = wanted[0].text
        start, end = wanted[0].start + len(text) - len(text.lstrip()), wanted[0].start + len(text.rstrip())
        first, last = windows.offsets[window], windows.offsets[window + 1]
        context = np.flatnonzero(windows.segments[first:last] == 2)
        if not len(context):
            continue
        starts, ends = windows.characters[first:last][context].T
        if start < starts[0] or end > ends[-1]:
            continue
        left, right = np.searchsorted(ends, start, "right"), np.searchsorted(starts, end, "left") - 1
        if left <= right:
            answers[window] = context[left], context[right]
            if starts[left] != start or ends[right] != end:
                cut.add(int(row))
    return replace(windows, answers=answers), len(cut)
