"""SQuAD 1.1 and 2.0: questions on paragraphs, from the official JSON, a folder with it, or the Hugging Face hub.

`squad2` asks for the answer's span, `squad2-answerable` only whether the paragraph answers the question at all.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import QUESTION_OPTIONS, Roles, Task, tasks
from bertvision.tasks.reading import read_columns, read_text, texts_of, whole
from bertvision.types import Answer, Dataset, Examples, Questions

HUB_NAME = "rajpurkar/squad_v2"
FILES = {part: (f"{part}-v2.0.json", f"{part}-v1.1.json", f"{part}.json") for part in ("train", "dev")}
ROLES: Roles = {"text": "question", "pair": "context", "label": None}
SPAN_METRICS = ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_exact", "raw_f1", "raw_exact", "found_f1")
CLASS_METRICS = ("accuracy", "f1")
LABELS = ("unanswerable", "answerable")


@dataclass
class Reading:
    """What reading one source found worth telling."""

    source: str
    strict: bool
    for_training: bool
    moved: list[str] = field(default_factory=list)  # ids whose answer stands elsewhere than its offset says
    lost: list[str] = field(default_factory=list)  # ids whose answer does not occur in the context
    empty: list[str] = field(default_factory=list)  # ids with an empty question or context

    def notes(self) -> list[str]:
        kinds = (
            (self.moved, "an answer stood elsewhere than its offset says; the nearest occurrence is used"),
            (self.lost, "no answer occurs in the context; " + ("left out" if self.for_training else "scored by text")),
            (self.empty, "the question or the context is empty; left out"),
        )
        return [f"{self.source}: {len(ids)} questions where {what} (first: id {ids[0]})" for ids, what in kinds if ids]


def load(kind: str, options: Request) -> Dataset:
    if options.data and (options.train or options.dev):
        raise UserError("Give --data FOLDER, or --train FILE with --dev FILE, not both.")
    if options.train or options.dev:
        if not options.train or not options.dev:
            raise UserError(f"Task '{options.task}' needs both --train FILE and --dev FILE (or --data FOLDER).")
        files = {"train": Path(options.train), "dev": Path(options.dev)}
    elif options.data:
        files = {part: _find(Path(options.data), part) for part in FILES}
    else:
        return _dataset(kind, options.task, *_from_hub(options))
    parts, notes = {}, []
    for part, path in files.items():
        reading = Reading(str(path), options.strict, part == "train")
        parts[part] = read_json(path, reading)
        notes += reading.notes()
    return _dataset(kind, options.task, parts, notes)


def read(path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file: SQuAD JSON, or a table with columns question and context."""
    if path.suffix == ".json":
        return read_json(path, Reading(str(path), False, False))
    columns = read_columns(path)
    for name in ("question", "context"):
        if name not in columns:
            raise UserError(f"'{path}' has no column '{name}'. Its columns: {', '.join(columns)}.")
    return Examples(
        texts_of(path, "question", columns["question"]), texts_of(path, "context", columns["context"]), None
    )


def _dataset(kind: str, task: str, parts: dict[str, Examples], notes: list[str]) -> Dataset:
    for name, part in parts.items():
        assert part.targets is not None
        answerable = int(part.targets.sum())
        notes = [*notes, f"{name}: {len(part)} questions, {len(part) - answerable} without an answer"]
    if kind == "span":
        return Dataset(task, "span", (), SPAN_METRICS, parts["train"], {"dev": parts["dev"]}, ROLES, tuple(notes))
    return Dataset(task, "class", LABELS, CLASS_METRICS, parts["train"], {"dev": parts["dev"]}, ROLES, tuple(notes))


def _find(data: Path, part: str) -> Path:
    if not data.is_dir():
        raise UserError(f"--data '{data}' is not a folder.")
    folders = [data, *sorted(child for child in data.iterdir() if child.name.lower().startswith("squad"))]
    for folder in folders:
        for name in FILES[part]:
            if (folder / name).exists():
                return folder / name
    raise UserError(f"--data '{data}' holds no {part} file of SQuAD ({', '.join(FILES[part])}).")


def read_json(path: Path, reading: Reading) -> Examples:
    """Official SQuAD JSON, 1.1 (without `is_impossible`) or 2.0."""
    return examples_of(parsed(path), reading)


def examples_of(found: Any, reading: Reading) -> Examples:
    return _examples(_rows(reading.source, found), reading)


