"""The paper's Xceptions: layers as channels, convolutions along the features of a view.

As in the original, they use batch normalisation. It would mix the tokens of a window, so they are for classes and
scores only.
"""

from torch import Tensor, nn
from torch.nn import functional

from bertvision_paper.convolutions import AlongFeatures


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that uses the running statistics if a batch has a single value."""

    def forward(self, found: Tensor) -> Tensor:
        if self.training and found.shape[0] * found.shape[2] == 1:
            return functional.batch_norm(found, self.running_mean, self.running_var, self.weight, self.bias)
        return super().forward(found)


class Normed(nn.Sequential):
    """A convolution without bias (separable: of each channel, then over channels), then batch normalisation."""

    def __init__(self, channels: int, width: int, size: int, stride: int = 1, *, separable: bool = False) -> None:
        if separable:
            depth = nn.Conv1d(channels, channels, size, padding="same", groups=channels, bias=False)
            super().__init__(depth, nn.Conv1d(channels, width, 1, bias=False), BatchNorm(width))
        else:
            super().__init__(nn.Conv1d(channels, width, size, stride, bias=False), BatchNorm(width))


class Block(nn.Module):
    """Separable convolutions and average pooling (3, stride 2), with a 1-convolution as residual connection."""

    def __init__(self, channels: int, widths: tuple[int, ...], *, first_relu: bool = True) -> None:
        super().__init__()
        inputs = (channels, *widths[:-1])
        self.steps = nn.ModuleList(Normed(i, o, 3, separable=True) for i, o in zip(inputs, widths, strict=True))
        self.around = Normed(channels, widths[-1], 1, 2)
        self.first_relu = first_relu

    def forward(self, found: Tensor) -> Tensor:
        around = self.around(found)
        for number, step in enumerate(self.steps):
            found = step(functional.relu(found) if number or self.first_relu else found)
        return functional.avg_pool1d(found, 3, 2, padding=1, count_include_pad=False) + around


def _each(steps: nn.ModuleList, found: Tensor) -> Tensor:
    for step in steps:
        found = functional.relu(step(found))
    return found


class Abbreviated(AlongFeatures):
    """Two convolutions and one block, averaged over features: (B, L, V, D) -> (B, V, 512)."""

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.entry = nn.ModuleList([Normed(layers, 64, min(3, features), 3), Normed(64, 128, _fitting(features // 3))])
        self.block = Block(128, (256, 512), first_relu=False)
        self.width = 512

    def convolve(self, found: Tensor) -> Tensor:
        return self.block(_each(self.entry, found)).mean(2)


class Full(AlongFeatures):
    """The whole architecture: (B, L, V, D) -> (B, V, 2048)."""

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.entry = nn.ModuleList([Normed(layers, 32, min(3, features), 2), Normed(32, 64, _fitting(features // 2))])
        self.down = nn.Sequential(
            Block(64, (128, 128), first_relu=False), Block(128, (256, 256)), Block(256, (728, 728))
        )
        self.middle = nn.ModuleList(
            nn.ModuleList(Normed(728, 728, 3, separable=True) for _ in range(3)) for _ in range(8)
        )
        self.exit = Block(728, (728, 1024))
        self.last = nn.ModuleList([Normed(1024, 1536, 3, separable=True), Normed(1536, 2048, 3, separable=True)])
        self.width = 2048

    def convolve(self, found: Tensor) -> Tensor:
        found = self.down(_each(self.entry, found))
        for steps in self.middle:
            changed = found
            for step in steps:  # type: ignore[attr-defined]
                changed = step(functional.relu(changed))
            found = found + changed
        return _each(self.last, self.exit(found)).mean(2)


def _fitting(length: int) -> int:
    return max(1, min(3, length))
