"""The model `words`: fitted on examples, kept as JSON and safetensors, asked for classes or scores."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from bertvision.tasks.sampling import folds, sample
from bertvision.types import Examples
from bertvision.words.features import Features
from bertvision.words.linear import FOLDS, Linear, class_model, score_model, small_class_model

MOST_ROWS, MOST_WORK = 20_000, 1_000_000  # rows to fit, and rows times classes
MOST_CHARACTERS = 4_000_000  # of all rows together
LONGEST, SHORTEST = 20_000, 250  # characters of a text: longer ones are cut, to fewer if there are many
CHOOSING = 1000  # rows that choose the strength
FEW = 400  # rows: with fewer, classes are fitted by ridge regression
CHUNK = 2048  # examples answered at a time
TABLE, TENSORS = "words.json", "words.safetensors"


@dataclass(frozen=True)
class Words:
    """A linear model on TF-IDF of words and characters."""

    kind: str
    outputs_count: int
    classes: np.ndarray  # those that the rows had, ascending; [0] for scores
    rows: int  # that it was fitted on
    once: int  # classes with a single row
    features: Features
    linear: Linear

    @property
    def parameters(self) -> int:
        return self.linear.coefficients.size + self.linear.intercepts.size

    def outputs(self, examples: Examples) -> np.ndarray:
        """Predictions (N, C): probabilities, or a score."""
        parts = [
            self._outputs(examples.take(range(first, min(first + CHUNK, len(examples)))))
            for first in range(0, len(examples), CHUNK)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, self.outputs_count))

    def _outputs(self, examples: Examples) -> np.ndarray:
        rows = self.features.rows(examples)
        if self.kind == "score":
            return self.linear.decisions(rows)
        # Half a row's worth of probability is for all classes alike. Classes that the rows lacked are as likely, all
        # together, as those that the rows had once (Good and Turing).
        even, lacking = 0.5 / (self.rows + 1), np.setdiff1d(np.arange(self.outputs_count), self.classes)
        unseen = self.once / (self.rows + 1) if len(lacking) else 0.0
        found = np.full((len(examples), self.outputs_count), even / self.outputs_count)
        found[:, lacking] += (1 - even) * unseen / max(1, len(lacking))
        found[:, self.classes] += (1 - even) * (1 - unseen) * self.linear.probabilities(rows)
        return found

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        features, linear = self.features, self.linear
        table = {
            "kind": self.kind, "outputs": self.outputs_count, "classes": self.classes.tolist(), "rows": self.rows,
            "once": self.once,
            "limit": features.limit, "strength": linear.strength, "temperature": linear.temperature,
            "logistic": linear.logistic,
            "vocabularies": {sort: list(vocabulary) for sort, vocabulary in features.vocabularies.items()},
        }  # fmt: skip
        (folder / TABLE).write_text(json.dumps(table), encoding="utf-8")
        tensors = {f"idf/{sort}": values for sort, values in features.idf.items()}
        tensors |= {"centre": features.centre, "spread": features.spread}
        tensors |= {"coefficients": linear.coefficients, "intercepts": linear.intercepts}
        save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, folder / TENSORS)

    @classmethod
    def load(cls, folder: Path) -> "Words":
        table, tensors = json.loads((folder / TABLE).read_text(encoding="utf-8")), load_file(folder / TENSORS)
        vocabularies = {
            sort: {name: column for column, name in enumerate(names)} for sort, names in table["vocabularies"].items()
        }
        idf = {sort: tensors[f"idf/{sort}"] for sort in vocabularies}
        features = Features(table["limit"], vocabularies, idf, tensors["centre"], tensors["spread"])
        linear = Linear(
            tensors["coefficients"], tensors["intercepts"], table["strength"], table["temperature"], table["logistic"]
        )
        known = np.array(table["classes"])
        return cls(table["kind"], table["outputs"], known, table["rows"], table["once"], features, linear)


def fit_words(examples: Examples, kind: str, outputs: int, seed: int = 0) -> Words:
    """Fit on at most so many rows and characters that it takes seconds. The rows choose the strength themselves."""
    if examples.weights is not None and 0 < (counts := examples.weights > 0).sum() < len(examples):
        examples = examples.take(np.flatnonzero(counts))
    examples, limit = _bounded(examples, outputs)
    targets, weights = examples.targets, examples.weights
    assert targets is not None
    weights = np.ones(len(examples)) if weights is None or not weights.any() else weights
    features, rows = Features.fit(examples, limit)
    some = sample(examples, CHOOSING, "words")
    if kind == "score":
        return Words(kind, 1, np.zeros(1, int), len(examples), 0, features, score_model(rows, targets, weights, some))
    classes, numbers = np.unique(targets, return_inverse=True)
    if len(classes) == 1:
        linear = Linear(np.zeros((rows.shape[1], 1), np.float32), np.zeros(1), 0.0)
    elif len(examples) < FEW or not rows.shape[1]:
        linear = small_class_model(rows, numbers, weights, some)
    else:
        linear = class_model(rows, numbers, weights, some, folds(examples.take(some), FOLDS), seed)
    once = int(np.sum(np.bincount(numbers) == 1))
    return Words(kind, outputs, classes, len(examples), once, features, linear)


def _bounded(examples: Examples, outputs: int) -> tuple[Examples, int]:
    """A stratified sample if there are many rows, and how many characters of each text are read."""
    most = max(min(MOST_ROWS, MOST_WORK // outputs), 2 * CHOOSING)
    if len(examples) > most:
        examples = examples.take(sample(examples, most, "words"))
    lengths, limit = np.array([len(text) for text in [*examples.texts, *(examples.second_texts or [])]]), LONGEST
    while limit > SHORTEST and lengths.clip(max=limit).sum() > MOST_CHARACTERS:
        limit = limit * 4 // 5
    return examples, limit
