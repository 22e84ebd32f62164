"""What a run works with, made ready: data split and tokenised, encoder loaded, heads named.

Everything that can be wrong with the user's input shows here, before anything is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertvision.backbones import encoder as backbone_family
from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads import heads
from bertvision.heads.base import Shape
from bertvision.heads.variants import expand, parse
from bertvision.kinds import KINDS, Kind, Scale
from bertvision.options import Request
from bertvision.progress import Progress
from bertvision.recipe import Facts, Recipe, resolve
from bertvision.tasks import load as load_task
from bertvision.tasks.sampling import hold_out, ranks, sample
from bertvision.training.collect import Encoded, encode
from bertvision.training.judging import Judge, judge_of
from bertvision.types import HELD_OUT, Dataset, Examples


@dataclass(frozen=True)
class Setting:
    """The fixed part of a run."""

    request: Request
    options: Recipe
    progress: Progress
    dataset: Dataset
    parts: dict[str, Examples]  # train, held_out and the dev splits
    encoded: dict[str, Encoded]
    encoder: Encoder
    shape: Shape
    scale: Scale
    names: list[str]  # of heads
    judges: dict[str, Judge]  # of the splits that are scored

    @property
    def kind(self) -> Kind:
        return KINDS[self.dataset.kind]

    @property
    def metric(self) -> str:
        return self.dataset.metrics[0]

    @property
    def evaluated(self) -> list[str]:
        """The splits that are scored."""
        return [name for name in self.parts if name != "train"]

    def targets(self, part: str) -> np.ndarray:
        targets = self.parts[part].targets
        assert targets is not None
        return targets

    def train_targets(self) -> Tensor:
        """As they are learned, per window: class indices, scores of mean 0 and deviation 1, or first and last token."""
        answers = self.encoded["train"].together.answers
        if answers is None:
            return self.scale.shrink(self.targets("train"))
        # A window without the answer is one that does not answer the question.
        return torch.from_numpy(answers if self.shape.span else (answers[:, 0] > 0).astype(np.int64))

    def train_ranks(self) -> Tensor | None:
        """Per window, where its example stands among those that heads on a share of the data are shown."""
        if all(parse(label).data == 1 for label in self.names):
            return None
        return torch.from_numpy(ranks(self.parts["train"])[self.encoded["train"].together.examples])


def prepare(options: Request, progress: Progress, encoder: Encoder | None = None) -> Setting:
    """`encoder` stands in for `options.backbone` where it is loaded already."""
    dataset = load_task(options)
    parts = parts_of(dataset, options)
    span, windowed = dataset.kind == "span", dataset.train.questions is not None
    if windowed and options.pairs == "separate":
        raise UserError(f"--pairs separate: a question of '{dataset.task}' means nothing without its context.")
    if encoder is None:
        encoder = backbone_family.load(options.backbone, dataset.outputs, options.seed, span=span)
    shape = Shape(
        encoder.layers,
        encoder.features,
        dataset.outputs,
        dataset.train.second_texts is not None,
        encoder.pooled and not span,
        span,
    )
    names = expand(options.heads, shape)
    leads = [name for name in heads if heads[name].solved and heads[name].fits(shape)]
    facts = Facts(dataset.kind, windowed, encoder.features, len(parts["train"]), names, leads)
    request, options = options, resolve(options, facts)
    encoder.freeze(options.freeze)
    sizes = ", ".join(f"{len(part)} {name.replace('_', '-')}" for name, part in parts.items())
    for note in (*dataset.notes, f"{dataset.task}: {sizes}; {len(names)} heads"):
        progress.say(note)
    encoded = {name: encode(encoder, part, options, windowed) for name, part in parts.items()}
    for name, found in encoded.items():
        for note in _lengths(found, len(parts[name]), min(options.max_length or 0, encoder.longest), windowed):
            progress.say(f"{name.replace('_', '-')}: {note}")
    assert parts["train"].targets is not None
    scale = Scale.of(parts["train"].targets)
    judges = {
        name: judge_of(dataset.kind, part, encoded[name].together, options)
        for name, part in parts.items()
        if name != "train"
    }
    return Setting(request, options, progress, dataset, parts, encoded, encoder, shape, scale, names, judges)


def _lengths(found: Encoded, examples: int, limit: int, windowed: bool) -> Iterator[str]:
    cut = found.together.truncated
    if windowed and len(found) > examples:
        yield f"{examples} questions in {len(found)} windows of at most {limit} tokens"
    if cut:
        yield f"{cut} {'questions' if windowed else f'of {examples} examples'} cut to fit in {limit} tokens"
    if found.cut_answers:
        yield f"{found.cut_answers} answers begin or end inside a token; the whole token is taken"


def parts_of(dataset: Dataset, options: Request) -> dict[str, Examples]:
    """train, held_out and the dev splits, after --limit and --dev-limit. The seed plays no part."""
    train = dataset.train
    if options.limit is not None:
        train = train.take(sample(train, options.limit, "limit"))
    rest, held = hold_out(train)
    if dataset.kind != "span" and train.targets is not None and len(np.unique(train.targets[rest])) < 2:
        raise UserError(f"All training answers are the same: there is nothing to learn ({len(rest)} examples).")
    parts = {"train": train.take(rest), HELD_OUT: train.take(held)}
    for name, dev in dataset.dev.items():
        limit = options.dev_limit
        parts[name] = dev if limit is None else dev.take(sample(dev, limit, "dev-limit"))
    return parts
