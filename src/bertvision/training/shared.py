"""States of an encoder that is not fine-tuned yet: read once, for all folds and for the fit on all rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from bertvision.prepare import Prepared
from bertvision.states.hidden import HiddenStates, views_of
from bertvision.states.passes import Step, clean_pass
from bertvision.states.sources import PLAIN_ROWS
from bertvision.training.deadline import Turn
from bertvision.types import TRAIN

MOST_BYTES = 2**30  # of states; folds of more rows read their own, one after the other


@dataclass(frozen=True)
class Shared:
    """What the encoder makes of some training windows, for each way to read pairs."""

    states: dict[str, HiddenStates]
    logits: dict[str, Tensor | None]  # where the encoder answers itself

    def of(self, windows: np.ndarray) -> "Shared":
        rows = torch.from_numpy(windows)
        logits = {way: None if found is None else found[rows] for way, found in self.logits.items()}
        return Shared({way: found.take(rows) for way, found in self.states.items()}, logits)

    def steps(self, way: str) -> Iterator[Step]:
        states, logits = self.states[way], self.logits[way]
        for rows in torch.arange(len(states)).split(PLAIN_ROWS):
            yield Step(rows.numpy(), states.take(rows), None if logits is None else logits[rows])


def fits(setting: Prepared) -> bool:
    """Are there heads at mark 0 that share states, and the memory for these?"""
    shape, recipe = setting.shape, setting.recipe
    row = 4 * shape.layers * len(views_of(shape.paired)) * shape.features * (1 + shape.paired)
    few = not shape.span and len(setting.encoded[TRAIN]) * row <= MOST_BYTES
    polished = bool(setting.names) and recipe.fractions()[0] == 0 and recipe.polishes(Fraction(0))
    return few and polished and recipe.mode in ("auto", "memory")


def read(setting: Prepared, ways: list[str], turn: Turn) -> Shared | None:
    """All training windows in these ways; nothing if time runs out before that."""
    found, encoded = Shared({}, {}), setting.encoded[TRAIN]
    for way in ways:
        steps, lengths = [], encoded.lengths(way)
        with setting.progress.bar(f"mark 0: states ({way})", len(encoded)) as bar:
            for step in clean_pass(setting.encoder, encoded, setting.reads, way=way):
                steps.append(step)
                turn.done(lengths[step.rows].sum() / lengths.sum() / len(ways))
                bar.tick(len(step.rows))
                if turn.over() >= 1:
                    return None
        order = torch.from_numpy(np.argsort(np.concatenate([step.rows for step in steps])))
        layers = torch.cat([step.states.layers.cpu() for step in steps])
        pooled = [step.states.pooled.cpu() for step in steps if step.states.pooled is not None]
        whole = HiddenStates(layers, steps[0].states.views, torch.cat(pooled) if pooled else None)
        found.states[way] = whole.take(order)
        logits = [step.logits.cpu() for step in steps if step.logits is not None]
        found.logits[way] = torch.cat(logits)[order] if logits else None
    return found
