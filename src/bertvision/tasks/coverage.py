"""What a user should know of the splits: classes that are missing, and dev rows that repeat train."""

from collections.abc import Iterator

import numpy as np

from bertvision.types import HELD_OUT, TRAIN, Examples

SHOWN = 5  # class names in a note


def notes(labels: tuple[str, ...], parts: dict[str, Examples]) -> Iterator[str]:
    """`parts` are train, held_out and the dev splits; `labels` is empty for scores."""
    known = {name: part.targets for name, part in parts.items() if labels and part.targets is not None}
    counts = {name: np.bincount(targets, minlength=len(labels))[: len(labels)] for name, targets in known.items()}
    covered = {name: np.count_nonzero(count) for name, count in counts.items()}
    if any(found < len(labels) for found in covered.values()):
        listed = ", ".join(f"{_said(name)} {found}" for name, found in covered.items())
        yield f"of {len(labels)} classes, the splits cover: {listed}"
    if TRAIN in counts and len(single := np.flatnonzero(counts[TRAIN] == 1)):
        yield f"{_classes(len(single))} a single row to train on: {some([labels[i] for i in single])}"
    yield from lacking(labels, parts)
    seen = {row for name in (TRAIN, HELD_OUT) if name in parts for row in _texts(parts[name])}
    for name, part in parts.items():
        repeated = 0 if name in (TRAIN, HELD_OUT) else sum(row in seen for row in _texts(part))
        if repeated:
            yield f"{_said(name)}: {repeated} of {len(part)} rows are in train too, so its scores may be too high"


def lacking(labels: tuple[str, ...], parts: dict[str, Examples]) -> Iterator[str]:
    """How many rows are of classes that are not among `labels`."""
    for name, part in parts.items():
        rows = np.count_nonzero(part.targets >= len(labels)) if labels and part.targets is not None else 0
        if rows:
            yield f"{_said(name)}: {rows} of {len(part)} rows are of classes that train lacks; they count as wrong"


def some(names: list[str]) -> str:
    """The first few."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _classes(count: int) -> str:
    return "1 class has" if count == 1 else f"{count} classes have"


def _said(split: str) -> str:
    return split.replace("_", "-")


def _texts(part: Examples) -> Iterator[tuple[str, str]]:
    return zip(part.texts, part.second_texts or [""] * len(part), strict=True)
