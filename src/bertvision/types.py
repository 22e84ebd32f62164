"""The values that tasks, training and models hand to one another. No torch here: reading data needs none.

Dimensions everywhere: B batch, L layers (layer 0 is the embedding output), T tokens (or pooled views), D features,
C outputs (classes, or 1 for a score), N examples.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Examples:
    """Rows of data: a text or a pair of texts each, with a class index or a score where known."""

    texts: list[str]
    pairs: list[str] | None
    targets: np.ndarray | None  # (N,) int64 for kind class, float64 for kind score

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Sequence[int] | np.ndarray) -> "Examples":
        return Examples(
            [self.texts[i] for i in rows],
            [self.pairs[i] for i in rows] if self.pairs is not None else None,
            self.targets[np.asarray(rows, dtype=np.int64)] if self.targets is not None else None,
        )

    def digests(self) -> list[bytes]:
        """One digest per row, of its texts only: an order over rows that depends on nothing but the data."""
        pairs = self.pairs if self.pairs is not None else [""] * len(self)
        return [
            hashlib.sha256(f"{text}\x1f{pair}".encode("utf-8", "surrogatepass")).digest()
            for text, pair in zip(self.texts, pairs, strict=True)
        ]

    def digest(self) -> str:
        """Changes if and only if a text, a target or the order changes."""
        total = hashlib.sha256(b"".join(self.digests()))
        if self.targets is not None:
            total.update(self.targets.tobytes())
        return total.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """What a task gives: examples to train on, one or more dev splits to report on, and how to score."""

    task: str
    kind: str  # "class" or "score"
    labels: tuple[str, ...]  # class names in index order; empty for scores
    metrics: tuple[str, ...]  # the first is the primary one, which every choice goes by
    train: Examples
    dev: dict[str, Examples]
    roles: dict[str, str | None] = field(default_factory=dict)  # text, pair, label -> name of the column
    notes: tuple[str, ...] = ()  # what the user should be told about the data

    @property
    def outputs(self) -> int:
        return len(self.labels) or 1
