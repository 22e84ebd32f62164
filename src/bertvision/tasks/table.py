"""A user's own CSV, TSV, JSONL or Parquet file, with one or two text columns and an answer column."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.registry import unknown
from bertvision.tasks import DATA_OPTIONS, Roles, Task, tasks
from bertvision.tasks.reading import Columns, finite_scores, read_columns, texts_of
from bertvision.tasks.sampling import split
from bertvision.types import Dataset, Examples

CLASS_METRICS = ("accuracy", "f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")
USUAL_PAIRS = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text", "text_pair"))
USUAL_TEXTS = ("text", "sentence")
MOST_CLASSES = 20  # whole numbers with more distinct values than this are taken for scores


def load(request: Request) -> Dataset:
    if not request.train:
        raise UserError("Task 'table' needs --train FILE (CSV, TSV, JSONL or Parquet).")
    dev = (Path(request.dev), read_columns(Path(request.dev))) if request.dev else None
    return dataset_of(Path(request.train), read_columns(Path(request.train)), request, dev)


def dataset_of(
    source: object, columns: Columns, request: Request, dev: tuple[object, Columns] | None = None
) -> Dataset:
    """A table as a dataset. `source` and the first of `dev` are what error messages call the tables."""
    label = _column(source, columns, "--label", request.label, ("label", "score", "target", "class"))
    text, pair = _text_columns(source, columns, request, label)
    kind, why = (request.kind, "as asked") if request.kind else infer_kind(source, columns[label])
    labels = _class_names(source, columns[label]) if kind == "class" else ()
    train = _examples(source, columns, text, pair, label, labels)
    assert train.targets is not None
    notes = [f"text '{text}'" + (f", pair '{pair}'" if pair else "") + f", label '{label}': kind {kind} ({why})"]
    if not labels and not np.ptp(train.targets):
        raise UserError(f"'{source}': all scores are {train.targets[0]}; there is nothing to learn.")
    roles = {"text": text, "pair": pair, "label": label}
    if dev is not None:
        examples = from_columns(*dev, roles, labels)
        if examples.targets is None:
            raise UserError(f"'{dev[0]}' has no column '{label}' (--label).")
    else:
        rest, chosen = split(train, 0.1, 1000, "dev")
        train, examples = train.take(rest), train.take(chosen)
        notes.append(f"no --dev: {len(examples)} rows of train are set aside to report on")
    metrics = CLASS_METRICS if labels else SCORE_METRICS
    return Dataset("table", kind, labels, metrics, train, {"dev": examples}, roles, tuple(notes))


def read_table(path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A file with the columns that another one was trained on; without the label column it has no targets."""
    return from_columns(path, read_columns(path), roles, labels)


def from_columns(source: object, columns: Columns, roles: Roles, labels: tuple[str, ...]) -> Examples:
    text = _column(source, columns, "the text", roles["text"], ())
    pair = _column(source, columns, "the second text", roles["pair"], ()) if roles["pair"] else None
    label = roles["label"] if roles["label"] in columns else None
    return _examples(source, columns, text, pair, label, labels)


def infer_kind(source: object, values: list[Any]) -> tuple[str, str]:
    """(kind, why): numbers with a fraction, or very many different ones, are scores; all else are classes."""
    numbers, words = [], []
    for row, value in enumerate(values, 1):
        try:
            numbers.append(float(value))
        except (TypeError, ValueError):
            words.append((row, value))
    fractions = [number for number in numbers if math.isfinite(number) and number != math.floor(number)]
    if words and len(fractions) > len(values) / 2:
        row, value = words[0]
        raise UserError(f"'{source}', row {row}: label '{value}' among numbers. Mend it, or say --kind class.")
    if words:
        return "class", "the labels are not all numbers"
    if fractions:
        return "score", "the labels are numbers with fractions"
    for row, number in enumerate(numbers, 1):
        if not math.isfinite(number):
            raise UserError(
                f"'{source}', row {row}: label '{values[row - 1]}' among numbers. Mend it, or say --kind class."
            )
    different = len(set(numbers))
    if different > MOST_CLASSES:
        return "score", f"the labels are {different} different numbers"
    return "class", f"the labels are {different} whole numbers; --kind score overrides"


def _text_columns(source: object, columns: Columns, request: Request, label: str) -> tuple[str, str | None]:
    """The text and pair columns: as asked, or two with the usual names of a pair, or one with a usual name."""
    if request.text_pair is not None:
        pair = _column(source, columns, "--text-pair", request.text_pair, ())
        usual = tuple(first for first, second in USUAL_PAIRS if second == pair)
        return _column(source, columns, "--text", request.text, (*usual, *USUAL_TEXTS)), pair
    if request.text is None:
        for first, second in USUAL_PAIRS:
            if first in columns and second in columns:
                return first, second
    return _column(source, columns, "--text", request.text, USUAL_TEXTS, not_this=label), None


def _column(
    source: object, columns: Columns, name: str, asked: str | None, usual: tuple[str, ...], not_this: str | None = None
) -> str:
    if asked is not None:
        if asked not in columns:
            raise UserError(f"'{source}', {name}: {unknown('column', asked, list(columns))}")
        return asked
    for guess in usual:
        if guess in columns:
            return guess
    rest = [column for column in columns if column != not_this]
    if not_this is not None and len(rest) == 1:
        return rest[0]
    raise UserError(f"'{source}': which column is {name}? It has: {', '.join(columns)}.")


def _class_names(source: object, values: list[Any]) -> tuple[str, ...]:
    counts = Counter(_name(value) for value in values)
    if "" in counts:
        row = next(i for i, value in enumerate(values, 1) if _name(value) == "")
        raise UserError(f"'{source}', row {row}: the label is empty.")
    if len(counts) < 2:
        raise UserError(f"'{source}': all labels are '{next(iter(counts))}'; at least two classes are needed.")
    if len(counts) > len(values) // 2 and len(values) > 20:
        raise UserError(f"'{source}': {len(counts)} classes in {len(values)} rows; is --label the right column?")
    return tuple(sorted(counts, key=_natural))


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers in numeric order, then words."""
    try:
        return 0, float(name), name
    except ValueError:
        return 1, 0.0, name


def _name(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _examples(
    source: object, columns: Columns, text: str, pair: str | None, label: str | None, labels: tuple[str, ...]
) -> Examples:
    texts = texts_of(source, text, columns[text])
    pairs = texts_of(source, pair, columns[pair]) if pair else None
    if label is None:
        return Examples(texts, pairs, None)
    values = columns[label]
    return Examples(texts, pairs, _indices(source, values, labels) if labels else finite_scores(source, label, values))


def _indices(source: object, values: list[Any], labels: tuple[str, ...]) -> np.ndarray:
    index = {name: i for i, name in enumerate(labels)}
    for row, value in enumerate(values, 1):
        if _name(value) not in index:
            raise UserError(
                f"'{source}', row {row}: label '{_name(value)}' does not occur in train ({', '.join(labels)})."
            )
    return np.array([index[_name(value)] for value in values], dtype=np.int64)


tasks.add(
    "table",
    Task("your own CSV, TSV, JSONL or Parquet file", CLASS_METRICS + SCORE_METRICS, load, read_table, DATA_OPTIONS[1:]),
)
