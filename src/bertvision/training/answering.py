"""Let the encoder and any heads answer examples in one clean pass: states are read batch by batch and let go again."""

import numpy as np
import torch
from torch import Tensor

from bertvision.backbones.encoder import Batch, Encoder
from bertvision.ensembling import Outputs
from bertvision.heads.base import Head, Shape
from bertvision.kinds import KINDS, Scale, confined
from bertvision.states.hidden import TOKENS, HiddenStates, Sequences, pool, pooling_weights, views_of
from bertvision.training.batches import by_length
from bertvision.training.collect import Encoded, Tick, collect_separate
from bertvision.training.heads import predict, sequences_of
from bertvision.types import Windows


def attached(batch: Batch, layers: tuple[Tensor, ...], pooled: Tensor | None, shape: Shape) -> HiddenStates:
    """Pooled views of one forward pass, through which gradients reach the encoder."""
    views = pool(layers, pooling_weights(batch.mask, batch.segments, shape.paired)).float()
    return HiddenStates(views, views_of(shape.paired), pooled)


def read(
    batch: Batch, layers: tuple[Tensor, ...], pooled: Tensor | None, shape: Shape, sequences: tuple[int, ...] = ()
) -> HiddenStates:
    """What heads of this shape read of one forward pass, detached: pooled views (and every token of the layers in
    `sequences`), or every token."""
    with torch.no_grad():
        if shape.span:
            stacked = torch.stack([layer.detach() for layer in layers], 1).float()
            stacked *= batch.mask[:, None, :, None]
            return HiddenStates(stacked, TOKENS, None, batch.mask, batch.places)
        views = pool(layers, pooling_weights(batch.mask, batch.segments, shape.paired)).float()
        whole = {number: layers[number].detach().float() for number in sequences}
        return HiddenStates(
            views,
            views_of(shape.paired),
            pooled.detach() if pooled is not None else None,
            sequences=Sequences(whole, batch.mask, batch.segments) if whole else None,
        )


def answer(
    encoder: Encoder,
    encoded: Encoded,
    way: str,
    heads: dict[str, Head],
    shape: Shape,
    kind: str,
    scale: Scale,
    tick: Tick = lambda windows: None,
) -> Outputs:
    """Predictions of heads that read pairs this way and, if `joint`, of the encoder: for every window, (W, C); for
    spans for every token, (all tokens, 2)."""
    if way == "joint":
        return _answer_joint(encoder, encoded.together, heads, shape, kind, scale, tick)
    logits = predict(heads, collect_separate(encoder, encoded, tick))
    return {name: KINDS[kind].outputs(values, scale).numpy() for name, values in logits.items()}


@torch.inference_mode()
def _answer_joint(
    encoder: Encoder, windows: Windows, heads: dict[str, Head], shape: Shape, kind: str, scale: Scale, tick: Tick
) -> Outputs:
    was_training = encoder.training
    encoder.eval()
    for head in heads.values():
        head.eval()
    size = (len(windows.tokens), 2) if shape.span else (len(windows), shape.outputs)
    found = {name: np.empty(size, np.float32 if shape.span else np.float64) for name in ("encoder", *heads)}
    for rows in by_length(windows.lengths):
        batch = encoder.batch(windows, rows)
        logits, layers, pooled = encoder(batch.inputs)
        answers = {"encoder": confined(logits, batch.places if shape.span else None)}
        if heads:
            states = read(batch, layers, pooled, shape, sequences_of(heads))
            answers |= {name: head(states) for name, head in heads.items()}
        places = rows
        if shape.span:
            places = np.concatenate([np.arange(windows.offsets[i], windows.offsets[i + 1]) for i in rows])
        for name, values in answers.items():
            made = KINDS[kind].outputs(values, scale)
            found[name][places] = (made[batch.mask.bool()] if shape.span else made).cpu().numpy()
        tick(len(rows))
    encoder.train(was_training)
    return found
