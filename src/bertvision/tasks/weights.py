"""How much each row counts in training: weights of rows (a column) and of classes. Scores never use them."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.registry import unknown
from bertvision.tasks.reading import Columns, number_of, shortened, values_of
from bertvision.types import Examples

BALANCED = "balanced"


def row_weights(source: object, columns: Columns, name: str) -> np.ndarray:
    """(N,) the column that --weight names."""
    values = values_of(source, columns, name, "--weight")
    numbers = [number_of(value) for value in values]
    for row, number in enumerate(numbers, 1):
        if number is None or not math.isfinite(number) or number < 0:
            raise UserError(
                f"'{source}', row {row}: --weight column '{name}' holds '{shortened(values[row - 1])}'. A weight must"
                " be a number, 0 or more."
            )
    return np.array(numbers)


def weighted(train: Examples, rows: np.ndarray, labels: tuple[str, ...], class_weight: str | None) -> Examples:
    """Examples whose weights are those of row times class, with mean 1 over `rows`, which are trained on."""
    weights = train.weights
    if class_weight is not None:
        assert train.targets is not None
        if not labels:
            raise UserError("--class-weight is for classes; this task has none.")
        by_class = _class_weights(class_weight, labels, train.targets[rows])
        weights = by_class[train.targets] * (1.0 if weights is None else weights)
    if weights is None:
        return train
    mean = float(weights[rows].mean())
    if not mean > 0:
        given = " and ".join(
            ["--weight"] * (train.weights is not None) + ["--class-weight"] * (class_weight is not None)
        )
        raise UserError(f"{given}: the weights of all {len(rows)} training rows are zero; there is nothing to learn.")
    return replace(train, weights=weights / mean)


def _class_weights(asked: str, labels: tuple[str, ...], targets: np.ndarray) -> np.ndarray:
    """(classes,) float64."""
    if asked == BALANCED:
        return len(targets) / (len(labels) * np.maximum(np.bincount(targets, minlength=len(labels)), 1))
    given = _numbers(asked)
    for name in given:
        if name not in labels:
            raise UserError(f"--class-weight: {unknown('class', name, list(labels))}")
    return np.array([given.get(name, 1.0) for name in labels])


def _numbers(asked: str) -> dict[str, float]:
    try:
        found: Any = json.loads(asked)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(_weight(value) for value in found.values()):
        raise UserError(
            f"--class-weight must be {BALANCED}, or JSON with a number, 0 or more, for each class, such as"
            f" '{{\"spam\": 3}}'; got '{shortened(asked)}'."
        )
    return {name: float(value) for name, value in found.items()}


def _weight(value: Any) -> bool:
    number = number_of(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    return number is not None and math.isfinite(number) and number >= 0
