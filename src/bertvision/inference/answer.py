"""Let the encoder and any heads answer: from hidden states, wherever they come from, to predictions."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from bertvision.heads.base import Head, Shape
from bertvision.kinds import Scale, confined, kinds
from bertvision.kinds.labels import per_example
from bertvision.records import ENCODER
from bertvision.states.passes import Step, Tick, nothing
from bertvision.types import Windows

Outputs = dict[str, np.ndarray]  # model -> predictions (N, C), or for spans (all tokens, 2)


@dataclass(frozen=True)
class Target:
    """What models answer with: the kind and scale of the answer, and the shape of the heads that give it."""

    kind: str
    scale: Scale
    shape: Shape


def answer(
    steps: Iterable[Step], windows: Windows, heads: dict[str, Head], target: Target, tick: Tick = nothing
) -> Outputs:
    """Predictions of every head and, where the steps have its logits, of the encoder: for every example (N, C), pooled
    over its windows; for spans for every token (all tokens, 2)."""
    span = target.shape.span
    size = (int(windows.offsets[-1]), 2) if span else (len(windows), target.shape.outputs)
    found: Outputs = {}
    device = next((head.output.weight.device for head in heads.values()), None)
    for head in heads.values():
        head.eval()
    for step in steps:
        states = step.states if device is None else step.states.to(device)
        with torch.no_grad():
            logits = {name: head(states) for name, head in heads.items()}
            if step.logits is not None:
                logits[ENCODER] = confined(step.logits.to(states.layers.device), states.places if span else None)
            made = {name: kinds[target.kind].outputs(values, target.scale) for name, values in logits.items()}
        places, mask = step.rows, None
        if span:
            places = np.concatenate([np.arange(windows.offsets[i], windows.offsets[i + 1]) for i in step.rows])
            assert states.mask is not None
            mask = states.mask.bool()
        for name, values in made.items():
            if name not in found:
                found[name] = np.empty(size, np.float32 if span else np.float64)
            found[name][places] = (values if mask is None else values[mask]).cpu().numpy()
        tick(len(step.rows))
    # The encoder first, as everywhere.
    ordered = {name: found[name] for name in (ENCODER, *heads) if name in found}
    return ordered if span else {name: per_example(values, windows) for name, values in ordered.items()}