def parsed(path: Path) -> Any:
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = " It looks cut short." if error.pos >= len(text.rstrip()) - 1 else ""
        raise UserError(f"'{path}', line {error.lineno}, column {error.colno}: not JSON ({error.msg}).{cut}") from None


def _rows(source: object, found: Any) -> Iterator[dict[str, Any]]:
    """Flat rows of the nested file; a part that is missing is named by its place."""

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


def _examples(rows: Iterator[dict[str, Any]], reading: Reading) -> Examples:
    kept = []
    for row in rows:
        if reading.for_training and not (row["question"].strip() and row["context"].strip()):
            reading.empty.append(row["id"])
            continue
        # To score, the answers alone decide, as in the official evaluation.
        impossible = row["impossible"] and reading.for_training
        golds = [] if impossible else [answer for answer in row["answers"] if answer.text.strip()]
        answers = [_placed(answer, row, reading) for answer in golds]
        if any(old.start != new.start >= 0 for old, new in zip(golds, answers, strict=True)):
            reading.moved.append(row["id"])
        if answers and all(answer.start < 0 for answer in answers):
            reading.lost.append(row["id"])
            if reading.for_training:
                continue
        row["answers"] = tuple(sorted(answers, key=lambda answer: answer.start < 0))  # those with a place first
        kept.append(row)
    if not kept:
        raise UserError(f"'{reading.source}' has no questions.")
    twice = [name for name, count in Counter(row["id"] for row in kept).items() if count > 1]
    if twice:
        raise UserError(f"'{reading.source}': {len(twice)} ids occur twice, e.g. '{twice[0]}'.")
    questions = Questions([r["id"] for r in kept], [r["title"] for r in kept], [r["answers"] for r in kept])
    targets = np.array([int(bool(row["answers"])) for row in kept], dtype=np.int64)
    return Examples([r["question"] for r in kept], [r["context"] for r in kept], targets, questions)


def _placed(answer: Answer, row: dict[str, Any], reading: Reading) -> Answer:
    """The answer where it really stands; at -1 where it does not occur."""
    context, text = row["context"], answer.text
    if context.startswith(text, answer.start) and answer.start >= 0:
        return answer
    if reading.strict:
        raise UserError(
            f"'{reading.source}', id {row['id']}: the answer '{text}' does not stand at {answer.start} (--strict)."
        )
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    if not places:
        return Answer(text, -1)
    return Answer(text, min(places, key=lambda place: abs(place - answer.start)))


def _from_hub(options: Request) -> tuple[dict[str, Examples], list[str]]:
    ways = (
        "Either give its files: --data FOLDER (with train-v2.0.json and dev-v2.0.json), or let the Hugging Face hub"
        " send them: pip install 'bertvision[hub]', with network."
    )
    try:
        import datasets
    except ImportError:
        raise UserError(f"The data of '{options.task}' is not here. {ways}") from None
    parts, notes = {}, []
    for part, name in (("train", "train"), ("dev", "validation")):
        try:
            rows = datasets.load_dataset(HUB_NAME, split=name)
        except Exception as error:  # the hub client raises many kinds; to the user they all mean: no data
            raise UserError(f"The hub did not give '{HUB_NAME}' ({error}). {ways}") from None
        reading = Reading(f"{HUB_NAME}/{name}", options.strict, part == "train")
        parts[part] = _examples(map(_hub_row, rows), reading)
        notes += reading.notes()
    return parts, notes


def _hub_row(row: Any) -> dict[str, Any]:
    found = row["answers"]
    answers = [Answer(*pair) for pair in zip(found["text"], found["answer_start"], strict=True)]
    return {
        **{key: row[key] for key in ("id", "title", "context", "question")},
        "answers": answers,
        "impossible": False,
    }


def golds(path: Path) -> dict[str, list[str]]:
    """id -> texts of all right answers, as the official evaluation reads them (`is_impossible` plays no part)."""
    found = {row["id"]: [answer.text for answer in row["answers"]] for row in _rows(path, parsed(path))}
    if not found:
        raise UserError(f"'{path}' has no questions.")
    return found


_FILES = ("data", "train", "dev")
tasks.add(
    "squad2",
    Task(
        "find the answer to a question in a text, or say there is none",
        SPAN_METRICS,
        partial(load, "span"),
        read,
        _FILES + QUESTION_OPTIONS,
    ),
)
tasks.add(
    "squad2-answerable",
    Task(
        "does the text answer the question", CLASS_METRICS, partial(load, "class"), read, (*_FILES, "strict", "stride")
    ),
)
