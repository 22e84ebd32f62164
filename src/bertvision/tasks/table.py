"""A user's own CSV, TSV, JSONL or Parquet file, with one or two text columns and a label column."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import DATA_OPTIONS, Roles, Task, tasks
from bertvision.tasks.coverage import some
from bertvision.tasks.reading import (
    Columns,
    check_column,
    finite_scores,
    number_of,
    only,
    read_columns,
    shortened,
    texts_of,
    values_of,
)
from bertvision.tasks.sampling import split
from bertvision.tasks.weights import row_weights
from bertvision.types import Dataset, Examples

CLASS_METRICS = ("accuracy", "f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")
USUAL_PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text", "text_pair"))
USUAL_TEXTS = ("text", "sentence")
USUAL_LABELS = ("label", "score", "target", "class")
# Whole numbers are class ids if they start at one of these, are at most so many, have so many rows each on average, and
# are so many of all whole numbers in their range.
FIRST_IDS, MOST_IDS, ROWS_PER_ID, SHARE_OF_RANGE = (-1, 0, 1), 500, 3, 0.5


def load(request: Request) -> Dataset:
    if not request.train:
        raise UserError("Task 'table' needs --train FILE (CSV, TSV, JSONL or Parquet).")
    train = Path(request.train)
    columns = read_columns(train, lambda names: _needed(train, names, request))
    dev = None
    if request.dev:
        roles = _roles(train, list(columns), request)
        dev = (Path(request.dev), read_columns(Path(request.dev), only(*roles.values())))
    return dataset_of(train, columns, request, dev)


def dataset_of(
    source: object, columns: Columns, request: Request, dev: tuple[object, Columns] | None = None
) -> Dataset:
    """A table as a dataset. Error messages name the tables by `source` and the first item of `dev`."""
    roles = _roles(source, list(columns), request)
    text, pair, label = roles["text"], roles["pair"], str(roles["label"])
    kind, why = (request.kind, "as requested") if request.kind else infer_kind(source, columns[label])
    labels = _class_names(source, columns[label]) if kind == "class" else ()
    train = from_columns(source, columns, roles, labels, labelled=True)
    assert train.targets is not None
    weights = row_weights(source, columns, request.weight) if request.weight is not None else None
    notes = [f"text '{text}'" + (f", pair '{pair}'" if pair else "") + f", label '{label}': kind {kind} ({why})"]
    if not labels and not np.ptp(train.targets):
        raise UserError(f"'{source}': all scores are {train.targets[0]}; there is nothing to learn.")
    if dev is not None:
        examples = from_columns(*dev, roles, labels, labelled=True, lenient=True)
        if lacking := sorted({_name(value) for value in dev[1][label]} - set(labels)) if labels else []:
            notes.append(f"'{dev[0]}' has classes that train lacks: {some(lacking)}")
    else:
        rest, chosen = split(train, 0.1, 1000, "dev")
        train, examples = train.take(rest), train.take(chosen)
        weights = weights[rest] if weights is not None else None
        notes.append(f"no --dev: {len(examples)} rows of train are set aside to report on")
    metrics = CLASS_METRICS if labels else SCORE_METRICS
    train = replace(train, weights=weights)
    return Dataset("table", kind, labels, metrics, train, {"dev": examples}, roles, tuple(notes))


def read_table(path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file with the same columns. Without the label column, the examples have no targets."""
    columns = read_columns(path, only(*roles.values()))
    return from_columns(path, columns, roles, labels, lenient=True)


def from_columns(
    source: object,
    columns: Columns,
    roles: Roles,
    labels: tuple[str, ...],
    labelled: bool = False,
    lenient: bool = False,
) -> Examples:
    """Examples with class indices into `labels`, or with scores. With `labelled`, the label column is required.

    A class that is not one of `labels` is an error or, if `lenient`, gets the index after the last one.
    """
    text, pair, label = roles["text"], roles["pair"], roles["label"]
    assert text is not None
    texts, pairs = texts_of(source, columns, text), texts_of(source, columns, pair) if pair else None
    if label is None or not (labelled or label in columns):
        return Examples(texts, pairs, None)
    values = values_of(source, columns, label)
    if not labels:
        return Examples(texts, pairs, finite_scores(source, label, values))
    index = {name: i for i, name in enumerate(labels)}
    targets = np.array([index.get(_name(value), len(labels)) for value in values], dtype=np.int64)
    lacking = np.flatnonzero(targets == len(labels))
    for row in lacking:
        name = _name(values[row])
        if not name:
            raise UserError(f"'{source}', row {row + 1}: the label is empty.")
        if not lenient or len(lacking) == len(values):  # if all are: another column, or another spelling
            listed = f"{', '.join(labels[:20])}{', ...' if len(labels) > 20 else ''}"
            raise UserError(
                f"'{source}', row {row + 1}: label '{shortened(name)}' is not one of the classes: {listed}."
            )
    return Examples(texts, pairs, targets)


