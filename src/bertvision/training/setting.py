"""What a run works with, made ready: data split and tokenised, encoder loaded, heads named.

Everything that can be wrong with the user's input shows here, before anything is written.
"""

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from bertvision import heads as head_family
from bertvision.backbones import encoder as backbone_family
from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.kinds import KINDS, Kind, Scale
from bertvision.options import FitOptions
from bertvision.progress import Progress
from bertvision.tasks import load as load_task
from bertvision.tasks.sampling import hold_out, sample
from bertvision.training.collect import Encoded, encode
from bertvision.types import Dataset, Examples

HELD_OUT = "held_out"
NARROW, NARROW_LR, WIDE_LR = 512, 1e-4, 3e-5  # small encoders want larger steps (held-out trials: docs/results.md)


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
        """As they are learned: class indices, or scores of mean 0 and deviation 1."""
        return self.scale.shrink(self.targets("train"))


def prepare(options: FitOptions, progress: Progress) -> Setting:
    dataset = load_task(options)
    parts = parts_of(dataset, options)
    pairs = dataset.train.pairs is not None
    names = head_family.expand(options.heads, pairs)
    encoder = backbone_family.load(options.backbone, dataset.outputs, options.seed)
    encoder.freeze(options.freeze)
    if options.lr is None:
        options = replace(options, lr=NARROW_LR if encoder.features < NARROW else WIDE_LR)
    sizes = ", ".join(f"{len(part)} {name.replace('_', '-')}" for name, part in parts.items())
    for note in (*dataset.notes, f"{dataset.task}: {sizes}; {len(names)} heads"):
        progress.say(note)
    encoded = {name: encode(encoder, part, options.max_length) for name, part in parts.items()}
    for name, windows in encoded.items():
        if windows.together.truncated:
            limit = min(options.max_length, encoder.longest)
            progress.say(f"{windows.together.truncated} of {len(windows)} {name} examples cut to {limit} tokens")
    shape = Shape(encoder.layers, encoder.features, dataset.outputs, pairs, encoder.pooled)
    assert parts["train"].targets is not None
    scale = Scale.of(parts["train"].targets)
    return Setting(options, progress, dataset, parts, encoded, encoder, shape, scale, names)


def parts_of(dataset: Dataset, options: FitOptions) -> dict[str, Examples]:
    """train, held_out and the dev splits, after --limit and --dev-limit. The seed plays no part."""
    train = dataset.train
    if options.limit is not None:
        train = train.take(sample(train, options.limit, "limit"))
    rest, held = hold_out(train)
    if train.targets is not None and len(np.unique(train.targets[rest])) < 2:
        raise UserError(f"All training answers are the same: there is nothing to learn ({len(rest)} examples).")
    parts = {"train": train.take(rest), HELD_OUT: train.take(held)}
    for name, dev in dataset.dev.items():
        limit = options.dev_limit
        parts[name] = dev if limit is None else dev.take(sample(dev, limit, "dev-limit"))
    return parts
