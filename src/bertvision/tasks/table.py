"""A user's own CSV, TSV, JSONL or Parquet file, with one or two text columns and a label column."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import DATA_OPTIONS, Roles, Task, tasks
from bertvision.tasks.reading import Columns, finite_scores, number_of, read_columns, texts_of, values_of
from bertvision.tasks.sampling import split
from bertvision.types import Dataset, Examples

CLASS_METRICS = ("accuracy", "f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")
USUAL_PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text", "text_pair"))
USUAL_TEXTS = ("text", "sentence")
USUAL_LABELS = ("label", "score", "target", "class")
MOST_CLASSES = 20  # more distinct whole numbers than this are treated as scores


def load(request: Request) -> Dataset:
    if not request.train:
        raise UserError("Task 'table' needs --train FILE (CSV, TSV, JSONL or Parquet).")
    dev = (Path(request.dev), read_columns(Path(request.dev))) if request.dev else None
    return dataset_of(Path(request.train), read_columns(Path(request.train)), request, dev)


def dataset_of(
    source: object, columns: Columns, request: Request, dev: tuple[object, Columns] | None = None
) -> Dataset:
    """A table as a dataset. Error messages name the tables by `source` and the first item of `dev`."""
    label = _column(source, columns, "--label", request.label, USUAL_LABELS)
    text, pair = _text_columns(source, columns, request, label)
    kind, why = (request.kind, "as requested") if request.kind else infer_kind(source, columns[label])
    labels = _class_names(source, columns[label]) if kind == "class" else ()
    roles: Roles = {"text": text, "pair": pair, "label": label}
    train = from_columns(source, columns, roles, labels, labelled=True)
    assert train.targets is not None
    notes = [f"text '{text}'" + (f", pair '{pair}'" if pair else "") + f", label '{label}': kind {kind} ({why})"]
    if not labels and not np.ptp(train.targets):
        raise UserError(f"'{source}': all scores are {train.targets[0]}; there is nothing to learn.")
    if dev is not None:
        examples = from_columns(*dev, roles, labels, labelled=True)
    else:
        rest, chosen = split(train, 0.1, 1000, "dev")
        train, examples = train.take(rest), train.take(chosen)
        notes.append(f"no --dev: {len(examples)} rows of train are set aside to report on")
    metrics = CLASS_METRICS if labels else SCORE_METRICS
    return Dataset("table", kind, labels, metrics, train, {"dev": examples}, roles, tuple(notes))


def read_table(path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file with the same columns. Without the label column, the examples have no targets."""
    return from_columns(path, read_columns(path), roles, labels)


def from_columns(
    source: object, columns: Columns, roles: Roles, labels: tuple[str, ...], labelled: bool = False
) -> Examples:
    """Examples with class indices into `labels`, or with scores. With `labelled`, the label column is required."""
    text, pair, label = roles["text"], roles["pair"], roles["label"]
    assert text is not None
    texts, pairs = texts_of(source, columns, text), texts_of(source, columns, pair) if pair else None
    if label is None or not (labelled or label in columns):
        return Examples(texts, pairs, None)
    values = values_of(source, columns, label)
    if not labels:
        return Examples(texts, pairs, finite_scores(source, label, values))
    names, index = [_name(value) for value in values], {name: i for i, name in enumerate(labels)}
    for row, name in enumerate(names, 1):
        if name not in index:
            raise UserError(f"'{source}', row {row}: label '{name}' is not one of the classes: {', '.join(labels)}.")
    return Examples(texts, pairs, np.array([index[name] for name in names], dtype=np.int64))


def infer_kind(source: object, values: list[Any]) -> tuple[str, str]:
    """(kind, why): numbers with fractions, or many different numbers, are scores; everything else is a class."""
    numbers = [number_of(value) for value in values]
    fractions = sum(number is not None and math.isfinite(number) and number != int(number) for number in numbers)
    if None in numbers and fractions <= len(values) / 2:
        return "class", "the labels are not all numbers"
    if None not in numbers and fractions:
        return "score", "the labels are numbers with fractions"
    for row, number in enumerate(numbers, 1):
        if number is None or not math.isfinite(number):
            raise UserError(
                f"'{source}', row {row}: label '{values[row - 1]}' among numbers. Correct it, or give --kind class."
            )
    different = len(set(numbers))
    if different > MOST_CLASSES:
        return "score", f"the labels are {different} different numbers"
    return "class", f"the labels are {different} whole numbers; --kind score overrides"


def _text_columns(source: object, columns: Columns, request: Request, label: str) -> tuple[str, str | None]:
    """The text and pair columns: as requested, else a usual pair of names, else a usual name."""
    if request.text_pair is not None:
        pair = _column(source, columns, "--text-pair", request.text_pair, ())
        usual = tuple(first for first, second in USUAL_PAIRS if second == pair)
        return _column(source, columns, "--text", request.text, (*usual, *USUAL_TEXTS)), pair
    if request.text is None:
        for first, second in USUAL_PAIRS:
            if first in columns and second in columns:
                return first, second
    others = tuple(column for column in columns if column != label)
    return _column(source, columns, "--text", request.text, USUAL_TEXTS + (others if len(others) == 1 else ())), None


def _column(source: object, columns: Columns, flag: str, asked: str | None, usual: tuple[str, ...]) -> str:
    if asked is not None:
        values_of(source, columns, asked, flag)
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
