"""The lead: a head whose loss fine-tunes the encoder beside that of its own output layer.

It reads every layer, so each of them is told at once what to change; and it starts from its solution in closed form, so
that the first gradients do not undo what pre-training has taught for the sake of an output layer that knows nothing.
"""

from fractions import Fraction

import numpy as np
import torch

from bertvision.heads.base import Head
from bertvision.tasks.sampling import sample
from bertvision.training.answering import read
from bertvision.training.batches import by_length
from bertvision.training.heads import build
from bertvision.training.setting import OWN, Setting

MOST = 5000  # examples that are enough for a start


def lead_of(setting: Setting) -> dict[str, Head]:
    """The lead by its name, if there is one and the encoder is fine-tuned at all."""
    name = setting.options.lead
    assert name is not None  # the setting has decided
    if name == OWN or not Fraction(setting.options.epochs):
        return {}
    return build([name], setting.shape, setting.options.seed, setting.encoder.device)


@torch.no_grad()
def start(lead: Head, setting: Setting) -> None:
    """Solve it on states of the encoder as it is."""
    encoder, windows, targets = setting.encoder, setting.encoded["train"].together, setting.train_targets()
    # Of each class its share: one that is missing would start from where an epoch does not bring it back.
    examples = sample(setting.parts["train"], MOST, "lead")
    chosen = np.flatnonzero(np.isin(windows.examples, examples))
    was_training = encoder.training
    encoder.eval()
    kept = []
    with setting.progress.bar("start of the lead", len(chosen)) as bar:
        for some in by_length(windows.lengths[chosen]):
            batch = encoder.batch(windows, chosen[some])
            _, layers, pooled = encoder(batch.inputs)
            kept.append((read(batch, layers, pooled, setting.shape), targets[torch.from_numpy(chosen[some])]))
            bar.tick(len(some))
    encoder.train(was_training)
    lead.solve(lambda: kept, setting.dataset.kind)
