"""What a user keeps: a model loaded from a run directory, which answers new texts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.backbones import encoder as backbone_family
from bertvision.ensembling import Outputs
from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.kinds import KINDS, Scale
from bertvision.metrics.glue import decide
from bertvision.metrics.intervals import compare as paired
from bertvision.options import FitOptions
from bertvision.progress import Progress
from bertvision.registry import unknown
from bertvision.runs import open_run
from bertvision.tasks import load as load_task
from bertvision.tasks import tasks
from bertvision.tasks.reading import read_text
from bertvision.training.checkpoints import load_ensembles, load_heads
from bertvision.training.collect import Encoded, collect, collect_separate, encode
from bertvision.training.heads import predict
from bertvision.training.selection import Ensemble, score_all
from bertvision.training.setting import HELD_OUT, parts_of
from bertvision.types import Examples

CHUNK = 2048  # examples answered at a time


class Model:
    """The encoder, heads and ensembles of a run at one mark; `name` is the one that answers."""

    def __init__(self, reference: str | Path, name: str | None = None, everything: bool = False) -> None:
        """`RUN` means its selected model, `RUN@3/10` the best at that mark; `name` asks for another one.

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
        shape = Shape(**self.info["shape"])
        self.heads, self.ways = load_heads(folder, shape, sorted(members - {"encoder"}))
        self.encoder = backbone_family.load(str(folder / "encoder"), shape.outputs, 0, pooled=shape.pooled)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for module in (self.encoder, *self.heads.values()):
            module.to(device).eval()
        self.progress = Progress(quiet=True)
        self.pairs, self.kind = shape.pairs, KINDS[self.info["kind"]]
        self.scale, self.labels = Scale(**self.info["scale"]), tuple(self.info["labels"])
        self.options = FitOptions(**self.info["options"])

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Per text (or pair of texts): `label` and `probabilities`, or `score`."""
        if (pairs is not None) != self.pairs:
            wants = "two texts per example" if self.pairs else "one text per example"
            raise UserError(f"The run '{self.run.path}' was trained on {wants}.")
        if isinstance(texts, str):
            raise UserError("predict takes a list of texts, not one text.")
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"{len(texts)} first texts but {len(pairs)} second texts.")
        if not texts:
            return []
        outputs = self.outputs(Examples(list(texts), list(pairs) if pairs is not None else None, None))[self.name]
        if not self.labels:
            return [{"score": float(value)} for value in outputs[:, 0]]
        return [
            {
                "label": self.labels[choice],
                "probabilities": {label: float(p) for label, p in zip(self.labels, row, strict=True)},
            }
            for choice, row in zip(decide(outputs), outputs, strict=True)
        ]

    def outputs(self, examples: Examples) -> Outputs:
        """Predictions (N, C) of every loaded model; in parts, so that memory does not grow with the examples."""
        parts, cut = [], 0
        with self.progress.bar("predict", len(examples)) as bar:
            for first in range(0, len(examples), CHUNK):
                rows = range(first, min(first + CHUNK, len(examples)))
                encoded = encode(self.encoder, examples.take(rows), self.options.max_length)
                members = self._members(encoded)
                parts.append({name: ensemble.of(members) for name, ensemble in self.models.items()})
                cut += encoded.together.truncated
                bar.tick(len(rows))
        if cut:
            self.progress.say(f"{cut} of {len(examples)} examples were too long and were cut")
        return {name: np.concatenate([part[name] for part in parts]) for name in self.models}

    def _members(self, encoded: Encoded) -> Outputs:
        answers: Outputs = {}
        joint = {name: head for name, head in self.heads.items() if self.ways[name] == "joint"}
        separate = {name: head for name, head in self.heads.items() if self.ways[name] == "separate"}
        # The encoder's own answer is a by-product of the joint pass; without a need for either, skip it.
        if joint or any("encoder" in ensemble.weights for ensemble in self.models.values()):
            logits, states = collect(self.encoder, encoded)
            answers["encoder"] = self.kind.outputs(logits, self.scale)
            answers |= {n: self.kind.outputs(v, self.scale) for n, v in predict(joint, states).items()}
        if separate:
            states = collect_separate(self.encoder, encoded)
            answers |= {n: self.kind.outputs(v, self.scale) for n, v in predict(separate, states).items()}
        return answers


def load(reference: str | Path, model: str | None = None) -> Model:
    """The model of a run directory: `load("runs/demo")`, `load("runs/demo@3/10")`."""
    return Model(reference, model)


def evaluate(
    reference: str | Path, data: str | None = None, dev: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Scores of every model of a run at its mark: on the run's own dev data, on --data, or on one file."""
    model = Model(reference, everything=True)
    model.progress = progress or model.progress
    parts = _dev_parts(model, data, dev)
    result: dict[str, Any] = {
        "run": str(model.run.path),
        "mark": model.mark,
        "task": model.options.task,
        "metric": model.info["metrics"][0],
        "selected": model.name,
    }
    for name, examples in parts.items():
        outputs = model.outputs(examples)
        assert examples.targets is not None
        result[name] = score_all(outputs, examples.targets, tuple(model.info["metrics"]))
    return result


