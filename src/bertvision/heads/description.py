"""What a head is made of: its blocks in words, its parameters, and a table of its layers with their shapes."""

from typing import Any

import torch
from torch import nn

from bertvision.heads import heads
from bertvision.heads.base import Body, Head, Shape, parameters
from bertvision.heads.blocks import Beside, Then
from bertvision.heads.variants import make
from bertvision.states.hidden import HiddenStates, views_of


def row(name: str, shape: Shape) -> dict[str, Any]:
    """One line of `ls heads` at a shape. Keras, like the paper, also counts the statistics of batch normalisation."""
    recipe = heads[name]
    head = make(name, shape)
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
    inner = _blocks(head.body) if head.body is not None else "cosines"
    if type(head) is not Head:
        inner = f"{type(head).__name__} > {inner}"
    return f"{inner}{' + cosines' if head.cosines and head.body is not None else ''} > Linear"


def _blocks(body: Body) -> str:
    if isinstance(body, Then):
        return f"{_blocks(body.first)} > {_blocks(body.second)}"
    if isinstance(body, Beside):
        return " + ".join(_blocks(part) for part in body.bodies)  # type: ignore[arg-type]
    return type(body).__name__


def layer_table(name: str, shape: Shape, tokens: int) -> list[dict[str, Any]]:
    """A row per layer, in the order of the forward pass, for one example; the last row sums up."""
    head = make(name, shape).eval()
    rows: list[dict[str, Any]] = []

    def note(label: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            own = sum(value.numel() for value in module.parameters(recurse=False))
            size = " x ".join(map(str, output.shape)) if isinstance(output, torch.Tensor) else ""
            rows.append({"layer": label, "type": type(module).__name__, "output": size, "parameters": own})

        return hook

    for label, module in head.named_modules():
        leaf = not any(module.children()) or any(True for _ in module.parameters(recurse=False))
        if label and leaf:
            module.register_forward_hook(note(label, module))
    with torch.no_grad():
        head(example(shape, tokens))
    total = parameters(head)
    return [*rows, {"layer": "all", "type": blocks(head), "output": "", "parameters": total}]


def example(shape: Shape, tokens: int) -> HiddenStates:
    """Hidden states of one example, all zero."""
    mask = torch.ones(1, tokens, dtype=torch.bool)
    if shape.span:
        return HiddenStates(torch.zeros(1, shape.layers, tokens, shape.features), ("tokens",), None, mask, mask)
    views = views_of(shape.paired)
    pooled = torch.zeros(1, shape.features) if shape.pooled else None
    return HiddenStates(torch.zeros(1, shape.layers, len(views), shape.features), views, pooled)
