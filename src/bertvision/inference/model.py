"""What a user keeps: a model loaded from a run directory, which answers new texts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.backbones import encoder as encoders
from bertvision.backbones.digest import weights_digest
from bertvision.backbones.encoder import Encoder
from bertvision.backbones.tokenise import JOINT, SEPARATE, Encoded, tokenise
from bertvision.errors import UserError
from bertvision.inference.answer import Outputs, Target, answer
from bertvision.inference.evaluate import Evaluation, evaluate
from bertvision.inference.select import combined, constant
from bertvision.kinds import RAW_THRESHOLD
from bertvision.kinds.spans import ALTERNATIVES, decode, n_best
from bertvision.metrics.glue import decide
from bertvision.progress import Progress
from bertvision.records import ENCODER, MAJORITY, WORDS, Ensemble, RunRecord
from bertvision.registry import unknown
from bertvision.runs.checkpoints import load_ensembles, load_heads, load_words
from bertvision.runs.directory import Run, open_run
from bertvision.states.passes import Reads, Tick, clean_pass, default_device, nothing
from bertvision.tasks import tasks
from bertvision.tasks.reading import read_text, whole
from bertvision.types import Examples

CHUNK = 2048  # examples answered at a time

Texts = str | Iterable[str]


class Model:
    """A trained model: the encoder, heads and ensembles of a run at one mark.

    Args:
        reference: A run directory. `RUN` means its selected model, `RUN@3/10` the one selected at that mark.
        name: Another model of the run, e.g. `ensemble-greedy` or `encoder`.
        everything: Load every model of the run, not only the one that answers.

    Example:
        >>> model = bertvision.load("runs/reviews")
        >>> model.predict("What a film!")["label"]
        'positive'
    """

    def __init__(self, reference: str | Path, name: str | None = None, *, everything: bool = False) -> None:
        self.run, self.mark = open_run(reference)
        self.record, found = self.run.record, self.run.mark(self.mark)
        self.name = name or found.selected
        if self.name not in found.models:
            raise unknown("model", self.name, found.models)
        folder = self.run.mark_folder(self.mark)
        ensembles = load_ensembles(folder)
        self.majority = ensembles.pop(MAJORITY, None)
        names = found.models if everything else [self.name]
        self.models = {label: ensembles.get(label, Ensemble("mean", {label: 1.0})) for label in names}
        self.thresholds = found.null_thresholds
        self.recipe, self.kind = self.record.recipe, self.record.kind
        self.target = Target(self.kind, self.record.scale, self.record.shape)
        self.members = {member for ensemble in self.models.values() for member in ensemble.weights}
        self.reading = self.members - {WORDS, MAJORITY}  # hidden states
        self.words = load_words(self.run) if WORDS in self.members else None
        self.heads, self.ways = load_heads(folder, self.record.shape, sorted(self.reading - {ENCODER}))
        for head in (self.heads | ({ENCODER: self.encoder} if self.reading else {})).values():
            head.to(default_device()).eval()
        self.progress = Progress(quiet=True)

    @cached_property
    def encoder(self) -> Encoder:
        return _encoder(self.run, self.record, self.mark)

    def __repr__(self) -> str:
        return f"Model('{self.run.path}@{self.mark}', '{self.name}')"

    @property
    def paired(self) -> bool:
        """Does it read two texts per example?"""
        return self.record.shape.paired

    @property
    def classes_(self) -> np.ndarray:
        """Names of the classes, in the order of `predict_proba`'s columns; empty for scores and answers."""
        return np.array(self.record.labels)

    def predict(
        self, texts: Texts, second_texts: Texts | None = None, *, top: int = 1, null_threshold: float | None = None
    ) -> Any:
        """Answer one text or several.

        Args:
            texts: A text, or any sequence of texts. For questions: the questions.
            second_texts: For pairs, the second texts. For questions: the contexts.
            top: For questions, how many alternative answers to list.
            null_threshold: For questions, answer nothing if the probability of no answer is above this. Default: the
                threshold tuned in training.

        Returns:
            A dictionary for one text, a list of them for several: `label` and `probabilities`; or `score`; or for
            questions `answer` (empty: none), `start`, `end`, `probability`, `no_answer` and `alternatives`.
        """
        examples = self._examples(texts, second_texts)
        if null_threshold is not None and not self.target.shape.span:
            raise UserError(f"A null threshold is for spans; '{self.run.path}' answers with a {self.kind}.")
        if not len(examples):
            return []
        answers = list(
            self._answers(examples, top, null_threshold) if self.target.shape.span else self._labels(examples)
        )
        return answers[0] if isinstance(texts, str) else answers

    def predict_proba(self, texts: Texts, second_texts: Texts | None = None) -> np.ndarray:
        """Probabilities of the classes, (N, C), in the order of `classes_`.

        Args:
            texts: A text, or any sequence of texts.
            second_texts: For pairs, the second texts.
        """
        if not self.record.labels:
            raise UserError(f"'{self.run.path}' answers with a {self.kind}: it has no classes.")
        examples = self._examples(texts, second_texts)
        return self.outputs(examples)[self.name] if len(examples) else np.zeros((0, len(self.record.labels)))

    def evaluate(
        self,
        dev: str | Path | None = None,
        *,
        data: str | Path | None = None,
        out: str | Path | None = None,
        null_threshold: float | None = None,
        decoding: str | None = None,
    ) -> Evaluation:
        """Score the loaded models, with intervals.

        Args:
            dev: One file to score on. Default: the run's own dev data.
            data: A folder with the task's files to score on.
            out: For questions, where to write answers in SQuAD's official format. Default: RUN/official.
            null_threshold: For questions, replaces the tuned thresholds.
            decoding: For questions, `span` or `argmax`. Default: the run's.
        """
        return evaluate(self, data=data, dev=dev, out=out, null_threshold=null_threshold, decoding=decoding)

    def _examples(self, texts: Texts, second_texts: Texts | None) -> Examples:
        if (second_texts is not None) != self.paired:
            wanted = "two texts per example" if self.paired else "one text per example"
            raise UserError(f"The run '{self.run.path}' was trained on {wanted}.")
        first = _listed("texts", texts)
        second = None if second_texts is None else _listed("second_texts", second_texts)
        if second is not None and len(first) != len(second):
            raise UserError(f"{len(first)} first texts but {len(second)} second texts.")
        return Examples(first, second, None)

    def _labels(self, examples: Examples) -> Iterator[dict[str, Any]]:
        outputs, labels = self.outputs(examples)[self.name], self.record.labels
        for choice, row in zip(decide(outputs), outputs, strict=True):
            if labels:
                shares = {label: float(share) for label, share in zip(labels, row, strict=True)}
                yield {"label": labels[choice], "probabilities": shares}
            else:
                yield {"score": float(row[0])}

    def _answers(self, examples: Examples, top: int, null_threshold: float | None) -> Iterator[dict[str, Any]]:
        assert examples.second_texts is not None
        for row, (question, context) in enumerate(zip(examples.texts, examples.second_texts, strict=True), 1):
            if not question.strip() or not context.strip():
                raise UserError(f"The {'context' if question.strip() else 'question'} of pair {row} is empty.")
        tuned = self.thresholds.get(self.name) if null_threshold is None else null_threshold
        threshold = RAW_THRESHOLD if tuned is None else tuned
        for found in self._parts(examples):
            # Overlapping windows may give the same place twice.
            spans = decode(found.outputs[self.name], found.encoded.together, self.recipe, max(ALTERNATIVES, 2 * top))
            for row, null in enumerate(spans.null_probabilities):
                assert found.examples.second_texts is not None
                share, answers = n_best(spans, row, found.examples.second_texts[row], top)
                unanswered = bool(null > threshold) or not answers
                best = {"answer": "", "start": None, "end": None, "probability": share} if unanswered else answers[0]
                # Against the best answer alone, which is what the threshold is about.
                yield {**best, "no_answer": float(null), "threshold": threshold, "alternatives": answers}

    def outputs(self, examples: Examples) -> Outputs:
        """Predictions (N, C) per example of every loaded model, of kind class or score."""
        if not self.reading:
            return self._combined({}, examples)
        parts = [found.outputs for found in self._parts(examples)]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.models}

    def _parts(self, examples: Examples) -> Iterator["_Part"]:
        """In parts, so that memory does not grow with the examples."""
        cut = 0
        with self.progress.bar("predict", len(examples)) as bar:
            for first in range(0, len(examples), CHUNK):
                part = examples.take(range(first, min(first + CHUNK, len(examples))))
                encoded = self.tokenised(part)
                yield _Part(part, encoded, self.outputs_of(encoded, part))
                cut += encoded.together.truncated
                bar.tick(len(part))
        if cut:
            self.progress.say(f"{cut} of {len(examples)} examples were too long and were truncated")

    def tokenised(self, examples: Examples) -> Encoded:
        return tokenise(self.encoder, examples, self.recipe, self.record.windowed)

    def outputs_of(self, encoded: Encoded, examples: Examples, tick: Tick = nothing) -> Outputs:
        """Predictions of every loaded model, for every example or token."""
        shape, store, answers = self.record.shape, self.record.store, Outputs()
        # The heads of a run from a store count the layers that the store has.
        reads = Reads(shape.paired, shape.span, tuple(store.layers) if store is not None else None)
        for way in (JOINT, SEPARATE):
            heads = {name: head for name, head in self.heads.items() if self.ways[name] == way}
            # The encoder's own answer is a by-product of the joint pass.
            if heads or (way == JOINT and ENCODER in self.members):
                steps = clean_pass(self.encoder, encoded, reads, way=way)
                answers |= answer(steps, encoded.together, heads, self.target, tick)
        return self._combined(answers, examples)

    def _combined(self, answers: Outputs, examples: Examples) -> Outputs:
        """Every loaded model, from what encoder and heads say and from models that need no states."""
        if self.words is not None:
            answers[WORDS] = self.words.outputs(examples)
        if self.majority is not None:
            answers[MAJORITY] = constant(self.majority, len(examples))
        return {name: combined(model, answers, self.kind) for name, model in self.models.items()}