def infer_kind(source: object, values: list[Any]) -> tuple[str, str]:
    """(kind, why): words and class ids are classes; other numbers are scores."""
    kind, why = _inferred(source, values)
    return kind, f"{why}; --kind {'score' if kind == 'class' else 'class'} overrides"


def _inferred(source: object, values: list[Any]) -> tuple[str, str]:
    numbers = [number_of(value) for value in values]
    fractions = sum(number is not None and math.isfinite(number) and number != int(number) for number in numbers)
    if None in numbers and fractions <= len(values) / 2:
        return "class", "the labels are not all numbers"
    if None not in numbers and fractions:
        return "score", "the labels are numbers with fractions"
    for row, number in enumerate(numbers, 1):
        if number is None or not math.isfinite(number):
            raise UserError(
                f"'{source}', row {row}: label '{shortened(values[row - 1])}' among numbers. Correct it, or give"
                " --kind class."
            )
    found = sorted({int(number) for number in numbers if number is not None})
    if len(found) <= 2:
        return "class", "the labels are two numbers" if len(found) == 2 else "the labels are one number"
    about = f"the labels are {len(found)} whole numbers from {found[0]} to {found[-1]}"
    reasons = {
        f"they do not start at {_or(FIRST_IDS)}, as class ids do": found[0] not in FIRST_IDS,
        "most of the numbers between do not occur": len(found) < SHARE_OF_RANGE * (found[-1] - found[0] + 1),
        f"more than {MOST_IDS} are too many for classes": len(found) > MOST_IDS,
        f"they have fewer than {ROWS_PER_ID} rows each on average": len(values) < ROWS_PER_ID * len(found),
    }
    against = next((reason for reason, holds in reasons.items() if holds), None)
    return ("score", f"{about}; {against}") if against else ("class", about)


def _or(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"


def _needed(source: object, names: list[str], request: Request) -> list[str]:
    """The columns of the training table that are used."""
    used = [*_roles(source, names, request).values(), request.weight]
    return [name for name in names if name in used] if request.weight in (None, *names) else names


def _roles(source: object, names: list[str], request: Request) -> Roles:
    label = _column(source, names, "--label", request.label, USUAL_LABELS)
    text, pair = _text_columns(source, names, request, label)
    return {"text": text, "pair": pair, "label": label}


def _text_columns(source: object, columns: list[str], request: Request, label: str) -> tuple[str, str | None]:
    """The text and pair columns: as requested, else a usual pair of names, else a usual name."""
    if request.text_pair is not None:
        pair = _column(source, columns, "--text-pair", request.text_pair, ())
        usual = tuple(first for first, second in USUAL_PAIRS if second == pair)
        return _column(source, columns, "--text", request.text, (*usual, *USUAL_TEXTS)), pair
    if request.text is None:
        for first, second in USUAL_PAIRS:
            if first in columns and second in columns:
                return first, second
    others = tuple(column for column in columns if column not in (label, request.weight))
    return _column(source, columns, "--text", request.text, USUAL_TEXTS + (others if len(others) == 1 else ())), None


def _column(source: object, columns: list[str], flag: str, asked: str | None, usual: tuple[str, ...]) -> str:
    if asked is not None:
        check_column(source, columns, asked, flag)
        return asked
    for guess in usual:
        if guess in columns:
            return guess
    raise UserError(f"'{source}': which column is {flag}? It has: {', '.join(columns)}.")


def _class_names(source: object, values: list[Any]) -> tuple[str, ...]:
    names = [_name(value) for value in values]
    different = dict.fromkeys(names)
    if "" in different:
        raise UserError(f"'{source}', row {names.index('') + 1}: the label is empty.")
    if len(different) < 2:
        raise UserError(f"'{source}': all labels are '{names[0]}'; at least two classes are needed.")
    if len(different) > len(values) // 2 and len(values) > 20:
        raise UserError(f"'{source}': {len(different)} classes in {len(values)} rows; is --label the right column?")
    # Numbers in numeric order, then words.
    return tuple(sorted(different, key=lambda name: (number_of(name) is None, number_of(name) or 0.0, name)))


def _name(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


tasks.add(
    "table",
    Task("your own CSV, TSV, JSONL or Parquet file", CLASS_METRICS + SCORE_METRICS, load, read_table, DATA_OPTIONS[1:]),
)
