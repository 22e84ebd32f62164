"""SQuAD 1.1 and 2.0: questions on paragraphs, from the official JSON, a folder with it, or the Hugging Face hub.

`squad2` asks for the answer's span; `squad2-answerable` only asks whether the paragraph answers the question.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import QUESTION_OPTIONS, Roles, Task, tasks
from bertvision.tasks.reading import find_file, read_hub, read_text, whole
from bertvision.tasks.table import read_table
from bertvision.types import Answer, Dataset, Examples, Questions

HUB_NAME = "rajpurkar/squad_v2"
ROLES: Roles = {"text": "question", "pair": "context", "label": None}
SPAN_METRICS = ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_exact", "raw_f1", "raw_exact", "found_f1")
CLASS_METRICS = ("accuracy", "f1")
LABELS = ("unanswerable", "answerable")
Row = dict[str, Any]  # id, title, context, question, answers, impossible


@dataclass
class ReadingNotes:
    """How to read one source, and what reading it found."""

    source: str
    strict: bool
    for_training: bool
    moved: list[str] = field(default_factory=list)  # ids whose answer is not at its offset
    lost: list[str] = field(default_factory=list)  # ids whose answer does not occur in the context
    empty: list[str] = field(default_factory=list)  # ids with an empty question or context

    def notes(self) -> list[str]:
        kinds = (
            (self.moved, "an answer was not at its offset; the nearest occurrence is used"),
            (self.lost, "no answer occurs in the context; " + ("left out" if self.for_training else "scored by text")),
            (self.empty, "the question or the context is empty; left out"),
        )
        return [f"{self.source}: {len(ids)} questions where {what} (first: id {ids[0]})" for ids, what in kinds if ids]


def load(kind: str, options: Request) -> Dataset:
    parts: dict[str, Examples] = {}
    notes: list[str] = []
    for part, (source, rows) in _sources(options).items():
        reading = ReadingNotes(source, options.strict, part == "train")
        parts[part] = _examples(rows, reading)
        unanswerable = np.count_nonzero(parts[part].targets == 0)
        notes += [*reading.notes(), f"{part}: {len(parts[part])} questions, {unanswerable} without an answer"]
    labels, metrics = ((), SPAN_METRICS) if kind == "span" else (LABELS, CLASS_METRICS)
    return Dataset(options.task, kind, labels, metrics, parts["train"], {"dev": parts["dev"]}, ROLES, tuple(notes))


def _sources(options: Request) -> dict[str, tuple[str, Iterator[Row]]]:
    """train and dev -> name and rows of the source."""
    files: dict[str, Any] = {"train": options.train, "dev": options.dev}
    given = [file for file in files.values() if file]
    if options.data and given:
        raise UserError("Give --data FOLDER, or --train FILE with --dev FILE, not both.")
    if len(given) == 1:
        raise UserError(f"Task '{options.task}' needs both --train FILE and --dev FILE (or --data FOLDER).")
    if not options.data and not given:
        splits = {"train": "train", "dev": "validation"}
        found = read_hub(options.task, "with train-v2.0.json and dev-v2.0.json", HUB_NAME, None, tuple(splits.values()))
        return {part: (f"{HUB_NAME}/{split}", map(_hub_row, found[split])) for part, split in splits.items()}
    for part in files if options.data else ():
        names = (f"{part}-v2.0.json", f"{part}-v1.1.json", f"{part}.json")
        missing = f"holds no {part} file of SQuAD ({', '.join(names)})."
        files[part] = find_file(Path(str(options.data)), ("squad*",), names, missing)
    return {part: (str(file), _rows(file, parsed(Path(file)))) for part, file in files.items()}


def read(path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file: SQuAD JSON, or a table with the columns question and context."""
    if path.suffix == ".json":
        return read_json(path, ReadingNotes(str(path), strict=False, for_training=False))
    return read_table(path, ROLES, ())


def read_json(path: Path, reading: ReadingNotes) -> Examples:
    """Official SQuAD JSON, 1.1 (without `is_impossible`) or 2.0."""
    return examples_of(parsed(path), reading)


def examples_of(found: Any, reading: ReadingNotes) -> Examples:
    return _examples(_rows(reading.source, found), reading)


