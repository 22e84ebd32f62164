"""The frame of a head: choose views, run a body over the layers, read out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertvision.heads.dropout import Dropout
from bertvision.kinds import confined
from bertvision.states.hidden import HiddenStates


@dataclass(frozen=True)
class Shape:
    """What a head is built for: the backbone's layers and features, and the shape of an answer."""

    layers: int  # L, the embedding output included
    features: int  # D
    outputs: int  # C
    paired: bool  # two texts per example?
    pooled: bool  # does the backbone have a trained pooler?
    span: bool = False  # an answer per token instead of one per text?
    views: tuple[str, ...] | None = None  # the views of a variant, instead of the head's own


class Body(nn.Module):
    """(B, L, V, D) -> (B, V, width): combines the layers of each view."""

    width: int
    neighbours = False  # whether a token sees other tokens; if so, `forward` also takes the mask


def run(body: Body, layers: Tensor, mask: Tensor | None = None) -> Tensor:
    """The body's output, with the mask if it needs one."""
    found: Tensor = body(layers, mask) if body.neighbours else body(layers)
    return found


UNSEEN = -20.0  # the logit of a class without examples, of heads that are solved


class Rows(NamedTuple):
    """A batch of what a head is solved on."""

    states: HiddenStates
    targets: Tensor
    weights: Tensor | None = None  # above 0, and relative; None: all rows count the same


Batches = Callable[[], Iterable[Rows]]  # each call is a pass over all rows


class Head(nn.Module):
    """HiddenStates -> logits (B, C): views -> body -> dropout -> one linear layer over everything.

    For spans, the output layer reads each token on its own, (B, T, 2).
    """

    layers: tuple[int, ...] | None = None  # the layers it reads; None: all
    solved = False  # whether its weights, or their initial values, are found in closed form
    trained = True  # whether gradients train it

    def __init__(
        self,
        shape: Shape,
        body: Body | None,
        *,
        views: tuple[str, ...] = ("cls",),
        normalised: bool = False,
        cosines: bool = False,
        pooled: bool = False,
        dropout: float = 0.0,
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__()
        views = shape.views or views
        self.body, self.views, self.normalised, self.cosines, self.pooled = body, views, normalised, cosines, pooled
        self.lr_scale = lr_scale  # a head of eight parameters needs larger steps than one of a million
        self.dropout = Dropout(dropout)
        self.span = shape.span
        count = 1 if shape.span else len(views)
        width = (count * body.width if body else 0) + (shape.layers if cosines else 0)
        self.output = nn.Linear(width, shape.outputs)

    def solve(self, batches: Batches, kind: str) -> None:
        """Find the weights in closed form."""
        raise NotImplementedError

    def solve_like(self, other: "Head") -> None:
        """Copy the solution of another head on the same states."""
        raise NotImplementedError

    def forward(self, states: HiddenStates) -> Tensor:
        if self.layers is not None:
            states = states.only(self.layers)
        if self.span:
            assert self.body is not None
            read = run(self.body, states.tokens(self.normalised), states.mask)  # (B, T, width)
            return confined(self.output(self.dropout(read)), states.places)
        logits: Tensor = self.output(self.dropout(self.inputs(states)))
        return logits

    def inputs(self, states: HiddenStates) -> Tensor:
        """What the output layer reads of a text or a pair, (B, width)."""
        parts = []
        if self.body is not None:
            layers = states.read(self.views, self.normalised)  # (B, L, V, D)
            if self.pooled:  # the paper's last channel: the pooler's output
                assert states.pooled is not None
                layers = torch.cat([layers, states.pooled[:, None, None].expand(-1, -1, layers.shape[2], -1)], 1)
            parts.append(self.body(layers).flatten(1))
        if self.cosines:
            # The cosines of one encoder are all close to 1: centre and stretch them, so that small steps count.
            parts.append((states.cosines() - 0.7) * 5)
        return torch.cat(parts, 1)


def parameters(head: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(p.numel() for p in head.parameters() if p.requires_grad)
