"""What heads are composed of: bodies after one another and beside one another, and convolutions along features."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertvision.heads.base import Body, run
from bertvision.heads.dropout import Dropout


class Then(Body):
    """`second` reads what `first` gives as if it were the only layer."""

    def __init__(self, first: Body, second: Body) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.width = second.width
        self.neighbours = first.neighbours or second.neighbours

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return run(self.second, run(self.first, layers, mask)[:, None], mask)


class Beside(Body):
    """All bodies read the same layers; what they give is concatenated."""

    def __init__(self, *bodies: Body) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)
        self.width = sum(body.width for body in bodies)
        self.neighbours = any(body.neighbours for body in bodies)

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.cat([run(body, layers, mask) for body in self.bodies], 2)  # type: ignore[arg-type]


class FeatureConvolution(Body):
    """(B, L, V, D) -> (B, V, filters * length): convolutions along the features of one token, with layers as channels.

    `kernels` are (size, stride, dilation). Where features run out (small encoders) a kernel shrinks to what is left.
    """

    def __init__(
        self,
        layers: int,
        features: int,
        kernels: tuple[tuple[int, int, int], ...],
        *,
        filters: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.convolutions, channels, length = nn.ModuleList(), layers, features
        for size, stride, dilation in kernels:
            if (size - 1) * dilation + 1 > length:
                dilation = 1
                size = min(size, length)
            self.convolutions.append(nn.Conv1d(channels, filters, size, stride, dilation=dilation))
            channels, length = filters, (length - (size - 1) * dilation - 1) // stride + 1
        self.dropout = Dropout(dropout)
        self.width = filters * length

    def forward(self, layers: Tensor) -> Tensor:
        batch, _, views, _ = layers.shape
        found = layers.transpose(1, 2).flatten(0, 1)  # (B * V, L, D)
        for convolution in self.convolutions:
            found = self.dropout(functional.relu(convolution(found)))
        return found.reshape(batch, views, self.width)
