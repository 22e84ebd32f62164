"""Heads that combine the layers of a view or token by attention, a ladder, convolutions or a mixer."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import normalised_head
from bertvision.heads.base import Body


class LayerAttention(Body):
    """(B, L, V, D) -> (B, V, queries * D): learned queries attend over the layers, so weights depend on the input.

    Multi-query attention pooling without key and value projections. The bias per layer and query lets it start as a
    learned pooling.
    """

    def __init__(self, layers: int, features: int, queries: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, features) * features**-0.5)
        self.bias = nn.Parameter(torch.zeros(queries, layers))
        self.width = queries * features

    def forward(self, layers: Tensor) -> Tensor:
        scores = torch.einsum("qd,blvd->bvql", self.queries, layers) * layers.shape[-1] ** -0.5
        shares = (scores + self.bias).softmax(-1)
        return torch.einsum("bvql,blvd->bvqd", shares, layers).flatten(2)


class Ladder(Body):
    """(B, L, V, D) -> (B, V, size): a narrow state passes from layer to layer and takes something from each.

    After ladder side-tuning (Sung et al., NeurIPS 2022): gates between the side network and the backbone's states, no
    gradient through the backbone. Here the rungs are narrow residual networks, one per layer.
    """

    def __init__(self, layers: int, features: int, size: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(layers, features, size) * features**-0.5)
        self.gates = nn.Parameter(torch.zeros(layers - 1))  # start at one half: as much from below as from the side
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


class LayerConvolution(Body):
    """(B, L, V, D) -> (B, V, 2 * size): two convolutions along the layer axis, then their mean and maximum.

    They see changes from one layer to the next at any depth, as in hierarchical convolution over the layers of speech
    encoders (Interspeech 2024).
    """

    def __init__(self, layers: int, features: int, size: int) -> None:
        super().__init__()
        self.compress = nn.Linear(features, size)
        self.first, self.second = (nn.Conv1d(size, size, 3, padding=1) for _ in range(2))
        self.width = 2 * size

    def forward(self, layers: Tensor) -> Tensor:
        small = functional.gelu(self.compress(layers)).permute(0, 2, 3, 1).flatten(0, 1)  # (B * V, size, L)
        small = small + functional.gelu(self.first(small))
        small = small + functional.gelu(self.second(small))
        return torch.cat([small.mean(2), small.amax(2)], 1).unflatten(0, (len(layers), -1))


class LayerMixer(Body):
    """(B, L, V, D) -> (B, V, L * size): features are compressed, then mixed across layers and across features.

    After LoSA's low-rank mixer on frozen features (CVPR 2024), with layers in place of image patches.
    """

    def __init__(self, layers: int, features: int, size: int) -> None:
        super().__init__()
        self.compress = nn.Linear(features, size)
        self.across_layers = nn.Sequential(nn.Linear(layers, 2 * layers), nn.GELU(), nn.Linear(2 * layers, layers))
        self.across_features = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))
        self.width = layers * size

    def forward(self, layers: Tensor) -> Tensor:
        small = functional.gelu(self.compress(layers)).permute(0, 2, 3, 1)  # (B, V, size, L)
        small = (small + self.across_layers(small)).transpose(2, 3)
        return (small + self.across_features(small)).flatten(2)


for _name, _about, _body in (
    ("layer-attention", "two queries attend over the layers", partial(LayerAttention, queries=2)),
    ("ladder", "a narrow state that climbs through the layers", partial(Ladder, size=48)),
    ("layer-convolution", "convolutions over the layer axis", partial(LayerConvolution, size=64)),
    ("layer-mixer", "a mixer over layers and features", partial(LayerMixer, size=48)),
):
    normalised_head(_name, f"{_about}, every view, normalised states", _body)