def _dev_parts(model: Model, data: str | None, dev: str | None) -> dict[str, Examples]:
    if dev is not None:
        if data is not None:
            raise UserError("Give --data or --dev, not both.")
        examples = tasks[model.options.task].read(Path(dev), model.info["roles"], model.labels)
        if examples.targets is None:
            raise UserError(f"'{dev}' has no column '{model.info['roles']['label']}' to score against.")
        return {"dev": examples}
    options = replace(model.options, data=data or model.options.data)
    parts = parts_of(load_task(options), options)
    parts = {name: part for name, part in parts.items() if name not in ("train", HELD_OUT)}
    for name, part in parts.items():
        # Rows that were dev when the run was made may be others now, and others may have been trained on.
        if data is None and part.digest() != model.info["data"][name]["sha256"]:
            raise UserError(f"The run's {name} data has changed since. Give the file or folder to score on.")
    return parts


def predict_file(model: Model, path: Path) -> tuple[Examples, list[dict[str, Any]]]:
    """Texts of a table file with the run's columns, or of a .txt file (one per line), and the answers."""
    if path.suffix == ".txt" and not model.pairs:
        examples = Examples([line for line in read_text(path).splitlines() if line.strip()], None, None)
    else:
        roles = {**model.info["roles"], "label": None}
        examples = tasks[model.options.task].read(path, roles, model.labels)
    if not len(examples):
        raise UserError(f"'{path}' has no texts.")
    return examples, model.predict(examples.texts, examples.pairs)


def compare(one: str | Path, other: str | Path) -> dict[str, Any]:
    """Paired bootstrap of two runs' answering models on the dev examples they share."""
    sides = []
    for reference in (one, other):
        run, mark = open_run(reference)
        sides.append((run, mark, run.mark(mark)["selected"], run.predictions(mark)))
    (run_a, mark_a, name_a, parts_a), (run_b, mark_b, name_b, parts_b) = sides
    result: dict[str, Any] = {
        "a": {"run": str(run_a.path), "mark": mark_a, "model": name_a},
        "b": {"run": str(run_b.path), "mark": mark_b, "model": name_b},
        "metric": run_a.info["metrics"][0],
    }
    for split in parts_a:
        same = run_a.info["data"].get(split, {}).get("sha256") == run_b.info["data"].get(split, {}).get("sha256")
        if split == HELD_OUT or not same or run_a.info["metrics"] != run_b.info["metrics"]:
            continue
        a, b = parts_a[split]["outputs"][name_a], parts_b[split]["outputs"][name_b]
        targets: np.ndarray = parts_a[split]["targets"]
        values = {"a": run_a.mark(mark_a)[split][name_a], "b": run_b.mark(mark_b)[split][name_b]}
        differences = {m: paired(a, b, targets, m).as_dict() for m in run_a.info["metrics"]}
        result[split] = {**values, "difference": differences}
    if not any(split in result for split in parts_a):
        raise UserError(f"'{run_a.path}' and '{run_b.path}' share no dev examples: they cannot be compared.")
    return result
