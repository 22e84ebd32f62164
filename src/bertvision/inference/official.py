"""SQuAD's official files: write answers as the official evaluation takes them, and score such files."""

from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.kinds import Predictions
from bertvision.metrics.squad import report
from bertvision.records import write_json
from bertvision.tasks.squad import golds as squad_golds
from bertvision.tasks.squad import parsed
from bertvision.types import Examples


def write_official(folder: Path, examples: Examples, found: Predictions) -> list[str]:
    """predictions.json and na_prob.json, as the official evaluation takes them."""
    assert examples.questions is not None
    assert found.null_probabilities is not None
    answers = dict(zip(examples.questions.ids, found.answers(), strict=True))
    nulls = dict(zip(examples.questions.ids, map(float, found.null_probabilities), strict=True))
    files = {"predictions.json": answers, "na_prob.json": nulls}
    for name, values in files.items():
        write_json(folder / name, values)
    return [str(folder / name) for name in files]


def score_squad2(predictions: Path, data: Path, na_prob: Path | None, threshold: float) -> dict[str, float]:
    """The official evaluation of a file of answers; a missing answer is an error."""
    golds = squad_golds(data)
    answers = _mapping(predictions, golds, str, "an answer")
    nulls = _mapping(na_prob, golds, (int, float), "a probability") if na_prob else None
    return report(golds, answers, nulls, threshold)


def _mapping(path: Path, golds: dict[str, list[str]], kind: Any, what: str) -> dict[str, Any]:
    found = parsed(path)
    if not isinstance(found, dict):
        raise UserError(f"'{path}' must hold one JSON object, question id -> {what}.")
    missing = [name for name in golds if name not in found]
    if missing:
        raise UserError(f"'{path}' lacks {what} for {len(missing)} of {len(golds)} questions, e.g. id {missing[0]}.")
    wrong = [name for name, value in found.items() if not isinstance(value, kind)]
    if wrong:
        raise UserError(f"'{path}', id {wrong[0]}: {found[wrong[0]]!r} is not {what}.")
    return found
