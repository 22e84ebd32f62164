"""Dropout that draws from each head's own random stream, also if many heads are computed as one stack."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertvision.randomness import RandomStream

# The streams of the stacked heads, and a number per head: through it vmap keeps the draws of heads apart, even where no
# parameter came before.
_stack: tuple[Sequence[RandomStream], Tensor] | None = None


@contextmanager
def drawing_from(streams: Sequence[RandomStream], number: Tensor) -> Iterator[None]:
    """Inside, stacked head i draws from stream i, as it does when it is computed alone."""
    global _stack
    _stack = streams, number
    try:
        yield
    finally:
        _stack = None


class Dropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        if not self.training or not self.p:
            return values
        dropped: Tensor = _Drop.apply(values, self.p, *(_stack or ((), None)))[0]
        return dropped

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Drop(torch.autograd.Function):
    """Random numbers from each head's own stream, which vmap alone cannot do."""

    @staticmethod
    def forward(values: Tensor, p: float, streams: Any, number: Any) -> tuple[Tensor, Tensor]:
        kept = _kept(values, p)
        return values * kept, kept

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        return gradient * ctx.saved_tensors[0], None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor, p: float, streams: Any, number: Any) -> Any:
        found, size = [], info.batch_size
        values = values.expand(size, *values.shape) if in_dims[0] is None else values.movedim(in_dims[0], 0)
        for i, own in zip(number.tolist(), values, strict=True):
            with streams[i].active():
                found.append(_kept(own, p))
        kept = torch.stack(found)
        return (values * kept, kept), (0, 0)


def _kept(values: Tensor, p: float) -> Tensor:
    return (torch.rand_like(values) >= p).to(values.dtype) / (1 - p)
