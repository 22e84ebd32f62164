"""The frame of a head: choose views, run a body over the layers, read out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertvision.heads.dropout import Dropout
from bertvision.kinds import confined
from bertvision.states.hidden import HiddenStates


@dataclass(frozen=True)
class Shape:
    """What a head is built for: the backbone's layers and features, and the answers asked for."""

    layers: int  # L, the embedding output included
    features: int  # D
    outputs: int  # C
    paired: bool  # two texts per example?
    pooled: bool  # does the backbone have a trained pooler?
    span: bool = False  # an answer per token instead of one per text?
    views: tuple[str, ...] | None = None  # the views a variant asks for, instead of the head's own


class Body(nn.Module):
    """(B, L, V, D) -> (B, V, width): what is done with the layers of one view."""

    width: int
    neighbours = False  # does it look at the tokens beside? then it is given the mask too, to see where they end


def run(body: Body, layers: Tensor, mask: Tensor | None = None) -> Tensor:
    """What the body makes of the layers, with the mask if it asks for one."""
    found: Tensor = body(layers, mask) if body.neighbours else body(layers)
    return found


Batches = Callable[[], Iterable[tuple[HiddenStates, Tensor]]]  # a pass over states and targets per call


class Head(nn.Module):
    """HiddenStates -> logits (B, C): views -> body -> dropout -> one linear layer over everything.

    For spans every token is a view that is read out by itself, (B, T, 2).
    """

    layers: tuple[int, ...] | None = None  # the layers it reads; None is all
    solved = False  # are its weights, or initial values for them, found in closed form?
    trained = True  # by gradients

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
        self.lr_scale = lr_scale  # a head of eight parameters wants larger steps than one of a million
        self.dropout = Dropout(dropout)
        self.span = shape.span
        count = 1 if shape.span else len(views)
        width = (count * body.width if body else 0) + (shape.layers if cosines else 0)
        self.output = nn.Linear(width, shape.outputs)

    def solve(self, batches: Batches, kind: str) -> None:
        """Find the weights in closed form."""
        raise NotImplementedError

    def solve_like(self, other: "Head") -> None:
        """Copy what another head found with `solve` on the same states."""
        raise NotImplementedError

    def forward(self, states: HiddenStates) -> Tensor:
        if self.layers is not None:
            states = states.only(self.layers)
        if self.span:
            assert self.body is not None
            read = run(self.body, states.tokens(self.normalised), states.mask)  # (B, T, width)
            return confined(self.output(self.dropout(read)), states.places)
        parts = []
        if self.body is not None:
            layers = states.read(self.views, self.normalised)  # (B, L, V, D)
            if self.pooled:  # the paper's last channel: the pooler's output
                assert states.pooled is not None
                layers = torch.cat([layers, states.pooled[:, None, None].expand(-1, -1, layers.shape[2], -1)], 1)
            parts.append(self.body(layers).flatten(1))
        if self.cosines:
            # Cosines of one encoder lie close together near 1: centred and stretched, so that small steps count.
            parts.append((states.cosines() - 0.7) * 5)
        logits: Tensor = self.output(self.dropout(torch.cat(parts, 1)))
        return logits


def parameters(head: nn.Module) -> int:
    """How many numbers training changes."""
    return sum(p.numel() for p in head.parameters() if p.requires_grad)
