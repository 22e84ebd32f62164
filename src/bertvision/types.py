"""The values that tasks, training and models hand to one another. No torch here: reading data needs none.

Dimensions everywhere: B batch, L layers (layer 0 is the embedding output), T tokens (or pooled views), D features,
C outputs (classes, 1 for a score, 2 for a span's start and end), N examples, W windows (pieces of examples that
fit the encoder; one per example except for questions on long contexts and, if asked for, for long texts).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import numpy as np

TRAIN, HELD_OUT = "train", "held_out"  # the names of splits; all others are dev splits


class Answer(NamedTuple):
    """A piece of a context: context[start : start + len(text)] == text."""

    text: str
    start: int


@dataclass(frozen=True)
class Questions:
    """What is known of each row where the pair is a question and a context to look for the answer in."""

    ids: list[str]
    articles: list[str]  # rows of one article are kept together when some are held out
    answers: list[tuple[Answer, ...]]  # all that count as right; none: the context does not answer the question

    def take(self, rows: Sequence[int] | np.ndarray) -> "Questions":
        return Questions([self.ids[i] for i in rows], [self.articles[i] for i in rows], [self.answers[i] for i in rows])


@dataclass(frozen=True)
class Examples:
    """Rows of data: a text or a pair of texts each, with a class index or a score where known."""

    texts: list[str]
    second_texts: list[str] | None  # of pairs
    # (N,) int64 for kind class, float64 for kind score; for questions 1: answerable. A dev row of a class that train
    # lacks has the index after the last class.
    targets: np.ndarray | None
    questions: Questions | None = None
    weights: np.ndarray | None = None  # (N,) float64, how much a row counts in training; scores never use them

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | np.ndarray) -> "Examples":
        return Examples(
            [self.texts[i] for i in rows],
            [self.second_texts[i] for i in rows] if self.second_texts is not None else None,
            self.targets[np.asarray(rows, dtype=np.int64)] if self.targets is not None else None,
            self.questions.take(rows) if self.questions is not None else None,
            self.weights[np.asarray(rows, dtype=np.int64)] if self.weights is not None else None,
        )

    def digests(self) -> Iterator[bytes]:
        """One digest per row, of its texts only: an order over rows that depends on nothing but the data."""
        pairs = self.second_texts if self.second_texts is not None else repeat("", len(self))
        for text, pair in zip(self.texts, pairs, strict=True):
            yield hashlib.sha256(f"{text}\x1f{pair}".encode("utf-8", "surrogatepass")).digest()

    def digest(self) -> str:
        """Changes if and only if a text, a target or the order changes; weights play no part."""
        total = hashlib.sha256()
        for row in self.digests():
            total.update(row)
        if self.targets is not None:
            total.update(self.targets.tobytes())
        if self.questions is not None:
            total.update(repr((self.questions.ids, self.questions.answers)).encode("utf-8", "surrogatepass"))
        return total.hexdigest()


@dataclass(frozen=True)
class Windows:
    """Tokenised examples: window i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: np.ndarray  # (all tokens,) int32
    types: np.ndarray  # token types, for encoders that have them
    segments: np.ndarray  # 1 in the first text, 2 in the second, 0 in special tokens
    offsets: np.ndarray  # (W + 1,)
    truncated: int  # how many examples were longer than allowed
    examples: np.ndarray  # (W,) the example that each window is a piece of, ascending
    characters: np.ndarray | None = None  # (all tokens, 2) where a context's token starts and ends in its text
    answers: np.ndarray | None = None  # (W, 2) first and last token of the answer; 0, 0 ([CLS]) where it is not here

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: np.ndarray) -> "Windows":
        """The windows of some examples, given in ascending order, which are numbered from 0."""
        kept = np.flatnonzero(np.isin(self.examples, rows))
        flat = np.concatenate([np.arange(*self.offsets[i : i + 2]) for i in kept])
        return Windows(
            self.tokens[flat],
            self.types[flat],
            self.segments[flat],
            np.concatenate([[0], np.cumsum(self.lengths[kept])]),
            self.truncated,
            np.searchsorted(rows, self.examples[kept]),
            None if self.characters is None else self.characters[flat],
            None if self.answers is None else self.answers[kept],
        )


@dataclass(frozen=True)
class Dataset:
    """What a task gives: examples to train on, one or more dev splits to report on, and how to score."""

    task: str
    kind: str  # "class", "score" or "span"
    labels: tuple[str, ...]  # class names in index order; empty for scores
    metrics: tuple[str, ...]  # the first is the primary one, which every choice goes by
    train: Examples
    dev: dict[str, Examples]
    roles: dict[str, str | None] = field(default_factory=dict)  # text, pair, label -> name of the column
    notes: tuple[str, ...] = ()  # what the user should be told about the data

    @property
    def outputs(self) -> int:
        return 2 if self.kind == "span" else len(self.labels) or 1


def reported(splits: Iterable[str]) -> str:
    """The split to report on: the first dev split or, of data that has none, the rows held out of train."""
    return next((split for split in splits if split not in (TRAIN, HELD_OUT)), HELD_OUT)
