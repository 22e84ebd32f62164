"""What a head is made of: its blocks in words, its parameters, and a table of its layers with their shapes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.heads import heads
from bertvision.heads.base import Head, Shape, parameters
from bertvision.heads.blocks import Beside, Then
from bertvision.heads.variants import make
from bertvision.states.hidden import TOKENS, HiddenStates, views_of

Row = dict[str, Any]


def row(name: str, shape: Shape) -> Row:
    """One line of `ls heads` at a shape. Keras, like the paper, also counts the statistics of batch normalisation."""
    recipe, head = heads[name], make(name, shape)
    running = sum(value.numel() for key, value in head.named_buffers() if "running" in key)
    return {
        "name": name,
        "kinds": ", ".join(recipe.kinds),
        "blocks": blocks(head),
        "parameters": parameters(head),
        "with_statistics": parameters(head) + running,
        "source": recipe.source,
    }


def blocks(head: Head) -> str:
    """E.g. `LearnedPooling > Adapter + LastLayer > Linear`."""
    own = [] if head.body is None else [_blocks(head.body)]
    kind = "" if type(head) is Head else f"{type(head).__name__} > "
    return f"{kind}{' + '.join([*own, *['cosines'] * head.cosines])} > Linear"


def _blocks(body: nn.Module) -> str:
    if isinstance(body, Then):
        return f"{_blocks(body.first)} > {_blocks(body.second)}"
    return " + ".join(map(_blocks, body.bodies)) if isinstance(body, Beside) else type(body).__name__


def layer_table(name: str, shape: Shape, tokens: int) -> list[Row]:
    """A row per layer, in the order of the forward pass, for one example; the last row is the total."""
    head = make(name, shape).eval()
    rows: list[Row] = []
    for label, module in head.named_modules():
        if label and (not any(module.children()) or list(module.parameters(recurse=False))):
            module.register_forward_hook(partial(_note, rows, label))
    with torch.no_grad():
        head(_example(shape, tokens))
    return [*rows, {"layer": "all", "type": blocks(head), "output": "", "parameters": parameters(head)}]


def _note(rows: list[Row], label: str, module: nn.Module, inputs: Any, output: Any) -> None:
    own = sum(value.numel() for value in module.parameters(recurse=False))
    size = " x ".join(map(str, output.shape)) if isinstance(output, Tensor) else ""
    rows.append({"layer": label, "type": type(module).__name__, "output": size, "parameters": own})


def _example(shape: Shape, tokens: int) -> HiddenStates:
    """Hidden states of one example, all zero."""
    views = TOKENS if shape.span else views_of(shape.paired)
    layers = torch.zeros(1, shape.layers, tokens if shape.span else len(views), shape.features)
    pooled = torch.zeros(1, shape.features) if shape.pooled else None
    mask = torch.ones(1, tokens, dtype=torch.bool) if shape.span else None
    return HiddenStates(layers, views, pooled, mask, mask)
