"""Question answering: what is answered, what is withheld, and what kind of question it was."""

import re

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.errors import grouped
from bertvision.analysis.evidence import Evidence, roles_of
from bertvision.metrics.squad import Gold

QUESTION_WORDS = ("what", "who", "when", "where", "why", "which", "how many", "how much", "how")
MONTHS = r"\b(january|february|march|april|may|june|july|august|september|october|november|december)\b"


@register(
    "shares", "answerable and unanswerable questions right, and how errors come about, at every mark", kinds=("span",)
)
def shares(evidence: Evidence) -> list[Table]:
    rows = []
    for entry in evidence.scores["marks"]:
        kept = evidence.run.predictions(entry["epoch"])[evidence.split]
        answerable = kept["targets"] == 1
        for role, model in roles_of(entry).items():
            exact, silent = kept["outputs"][model][:, 0] == 1, kept["answers"][model] == ""
            wrong = answerable & ~exact
            rows.append({
                "epochs": entry["epoch"], "role": role, "model": model,
                "answerable right": _mean(exact[answerable]), "unanswerable right": _mean(exact[~answerable]),
                "answerable errors that are silence": _mean(silent[wrong]), "answers given": _mean(~silent),
            })  # fmt: skip
    note = "Exact match, with each model's own null threshold."
    return [Table("Answerable and unanswerable questions", note, rows)]


@register("second", "how often the second most likely answer is right when the first is wrong", kinds=("span",))
def second(evidence: Evidence) -> list[Table]:
    questions = evidence.examples.questions
    assert questions is not None
    if evidence.options.decoding == "argmax":
        return []  # which knows no second
    golds = [Gold.of([answer.text for answer in found]) for found in questions.answers]
    rows = []
    for role, model in evidence.roles.items():
        others = evidence.said("seconds", model)
        right = np.array([gold.quality(str(text))[0] == 1 for gold, text in zip(golds, others, strict=True)])
        wrong, answerable = ~evidence.right(model), evidence.targets == 1
        rows.append({
            "role": role, "model": model, "first wrong": int(wrong.sum()), "second right": _mean(right[wrong]),
            "of answerable": _mean(right[wrong & answerable]), "of unanswerable": _mean(right[wrong & ~answerable]),
        })  # fmt: skip
    return [Table("The second most likely answer", "Exact match, where the first answer was wrong.", rows)]


@register("questions", "scores by question word and by type of answer", kinds=("span",))
def questions(evidence: Evidence) -> list[Table]:
    examples = evidence.examples
    assert examples.questions is not None
    words = np.array([question_word(text) for text in examples.texts])
    types = np.array([answer_type(found[0].text if found else "") for found in examples.questions.answers])
    tables = []
    for title, kinds in (("By question word", words), ("By type of the answer", types)):
        names = sorted(set(kinds), key=lambda name: -int((kinds == name).sum()))
        rows = [row for name in names if (row := grouped(evidence, str(name), kinds == name))]
        tables.append(Table(title, "F1 within groups.", rows))
    return tables


def question_word(text: str) -> str:
    """The first question word, wherever it stands ("In what year ...")."""
    found = re.search(rf"\b({'|'.join(QUESTION_WORDS)})\b", text.lower().replace("whose", "who").replace("whom", "who"))
    return found.group(1) if found else "other"


def answer_type(text: str) -> str:
    """A rough kind, by how the answer is written."""
    if not text:
        return "none"
    if re.search(r"\b1\d{3}s?\b|\b20\d{2}s?\b", text) or re.search(MONTHS, text.lower()):
        return "date"
    if re.search(r"\d", text):
        return "number"
    if all(word[:1].isupper() for word in re.findall(r"\w{4,}", text)) and text[:1].isupper():
        return "name"
    return "phrase" if len(text.split()) < 8 else "clause"


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
