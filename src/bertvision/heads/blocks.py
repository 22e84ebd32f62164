"""Compositions of bodies: one after the other, and side by side."""

import torch
from torch import Tensor, nn

from bertvision.heads.base import Body, run


class Then(Body):
    """`second` reads the output of `first` as if it were the only layer."""

    def __init__(self, first: Body, second: Body) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.width = second.width
        self.neighbours = first.neighbours or second.neighbours

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return run(self.second, run(self.first, layers, mask)[:, None], mask)


class Beside(Body):
    """All bodies read the same layers; their outputs are concatenated."""

    def __init__(self, *bodies: Body) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        self.width = sum(body.width for body in bodies)
        self.neighbours = any(body.neighbours for body in bodies)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.cat([run(body, layers, mask) for body in self.bodies], 2)  # type: ignore[arg-type]
