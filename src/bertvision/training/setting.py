"""What a run works with, made ready: data split and tokenised, encoder loaded, heads named.

Everything that can be wrong with the user's input shows here, before anything is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

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
from bertvision.options import FitOptions
from bertvision.progress import Progress
from bertvision.tasks import load as load_task
from bertvision.tasks.sampling import hold_out, ranks, sample
from bertvision.training.collect import Encoded, encode
from bertvision.training.judging import Judge, judge_of
from bertvision.types import Dataset, Examples

HELD_OUT = "held_out"
MAX_LENGTH, WINDOW = 256, 386  # tokens of a text, and of a window on a context
POLISH, SPAN_POLISH = 8, 2  # epochs; of spans every token is an example
OWN = "own"  # the encoder's output layer, where a head might lead
EARLY = Fraction(3, 10)  # of an epoch: where the paper looked first
POLISH_UNTIL = "3/10"  # epochs of fine-tuning through a lead
# Both by trials on held-out rows (docs/results.md): few examples want more steps, small encoders larger ones.
FEW, FEW_BATCH, BATCH = 4000, 8, 16
NARROW, NARROW_LR, WIDE_LR = 512, 1e-4, 3e-5


@dataclass(frozen=True)
class Setting:
    """The fixed part of a run."""

    options: FitOptions
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


def prepare(options: FitOptions, progress: Progress, encoder: Encoder | None = None) -> Setting:
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
        dataset.train.pairs is not None,
        encoder.pooled and not span,
        span,
    )
    names = expand(options.heads, shape)
    leads = [OWN, *(name for name in heads if heads[name].solved and heads[name].fits(shape))]
    if options.lead is not None and options.lead not in leads:
        raise UserError(f"--lead '{options.lead}' is none of: {', '.join(leads)}.")
    options = with_defaults(options, encoder, dataset, names, len(parts["train"]))
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
    return Setting(options, progress, dataset, parts, encoded, encoder, shape, scale, names, judges)


def with_defaults(
    options: FitOptions, encoder: Encoder, dataset: Dataset, names: list[str], examples: int
) -> FitOptions:
    """Options that were left open, as the encoder, the task, the heads and the number of examples ask for."""
    windowed = dataset.train.questions is not None
    led = names and dataset.kind != "span" and options.freeze != "all"
    lead = options.lead or ("closed-form" if led else OWN)
    marks = {mark for mark in (EARLY, *options.fractions()) if mark <= Fraction(options.epochs)}
    chosen: dict[str, Any] = {
        "lead": lead,
        # Through a lead, so little fine-tuning left CoLA below its start (docs/results.md), and polish costs as before.
        "marks": ",".join(map(str, sorted(marks))) if lead == OWN and options.budget is None else None,
        "freeze": "none" if lead == OWN else "embeddings",
        "batch_size": FEW_BATCH if examples < FEW else BATCH,
        "lr": NARROW_LR if encoder.features < NARROW else WIDE_LR,
        "max_length": WINDOW if windowed else MAX_LENGTH,
        "polish_until": _polish_until(options, lead, dataset) if options.polish is None else None,
        "polish": SPAN_POLISH if dataset.kind == "span" else POLISH,
    }
    return replace(options, **{name: value for name, value in chosen.items() if getattr(options, name) is None})


def _polish_until(options: FitOptions, lead: str, dataset: Dataset) -> str | None:
    if lead != OWN:
        return POLISH_UNTIL
    # Of spans every token is polished on: fine-tuning brings as much in less time (docs/results.md, Rivals).
    return "0" if options.budget is not None and dataset.kind == "span" else None


def _lengths(found: Encoded, examples: int, limit: int, windowed: bool) -> Iterator[str]:
    cut = found.together.truncated
    if windowed and len(found) > examples:
        yield f"{examples} questions in {len(found)} windows of at most {limit} tokens"
    if cut:
        yield f"{cut} {'questions' if windowed else f'of {examples} examples'} cut to fit in {limit} tokens"
    if found.cut_answers:
        yield f"{found.cut_answers} answers begin or end inside a token; the whole token is taken"


def parts_of(dataset: Dataset, options: FitOptions) -> dict[str, Examples]:
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
