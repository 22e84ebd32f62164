"""A small ladder beside the encoder: a narrow state climbs from layer to layer and takes something from each.

After ladder side-tuning (Sung et al., NeurIPS 2022): gates between the side network and the backbone's states, no
gradient through the backbone. Here the rungs are narrow residual networks, one per layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.base import Body, Head, Shape
from bertvision.heads.pooling import all_views


class Ladder(Body):
    """(B, L, V, D) -> (B, V, size)"""

    def __init__(self, layers: int, features: int, size: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(layers, features, size) * features**-0.5)
        self.gates = nn.Parameter(torch.zeros(layers - 1))  # a half each: as much from below as from the side
        self.rungs = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
            for _ in range(layers - 1)
        )
        self.width = size

    def forward(self, layers: Tensor) -> Tensor:
        side = torch.einsum("blvd,lds->lbvs", layers, self.down)
        state = side[0]
        for rung, gate, taken in zip(self.rungs, self.gates.sigmoid(), side[1:], strict=True):
            state = gate * state + (1 - gate) * taken
            state = state + rung(state)
        return functional.layer_norm(state, state.shape[-1:])


@register("ladder", "ours", "a narrow state that climbs through the layers, every view, normalised states")
def ladder(shape: Shape) -> Head:
    views = ("tokens",) if shape.span else all_views(shape)
    return Head(shape, Ladder(shape.layers, shape.features, 48), views=views, normalised=True, dropout=0.1)
