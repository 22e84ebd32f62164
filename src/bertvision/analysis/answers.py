"""Question answering: answered and withheld answers, second answers, and scores by type of question."""

import re

import numpy as np

from bertvision.analysis import Table, register
from bertvision.analysis.errors import grouped, mean
from bertvision.analysis.evidence import Evidence
from bertvision.metrics.squad import Gold

QUESTION_WORDS = ("what", "who", "when", "where", "why", "which", "how many", "how much", "how")
MONTHS = r"\b(january|february|march|april|may|june|july|august|september|october|november|december)\b"


@register("shares", "exact match on answerable and unanswerable questions at every mark", kinds=("span",))
def shares(evidence: Evidence) -> list[Table]:
    rows = []
    for mark in evidence.results.marks:
        kept = evidence.run.predictions(mark.mark)[evidence.split]
        answerable = kept.targets == 1
        for role, model in mark.roles.items():
            exact, silent = kept.outputs[model][:, 0] == 1, kept.answers[model] == ""
            rows.append(
                {
                    "epochs": mark.mark,
                    "role": role,
                    "model": model,
                    "answerable right": mean(exact[answerable]),
                    "unanswerable right": mean(exact[~answerable]),
                    "answerable errors that are silence": mean(silent[answerable & ~exact]),
                    "answers given": mean(~silent),
                }
            )
    note = "Exact match, with each model's own null threshold. Silence is an answer that was withheld."
    return [Table("Answerable and unanswerable questions", note, rows)]


@register("second", "how often the second most likely answer is right if the first is wrong", kinds=("span",))
def second(evidence: Evidence) -> list[Table]:
    questions = evidence.examples.questions
    assert questions is not None
    if evidence.recipe.decoding == "argmax":
        return []  # argmax gives one answer only
    golds = [Gold.of([answer.text for answer in found]) for found in questions.answers]
    rows = []
    for role, model in evidence.roles.items():
        others = evidence.said("seconds", model)
        right = np.array([gold.quality(str(text))[0] == 1 for gold, text in zip(golds, others, strict=True)])
        wrong, answerable = ~evidence.right(model), evidence.targets == 1
        rows.append(
            {
                "role": role,
                "model": model,
                "first wrong": int(wrong.sum()),
                "second right": mean(right[wrong]),
                "of answerable": mean(right[wrong & answerable]),
                "of unanswerable": mean(right[wrong & ~answerable]),
            }
        )
    return [Table("The second most likely answer", "Exact match, where the first answer is wrong.", rows)]


@register("questions", "scores by question word and by type of answer", kinds=("span",))
def questions(evidence: Evidence) -> list[Table]:
    examples = evidence.examples
    assert examples.questions is not None
    words = np.array([question_word(text) for text in examples.texts])
    types = np.array([answer_type(found[0].text if found else "") for found in examples.questions.answers])
    tables = []
    for title, kinds in (("By question word", words), ("By type of answer", types)):
        names = sorted(set(kinds), key=lambda name: (-int((kinds == name).sum()), name))
        tables.append(Table(title, "F1 within groups.", grouped(evidence, {str(n): kinds == n for n in names})))
    return tables


def question_word(text: str) -> str:
    """The first question word, wherever it occurs ("In what year ...")."""
    found = re.search(rf"\b({'|'.join(QUESTION_WORDS)})\b", text.lower().replace("whose", "who").replace("whom", "who"))
    return found.group(1) if found else "other"


def answer_type(text: str) -> str:
    """A rough type, by how the answer is written."""
    if not text:
        return "none"
    if re.search(r"\b1\d{3}s?\b|\b20\d{2}s?\b", text) or re.search(MONTHS, text.lower()):
        return "date"
    if re.search(r"\d", text):
        return "number"
    if all(word[:1].isupper() for word in re.findall(r"\w{4,}", text)) and text[:1].isupper():
        return "name"
    return "phrase" if len(text.split()) < 8 else "clause"
