"""Invented SQuAD: questions on paragraphs about people, towns and firms that do not exist.

A seeded generator writes them, so that span tasks can be tried and tested offline in seconds. Each paragraph states
some facts about two subjects. A question asks for one of these facts, or for one that is not stated about its subject
and is therefore unanswerable, however likely a candidate looks.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.options import Request
from bertvision.tasks import QUESTION_OPTIONS, Task, tasks
from bertvision.tasks.squad import ROLES, SPAN_METRICS, ReadingNotes, examples_of, read
from bertvision.types import Dataset

ONSETS = "b br d dr f g gl h k kr l m n p r s st t tr v w".split()
VOWELS = "a e i o u ai ea or el an".split()
CODAS = "n r l s t m nd rk ss th".split()
TRADES = ["painter", "engineer", "botanist", "composer", "lawyer", "astronomer", "baker", "surgeon", "printer", "pilot"]
GOODS = ["clocks", "bicycles", "paper", "glass", "pianos", "lamps", "boats", "tea", "maps", "cameras"]
RIVERS = ["Ouse", "Tarn", "Elva", "Morn", "Issel", "Varde", "Lune", "Sorg"]


@dataclass(frozen=True)
class Fact:
    """A sentence with places for the subject {s} and the answer {a}, and questions about that answer."""

    sentence: str
    questions: tuple[str, ...]
    answer: Callable[[random.Random], str]


def _year(draw: random.Random) -> str:
    return str(draw.randrange(1700, 2000))


def _name(draw: random.Random) -> str:
    parts = [draw.choice(ONSETS) + draw.choice(VOWELS) for _ in range(draw.randrange(1, 3))]
    return "".join(parts).capitalize() + draw.choice(CODAS)


def _person(draw: random.Random) -> str:
    return f"{_name(draw)} {_name(draw)}"


def _count(draw: random.Random) -> str:
    return f"{draw.randrange(2, 900)},{draw.randrange(1000):03d}"


FACTS = {
    "person": [
        Fact("{s} was born in {a}.", ("Where was {s} born?", "In which town was {s} born?"), _name),
        Fact("{s} worked as a {a} for many years.", ("What did {s} work as?", "What was the trade of {s}?"),
             lambda draw: draw.choice(TRADES)),
        Fact("In {a}, {s} moved to the coast.", ("When did {s} move to the coast?",), _year),
        Fact("{s} was married to {a}.", ("Who was {s} married to?", "Whom did {s} marry?"), _person),
        Fact("{s} studied with {a}, who was famous then.", ("With whom did {s} study?",), _person),
        Fact("{s} died in {a} after a long illness.", ("When did {s} die?", "In what year did {s} die?"), _year),
    ],
    "town": [
        Fact("{s} lies on the river {a}.", ("On which river does {s} lie?",), lambda draw: draw.choice(RIVERS)),
        Fact("{s} was founded in {a}.", ("When was {s} founded?", "In what year was {s} founded?"), _year),
        Fact("About {a} people live in {s}.", ("How many people live in {s}?",), _count),
        Fact("The bridge of {s} was built by {a}.", ("Who built the bridge of {s}?",), _person),
        Fact("{s} is known for its {a}.", ("What is {s} known for?",), lambda draw: draw.choice(GOODS)),
    ],
    "firm": [
        Fact("{s} makes {a}.", ("What does {s} make?",), lambda draw: draw.choice(GOODS)),
        Fact("{s} was started by {a}.", ("Who started {s}?",), _person),
        Fact("The head office of {s} is in {a}.", ("Where is the head office of {s}?",), _name),
        Fact("In {a}, {s} nearly closed.", ("When did {s} nearly close?",), _year),
        Fact("{s} employs {a} people.", ("How many people does {s} employ?",), _count),
    ],
}  # fmt: skip


def invent(paragraphs: int, seed: int) -> dict[str, Any]:
    """SQuAD 2.0 JSON with `paragraphs` paragraphs of two subjects each; a third of the questions have no answer."""
    draw = random.Random(seed)
    articles: list[dict[str, Any]] = []
    for number in range(paragraphs):
        if number % 4 == 0:
            articles.append({"title": f"Invented {seed}-{len(articles)}", "paragraphs": []})
        articles[-1]["paragraphs"].append(_paragraph(draw, f"{seed}-{number}"))
    return {"version": "v2.0", "data": articles}


def _paragraph(draw: random.Random, name: str) -> dict[str, Any]:
    context, asked = "", []
    for _ in range(2):
        kind = draw.choice(list(FACTS))
        subject = _person(draw) if kind == "person" else _name(draw) + (" Brothers" if kind == "firm" else "")
        facts = draw.sample(FACTS[kind], len(FACTS[kind]))
        told = draw.randrange(2, len(facts))
        for fact in facts[:told]:
            answer = fact.answer(draw)
            before, after = fact.sentence.replace("{s}", subject).split("{a}")
            asked.append((draw.choice(fact.questions).replace("{s}", subject), answer, len(context) + len(before)))
            context += before + answer + after + " "
        asked += [(draw.choice(fact.questions).replace("{s}", subject), "", 0) for fact in facts[told:]]
    answerable, unanswerable = ([row for row in asked if bool(row[1]) == known] for known in (True, False))
    kept = answerable + unanswerable[: len(answerable) // 2]
    draw.shuffle(kept)
    return {"context": context.strip(), "qas": [_entry(f"{name}-{i}", *row) for i, row in enumerate(kept)]}


def _entry(name: str, question: str, answer: str, start: int) -> dict[str, Any]:
    answers = [{"text": answer, "answer_start": start}] if answer else []
    return {"id": name, "question": question, "answers": answers, "is_impossible": not answer}


def write(folder: Path, train: int = 120, dev: int = 40) -> None:
    """Write train-v2.0.json and dev-v2.0.json, a folder for `--data`, with that many paragraphs."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, paragraphs, seed in (("train", train, 1), ("dev", dev, 2)):
        text = json.dumps(invent(paragraphs, seed), indent=1)
        (folder / f"{part}-v2.0.json").write_text(text + "\n", encoding="utf-8")


def load(options: Request) -> Dataset:
    parts = {
        part: examples_of(invent(paragraphs, seed), ReadingNotes("invented", True, part == "train"))
        for part, paragraphs, seed in (("train", 400, 1), ("dev", 100, 2))
    }
    return Dataset("squad2-invented", "span", (), SPAN_METRICS, parts["train"], {"dev": parts["dev"]}, ROLES)


tasks.add(
    "squad2-invented",
    Task("like squad2, on invented paragraphs (no data needed)", SPAN_METRICS, load, read, QUESTION_OPTIONS[1:]),
)
