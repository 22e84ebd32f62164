"""The lead: a head that is initialised by ridge regression and then trained jointly with the output layer.

Its gradients also update the encoder. It reads every layer, so each of them gets a direct gradient; and it starts from
its closed-form solution, so the first steps do not undo pre-training to suit an untrained output layer.
"""

from fractions import Fraction

import numpy as np

from bertvision.backbones.tokenise import JOINT
from bertvision.heads.base import Head, Rows
from bertvision.heads.variants import build
from bertvision.options import OWN
from bertvision.prepare import Prepared
from bertvision.states.hidden import HiddenStates
from bertvision.states.sources import Recompute
from bertvision.tasks.sampling import sample
from bertvision.types import TRAIN

MOST = 5000  # examples that are enough to initialise it


def lead_of(setting: Prepared) -> dict[str, Head]:
    """The lead by its name, if there is one and the encoder is fine-tuned at all."""
    recipe = setting.recipe
    if recipe.lead == OWN or not Fraction(recipe.epochs):
        return {}
    return build([recipe.lead], setting.shape, recipe.seed, setting.encoder.device)


def start(lead: Head, setting: Prepared) -> None:
    """Solve it on the states of the encoder as it is."""
    solve(lead, setting, JOINT, MOST, "initialise the lead")


def solve(head: Head, setting: Prepared, way: str, most: int, title: str) -> None:
    """On the states of a stratified sample: a class that is missing could not be told from the others."""
    encoded, targets, weights = setting.encoded[TRAIN], setting.train_targets(), setting.train_weights()
    examples = sample(setting.parts[TRAIN], most, "closed form")
    chosen = np.flatnonzero(np.isin(encoded.together.examples, examples))
    if weights is not None:
        chosen = chosen[weights.numpy()[chosen] > 0]
    source = Recompute(setting.encoder, encoded, setting.reads, setting.recipe.seed, way=way)
    kept = []
    with setting.progress.bar(title, len(chosen)) as bar:
        for step in source.some(chosen):
            kept.append(Rows(step.states, targets[step.rows], None if weights is None else weights[step.rows]))
            bar.tick(len(step.rows))
    # Views that are computed from the states are not kept: they are many times as large.
    head.solve(
        lambda: (Rows(HiddenStates(s.layers, s.views, s.pooled), t, w) for s, t, w in kept), setting.dataset.kind
    )
