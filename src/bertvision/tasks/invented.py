"""Invented SQuAD: questions on paragraphs about people, towns and firms that do not exist.

A seeded generator writes them, so that span tasks can be tried and tested offline in seconds. Each paragraph states
some facts about two subjects. A question asks for one of these facts, or for one that is not stated about its subject
and is therefore unanswerable, however likely a candidate looks.
"""

import json
import random
from pathlib import Path
from typing import Any

from bertvision.options import Request
from bertvision.tasks import QUESTION_OPTIONS, Task, tasks
from bertvision.tasks.squad import ROLES, SPAN_METRICS, ReadingNotes, examples_of, read
from bertvision.types import Dataset

ONSETS = "b br d dr f g gl h k kr l m n p r s st t tr v w".split()
VOWELS = "a e i o u ai ea or el an".split()
CODAS = "n r l s t m nd rk ss th".split()
CHOICES = {
    "trade": "painter engineer botanist composer lawyer astronomer baker surgeon printer pilot".split(),
    "goods": "clocks bicycles paper glass pianos lamps boats tea maps cameras".split(),
    "river": "Ouse Tarn Elva Morn Issel Varde Lune Sorg".split(),
}
# Sentences with places for the subject {s} and the answer {a}, questions about that answer, and the kind of answer.
FACTS: dict[str, list[tuple[str, tuple[str, ...], str]]] = {
    "person": [
        ("{s} was born in {a}.", ("Where was {s} born?", "In which town was {s} born?"), "name"),
        ("{s} worked as a {a} for many years.", ("What did {s} work as?", "What was the trade of {s}?"), "trade"),
        ("In {a}, {s} moved to the coast.", ("When did {s} move to the coast?",), "year"),
        ("{s} was married to {a}.", ("Who was {s} married to?", "Whom did {s} marry?"), "person"),
        ("{s} studied with {a}, who was famous then.", ("With whom did {s} study?",), "person"),
        ("{s} died in {a} after a long illness.", ("When did {s} die?", "In what year did {s} die?"), "year"),
    ],
    "town": [
        ("{s} lies on the river {a}.", ("On which river does {s} lie?",), "river"),
        ("{s} was founded in {a}.", ("When was {s} founded?", "In what year was {s} founded?"), "year"),
        ("About {a} people live in {s}.", ("How many people live in {s}?",), "count"),
        ("The bridge of {s} was built by {a}.", ("Who built the bridge of {s}?",), "person"),
        ("{s} is known for its {a}.", ("What is {s} known for?",), "goods"),
    ],
    "firm": [
        ("{s} makes {a}.", ("What does {s} make?",), "goods"),
        ("{s} was started by {a}.", ("Who started {s}?",), "person"),
        ("The head office of {s} is in {a}.", ("Where is the head office of {s}?",), "name"),
        ("In {a}, {s} nearly closed.", ("When did {s} nearly close?",), "year"),
        ("{s} employs {a} people.", ("How many people does {s} employ?",), "count"),
    ],
}


def _answer(draw: random.Random, kind: str) -> str:
    if kind in CHOICES:
        return draw.choice(CHOICES[kind])
    if kind == "year":
        return str(draw.randrange(1700, 2000))
    if kind == "count":
        return f"{draw.randrange(2, 900)},{draw.randrange(1000):03d}"
    if kind == "person":
        return f"{_answer(draw, 'name')} {_answer(draw, 'name')}"
    parts = [draw.choice(ONSETS) + draw.choice(VOWELS) for _ in range(draw.randrange(1, 3))]
    return "".join(parts).capitalize() + draw.choice(CODAS)


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
        subject = _answer(draw, "person" if kind == "person" else "name") + (" Brothers" if kind == "firm" else "")
        facts = draw.sample(FACTS[kind], len(FACTS[kind]))
        told = draw.randrange(2, len(facts))
        for i, (sentence, questions, wanted) in enumerate(facts):
            answer, place = "", 0
            if i < told:
                answer = _answer(draw, wanted)
                before, after = sentence.replace("{s}", subject).split("{a}")
                place = len(context) + len(before)
                context += before + answer + after + " "
            asked.append((draw.choice(questions).replace("{s}", subject), answer, place))
    answerable = [row for row in asked if row[1]]
    kept = answerable + [row for row in asked if not row[1]][: len(answerable) // 2]
    draw.shuffle(kept)
    rows = []
    for i, (question, answer, start) in enumerate(kept):
        answers = [{"text": answer, "answer_start": start}] if answer else []
        rows.append({"id": f"{name}-{i}", "question": question, "answers": answers, "is_impossible": not answer})
    return {"context": context.strip(), "qas": rows}


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