@dataclass(frozen=True)
class _Part:
    examples: Examples
    encoded: Encoded
    outputs: Outputs


def _listed(name: str, texts: Texts) -> list[str]:
    """A text, or any sequence of them: a list, array, series, column or generator."""
    if hasattr(type(texts), "columns") or isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise UserError(f"{name} must be a text or a sequence of texts, such as a column; got {type(texts).__name__}.")
    # Arrays and series as Python values: those of a pyarrow array, for one, are not strings.
    method = next((method for method in ("to_pylist", "tolist") if hasattr(texts, method)), None)
    values = getattr(texts, method)() if method else texts
    found = list(values) if isinstance(values, Iterable) and not isinstance(values, str) else [values]
    for row, value in enumerate(found, 1):
        if not isinstance(value, str):
            raise UserError(f"{name}, row {row}: {value!r} is not a text.")
    return [whole(str(value)) for value in found]


def encoder_folder(run: Run, record: RunRecord, mark: str) -> str:
    """Where the encoder is whose states a run's heads read: its checkpoint, or the encoder of its store."""
    if record.store is None:
        return str(run.mark_folder(mark) / "encoder")
    if record.store.encoder is None:
        raise UserError(
            f"'{run.path}' was trained on imported states, whose encoder is not known: it can be scored on stores only"
            " (evaluate --store)."
        )
    return record.store.encoder


