"""The lead: a head whose loss fine-tunes the encoder beside that of its own output layer.

It reads every layer, so each of them is told at once what to change; and it starts from its solution in closed form, so
that the first gradients do not undo what pre-training has taught for the sake of an output layer that knows nothing.
"""

from fractions import Fraction

import numpy as np

from bertvision.heads.base import Head
from bertvision.options import OWN
from bertvision.states.hidden import HiddenStates
from bertvision.tasks.sampling import sample
from bertvision.training.heads import build
from bertvision.training.setting import Setting
from bertvision.training.sources import Recomputed

MOST = 5000  # examples that are enough for a start


def lead_of(setting: Setting) -> dict[str, Head]:
    """The lead by its name, if there is one and the encoder is fine-tuned at all."""
    name = setting.options.lead
    if name == OWN or not Fraction(setting.options.epochs):
        return {}
    return build([name], setting.shape, setting.options.seed, setting.encoder.device)


def start(lead: Head, setting: Setting) -> None:
    """Solve it on states of the encoder as it is."""
    solve(lead, setting, "joint", MOST, "start of the lead")


def solve(head: Head, setting: Setting, way: str, most: int, title: str) -> None:
    """On states of some examples. Of each class its share: one that is missing could not be told from the others."""
    encoded, shape, targets = setting.encoded["train"], setting.shape, setting.train_targets()
    examples = sample(setting.parts["train"], most, "closed form")
    chosen = np.flatnonzero(np.isin(encoded.together.examples, examples))
    source = Recomputed(setting.encoder, encoded, way, shape, (), shape.layers - 1, setting.options.seed)
    kept = []
    with setting.progress.bar(title, len(chosen)) as bar:
        for states, rows in source.some(chosen):
            kept.append((states, targets[rows]))
            bar.tick(len(rows))
    # What is worked out of the states is not kept: it is many times as large.
    head.solve(lambda: ((HiddenStates(s.layers, s.views, s.pooled), t) for s, t in kept), setting.dataset.kind)
