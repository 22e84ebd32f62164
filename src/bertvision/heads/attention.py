"""Layer weights that depend on the input: several learned queries attend over the layers of a view or token.

After multi-query attention pooling without key and value projections (the states themselves are both), as in two-stage
token and layer attention on frozen encoders: L weights per query and input instead of L weights in all.
"""

import torch
from torch import Tensor, nn

from bertvision.heads import register
from bertvision.heads.base import Body, Head, Shape
from bertvision.heads.pooling import all_views


class LayerAttention(Body):
    """(B, L, V, D) -> (B, V, queries * D); a bias per layer and query, so that it can begin as a learned pooling."""

    def __init__(self, layers: int, features: int, queries: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, features) * features**-0.5)
        self.bias = nn.Parameter(torch.zeros(queries, layers))
        self.width = queries * features

    def forward(self, layers: Tensor) -> Tensor:
        scores = torch.einsum("qd,blvd->bvql", self.queries, layers) * layers.shape[-1] ** -0.5
        shares = (scores + self.bias).softmax(-1)
        return torch.einsum("bvql,blvd->bvqd", shares, layers).flatten(2)


@register("layer-attention", "ours", "two queries attend over the layers, every view, normalised states")
def layer_attention(shape: Shape) -> Head:
    views = ("tokens",) if shape.span else all_views(shape)
    body = LayerAttention(shape.layers, shape.features, 2)
    return Head(shape, body, views=views, normalised=True, dropout=0.1)
