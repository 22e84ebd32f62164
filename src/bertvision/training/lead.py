"""The lead: a head whose loss fine-tunes the encoder beside that of its own output layer.

It reads every layer, so each of them is told at once what to change; and it starts from its solution in closed form, so
that the first gradients do not undo what pre-training has taught for the sake of an output layer that knows nothing.
"""

from fractions import Fraction

import numpy as np
import torch

from bertvision.errors import UserError
from bertvision.heads.base import Head
from bertvision.heads.variants import expand
from bertvision.training.answering import read
from bertvision.training.batches import by_length
from bertvision.training.heads import build
from bertvision.training.setting import OWN, Setting

MOST = 5000  # windows that are enough for a start


def lead_of(setting: Setting) -> dict[str, Head]:
    """The lead by its name, if there is one and the encoder is fine-tuned at all."""
    name = setting.options.lead
    assert name is not None  # the setting has decided
    if name == OWN or not Fraction(setting.options.epochs):
        return {}
    found = build(expand(name, setting.shape), setting.shape, setting.options.seed, setting.encoder.device)
    if list(found) != [name] or not found[name].solved:
        raise UserError(f"--lead '{name}' has no closed form to start from: take closed-form, or {OWN}.")
    return found


@torch.no_grad()
def start(lead: Head, setting: Setting) -> None:
    """Solve it on states of the encoder as it is."""
    encoder, windows, targets = setting.encoder, setting.encoded["train"].together, setting.train_targets()
    order = np.random.default_rng([setting.options.seed, len(windows)]).permutation(len(windows))
    chosen = np.sort(order[:MOST])
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
