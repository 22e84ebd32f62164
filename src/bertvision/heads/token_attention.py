"""Attention over the tokens of every layer, then over the layers: what to read where, decided by the input.

After two-stage pooling of frozen encoders, tokens first and layers second, with several learned queries and no key or
value projections: the states themselves are both.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads import register
from bertvision.heads.attention import LayerAttention
from bertvision.heads.base import Head, Shape
from bertvision.states.hidden import HiddenStates


class TokenAttention(Head):
    """(B, L, T, D) -> a state per layer and query -> a state per query -> logits; no views in between."""

    def __init__(self, shape: Shape, queries: int) -> None:
        views = tuple(f"query {i}" for i in range(queries))  # they stand where views would
        super().__init__(shape, LayerAttention(shape.layers, shape.features, 1), views=views, dropout=0.1)
        self.sequences = tuple(range(shape.layers))
        self.queries = nn.Parameter(torch.randn(queries, shape.features) * shape.features**-0.5)

    def forward(self, states: HiddenStates) -> Tensor:
        read = []
        for layer in self.sequences:
            tokens, mask = states.sequence(layer)
            tokens = functional.layer_norm(tokens, tokens.shape[-1:])
            scores = torch.einsum("qd,btd->bqt", self.queries, tokens) * tokens.shape[-1] ** -0.5
            shares = scores.masked_fill(~mask[:, None].bool(), -torch.inf).softmax(-1)
            read.append(torch.bmm(shares, tokens))
        return super().forward(HiddenStates(torch.stack(read, 1), self.views))


@register("token-attention", "ours", "queries attend over the tokens of each layer, then over layers", reads="texts")
def token_attention(shape: Shape) -> Head:
    return TokenAttention(shape, 4)
