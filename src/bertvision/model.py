"""What a user keeps: a model loaded from a run directory, which answers new texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.backbones import encoder as backbone_family
from bertvision.backbones.encoder import Encoder
from bertvision.ensembling import Outputs
from bertvision.errors import UserError
from bertvision.kinds import Scale
from bertvision.metrics.glue import decide
from bertvision.progress import Progress
from bertvision.registry import unknown
from bertvision.runs import open_run
from bertvision.spans import ALTERNATIVES, argmax_spans, best_spans, n_best
from bertvision.tasks import tasks
from bertvision.tasks.reading import read_text, whole
from bertvision.training.answering import answer
from bertvision.training.checkpoints import load_ensembles, load_heads
from bertvision.training.collect import Encoded, Tick, encode
from bertvision.training.judging import RAW_THRESHOLD, per_example
from bertvision.training.provenance import weights_digest
from bertvision.training.selection import Ensemble
from bertvision.types import HELD_OUT, Examples

CHUNK = 2048  # examples answered at a time


class Model:
    """The encoder, heads and ensembles of a run at one mark; `name` is the one that answers."""

    def __init__(self, reference: str | Path, name: str | None = None, everything: bool = False) -> None:
        """`RUN` means its selected model, `RUN@3/10` the one selected at that mark; `name` asks for another one.

        Only what the answering model needs is loaded, unless `everything` is wanted.
        """
        self.run, self.mark = open_run(reference)
        self.info = self.run.info
        entry = self.run.mark(self.mark)
        self.name = name or entry["selected"]
        if self.name not in entry[HELD_OUT]:
            raise unknown("model", self.name, list(entry[HELD_OUT]))
        folder = self.run.mark_folder(self.mark)
        kept = load_ensembles(folder)
        self.models = {label: kept.get(label, Ensemble("mean", {label: 1.0})) for label in entry[HELD_OUT]}
        if not everything:
            self.models = {self.name: self.models[self.name]}
        members = {member for ensemble in self.models.values() for member in ensemble.weights}
        self.shape = self.run.record.shape
        self.encoder = self._encoder(folder)
        self.heads, self.ways = load_heads(folder, self.shape, sorted(members - {"encoder"}), self.encoder.top)
        for head in self.heads.values() if "store" in self.info else ():
            # Layers were counted in the store, which may not have had all of them.
            kept = self.info["store"]["layers"]
            if head.sequences:
                head.sequences = tuple(kept[i] for i in head.sequences)
            else:
                head.layers = tuple(kept[i] for i in (head.layers or range(len(kept))))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for module in (self.encoder, *self.heads.values()):
            module.to(device).eval()
        self.progress = Progress(quiet=True)
        self.pairs, self.kind = self.shape.paired, str(self.info["kind"])
        self.windowed = bool(self.info.get("windowed"))
        self.thresholds: dict[str, float | None] = entry.get("null_thresholds") or dict.fromkeys(self.models)
        self.scale, self.labels = Scale(**self.info["scale"]), tuple(self.info["labels"])
        self.options = self.run.record.recipe

    def _encoder(self, folder: Path) -> Encoder:
        """The checkpoint's own; of a run that was trained on a store, the one whose states are in there."""
        store = self.info.get("store")
        where = str(folder / "encoder") if store is None else store["encoder"]
        if where is None:
            raise UserError(f"'{self.run.path}' was trained on imported states, whose encoder is not known: it can"
                            " be scored on stores only (evaluate --store).")  # fmt: skip
        # Of a backbone that was not fine-tuned here, the output layer is new, as it was when its states were stored.
        new, shape = store is not None and store["source"]["mark"] is None, self.shape
        pooled = None if new else shape.pooled
        encoder = backbone_family.load(where, shape.outputs, 0, span=shape.span, pooled=pooled)
        if store is not None and weights_digest(encoder) != store["source"]["weights_sha256"]:
            raise UserError(f"'{where}' is no longer the encoder on whose states '{self.run.path}' was trained.")
        return encoder

    def predict(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        top: int = 1,
        null_threshold: float | None = None,
    ) -> list[dict[str, Any]]:
        """Per text (or pair of texts): `label` and `probabilities`, or `score`, or for a question and its context
        `answer` (empty: none), where it stands, and the `top` best alternatives."""
        if (pairs is not None) != self.pairs:
            wants = "two texts per example" if self.pairs else "one text per example"
            raise UserError(f"The run '{self.run.path}' was trained on {wants}.")
        if isinstance(texts, str):
            raise UserError("predict takes a list of texts, not one text.")
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"{len(texts)} first texts but {len(pairs)} second texts.")
        if null_threshold is not None and not self.shape.span:
            raise UserError(f"A null threshold is for spans; '{self.run.path}' answers with a {self.kind}.")
        if not texts:
            return []
        examples = Examples([*map(whole, texts)], [*map(whole, pairs)] if pairs is not None else None, None)
        if self.shape.span:
            return self._answers(examples, top, null_threshold)
        outputs = self.outputs(examples)[self.name]
        if not self.labels:
            return [{"score": float(value)} for value in outputs[:, 0]]
        return [
            {
                "label": self.labels[choice],
                "probabilities": {label: float(p) for label, p in zip(self.labels, row, strict=True)},
            }
            for choice, row in zip(decide(outputs), outputs, strict=True)
        ]

    def _answers(self, examples: Examples, top: int, null_threshold: float | None) -> list[dict[str, Any]]:
        assert examples.second_texts is not None
        for row, (question, context) in enumerate(zip(examples.texts, examples.second_texts, strict=True), 1):
            if not question.strip() or not context.strip():
                raise UserError(f"The {'context' if question.strip() else 'question'} of pair {row} is empty.")
        threshold = self.thresholds[self.name] if null_threshold is None else null_threshold
        threshold = RAW_THRESHOLD if threshold is None else threshold
        found: list[dict[str, Any]] = []
        for part, encoded, outputs in self._parts(examples):
            if self.options.decoding == "argmax":
                spans = argmax_spans(outputs[self.name], encoded.together)
            else:
                many = max(ALTERNATIVES, 2 * top)  # overlapping windows may give the same place twice
                spans = best_spans(outputs[self.name], encoded.together, self.options.answer_length, many)
            for row, null in enumerate(spans.null_probabilities):
                assert part.second_texts is not None
                share, answers = n_best(spans, row, part.second_texts[row], top)
                unanswered = bool(null > threshold) or not answers
                best = {"answer": "", "start": None, "end": None, "probability": share} if unanswered else answers[0]
                # Against the best answer alone, which is what the threshold is about.
                found.append({**best, "no_answer": float(null), "threshold": threshold, "alternatives": answers})
        return found

    def outputs(self, examples: Examples) -> Outputs:
        """Predictions (N, C) per example of every loaded model, of kind class or score."""
        parts = [
            {name: per_example(values, encoded.together) for name, values in outputs.items()}
            for _, encoded, outputs in self._parts(examples)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.models}

    def _parts(self, examples: Examples) -> Iterator[tuple[Examples, Encoded, Outputs]]:
        """(examples, their windows, each model's outputs) in parts, so that memory does not grow with the examples."""
        cut = 0
        with self.progress.bar("predict", len(examples)) as bar:
            for first in range(0, len(examples), CHUNK):
                part = examples.take(range(first, min(first + CHUNK, len(examples))))
                encoded = encode(self.encoder, part, self.options, self.windowed)
                yield part, encoded, self.outputs_of(encoded)
                cut += encoded.together.truncated
                bar.tick(len(part))
        if cut:
            self.progress.say(f"{cut} of {len(examples)} examples were too long and were cut")

    def outputs_of(self, encoded: Encoded, tick: Tick = lambda windows: None) -> Outputs:
        """What every loaded model says about windows or tokens that are encoded already."""
        members = self._members(encoded, tick)
        return {name: model.of(members, self.kind) for name, model in self.models.items()}

    def _members(self, encoded: Encoded, tick: Tick) -> Outputs:
        answers: Outputs = {}
        for way in ("joint", "separate"):
            heads = {name: head for name, head in self.heads.items() if self.ways[name] == way}
            # The encoder's own answer is a by-product of the joint pass; without a need for either, skip it.
            asked = way == "joint" and any("encoder" in ensemble.weights for ensemble in self.models.values())
            if heads or asked:
                answers |= answer(self.encoder, encoded, way, heads, self.shape, self.kind, self.scale, tick)
        return answers


def load(reference: str | Path, model: str | None = None) -> Model:
    """The model of a run directory: `load("runs/demo")`, `load("runs/demo@3/10")`."""
    return Model(reference, model)


def predict_file(model: Model, path: Path, **options: Any) -> tuple[Examples, list[dict[str, Any]]]:
    """Texts of a table file with the run's columns, or of a .txt file (one per line), and the answers."""
    if path.suffix == ".txt" and not model.pairs:
        lines = read_text(path).replace("\r\n", "\n").split("\n")  # `splitlines` would also cut at U+2028 and its like
        examples = Examples([line for line in lines if line.strip()], None, None)
    else:
        roles = {**model.info["roles"], "label": None}
        examples = tasks[model.options.task].read(path, roles, model.labels)
    if not len(examples):
        raise UserError(f"'{path}' has no texts.")
    return examples, model.predict(examples.texts, examples.second_texts, **options)