def parsed(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = " The file looks cut short." if error.pos >= len(text.rstrip()) - 1 else ""
        raise UserError(f"'{path}', line {error.lineno}, column {error.colno}: not JSON ({error.msg}).{cut}") from None


def _rows(source: object, found: Any) -> Iterator[Row]:
    """Flat rows of the nested file. Errors name the place of a missing part."""

    def part(value: Any, key: str, place: str, kind: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get(key), kind):
            raise UserError(f"'{source}': {place} has no '{key}', so this is not a SQuAD file.")
        return value[key]

    for i, article in enumerate(part(found, "data", "the file", list)):
        for j, paragraph in enumerate(part(article, "paragraphs", f"data[{i}]", list)):
            place = f"data[{i}].paragraphs[{j}]"
            context = whole(part(paragraph, "context", place, str))
            for k, row in enumerate(part(paragraph, "qas", place, list)):
                here = f"{place}.qas[{k}]"
                answers = part(row, "answers", here, list) if isinstance(row, dict) and "answers" in row else []
                yield {
                    "id": str(part(row, "id", here, (str, int))),
                    "title": str(article.get("title", i)),
                    "context": context,
                    "question": whole(part(row, "question", here, str)),
                    "answers": [
                        Answer(whole(part(answer, "text", here, str)), part(answer, "answer_start", here, int))
                        for answer in answers
                    ],
                    "impossible": bool(row.get("is_impossible")),
                }


def _hub_row(row: Any) -> Row:
    answers = map(Answer, row["answers"]["text"], row["answers"]["answer_start"])
    return row | {"answers": list(answers), "impossible": False}


def _examples(rows: Iterable[Row], reading: ReadingNotes) -> Examples:
    kept = []
    for row in rows:
        if reading.for_training and not (row["question"].strip() and row["context"].strip()):
            reading.empty.append(row["id"])
            continue
        # For scoring, the answers alone decide, as in the official evaluation.
        impossible = row["impossible"] and reading.for_training
        golds = [] if impossible else [answer for answer in row["answers"] if answer.text.strip()]
        answers = [_placed(answer, row, reading) for answer in golds]
        if any(old.start != new.start >= 0 for old, new in zip(golds, answers, strict=True)):
            reading.moved.append(row["id"])
        if answers and all(answer.start < 0 for answer in answers):
            reading.lost.append(row["id"])
            if reading.for_training:
                continue
        # Answers that occur in the context come first.
        kept.append(row | {"answers": tuple(sorted(answers, key=lambda answer: answer.start < 0))})
    if not kept:
        raise UserError(f"'{reading.source}' has no questions.")
    twice = [name for name, count in Counter(row["id"] for row in kept).items() if count > 1]
    if twice:
        raise UserError(f"'{reading.source}': {len(twice)} ids occur twice, e.g. '{twice[0]}'.")
    columns = ([row[key] for row in kept] for key in ("question", "context", "id", "title", "answers"))
    texts, contexts, ids, titles, found = columns
    targets = np.array([int(bool(answers)) for answers in found], dtype=np.int64)
    return Examples(texts, contexts, targets, Questions(ids, titles, found))


def _placed(answer: Answer, row: Row, reading: ReadingNotes) -> Answer:
    """The answer at its nearest occurrence in the context, or at -1 if it does not occur."""
    context, text, start = row["context"], *answer
    if start >= 0 and context.startswith(text, start):
        return answer
    if reading.strict:
        raise UserError(
            f"'{reading.source}', id {row['id']}: the answer '{text}' does not stand at {start} (--strict)."
        )
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    return Answer(text, min(places, key=lambda place: abs(place - start), default=-1))


def golds(path: Path) -> dict[str, list[str]]:
    """id -> texts of all correct answers, as the official evaluation reads them (it ignores `is_impossible`)."""
    found = {row["id"]: [answer.text for answer in row["answers"]] for row in _rows(path, parsed(path))}
    if not found:
        raise UserError(f"'{path}' has no questions.")
    return found


_FILES = ("data", "train", "dev")
for _name, _about, _metrics, _kind, _options in (
    ("squad2", "find the answer to a question in a text, or say there is none", SPAN_METRICS, "span", QUESTION_OPTIONS),
    ("squad2-answerable", "does the text answer the question", CLASS_METRICS, "class", ("strict", "stride")),
):
    tasks.add(_name, Task(_about, _metrics, partial(load, _kind), read, _FILES + _options))