def _encoder(run: Run, record: RunRecord, mark: str) -> Encoder:
    where, shape, store = encoder_folder(run, record, mark), record.shape, record.store
    # The output layer of a backbone that was not fine-tuned here is new, as it was when its states were stored.
    new = store is not None and store.source["mark"] is None
    seed = store.source.get("seed", 0) if store is not None else 0
    encoder = encoders.load(where, shape.outputs, seed, span=shape.span, pooled=None if new else shape.pooled)
    if store is not None and weights_digest(encoder) != store.source["weights_sha256"]:
        raise UserError(f"'{where}' is no longer the encoder on whose states '{run.path}' was trained.")
    return encoder


def predict_file(model: Model, path: Path, **options: Any) -> tuple[Examples, list[dict[str, Any]]]:
    """Texts of a table file with the run's columns, or of a .txt file (one per line), and the answers."""
    if path.suffix == ".txt" and not model.paired:
        lines = read_text(path).replace("\r\n", "\n").split("\n")  # `splitlines` would also split at U+2028
        examples = Examples([line for line in lines if line.strip()], None, None)
        if blank := sum(not line.strip() for line in lines[: len(lines) - (not lines[-1])]):
            model.progress.say(f"'{path}': {blank} blank lines were left out")
    else:
        roles = {**model.record.roles, "label": None}
        examples = tasks[model.recipe.task].read(path, roles, model.record.labels)
    if not len(examples):
        raise UserError(f"'{path}' has no texts.")
    second: Sequence[str] | None = examples.second_texts
    return examples, model.predict(examples.texts, second, **options)
