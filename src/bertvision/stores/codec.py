"""Number formats of stored states: plain floating point, or eight bits with scales that preserve outliers.

A codec encodes states (N, L, D) in float32 as tensors of N rows, and decodes these into a batch's (L, N, D). Int8 finds
its constants (the centre and range of each feature) on a sample; the store keeps them once.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bertvision.errors import UserError

PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES = (*PLAIN, "int8")
LEVELS = 127  # on each side of zero
SAMPLE_ROWS = 4096  # tokens or views on which a codec finds its constants


@dataclass(frozen=True)
class Plain:
    """Floating point, as it is."""

    dtype: torch.dtype
    constants: ClassVar[dict[str, Tensor]] = {}

    def encode(self, states: Tensor) -> dict[str, Tensor]:
        found = states.to(self.dtype)
        if self.dtype == torch.float16 and not torch.isfinite(found).all():
            raise UserError("A hidden state is too large for fp16 (65,504): use --dtype bf16, fp32 or int8.")
        return {"states": found}

    def decode(self, stored: dict[str, Tensor], room: Tensor) -> Tensor:
        """Into `room` (L, N, D), float32: the window's place in a batch, which saves a copy."""
        return room.copy_(stored["states"].transpose(0, 1))


@dataclass(frozen=True)
class Int8:
    """Features are centred and scaled to one range; then each row of D has its own scale.

    A few features of an encoder are a hundred times as large as the others: one scale per row would preserve only
    these. Some tokens are larger as a whole: one scale per feature would clip them. The range is a feature's largest
    value, not its deviation: a feature with rare large values would otherwise dominate the scales of its rows.
    """

    centre: Tensor  # (L, D)
    spread: Tensor  # (L, D), the largest distance from the centre in a sample

    @classmethod
    def fitted(cls, sample: Tensor) -> "Int8":
        centre = sample.mean(0)
        return cls(centre, (sample - centre).abs().amax(0).clamp(min=1e-6))

    @property
    def constants(self) -> dict[str, Tensor]:
        return {"centre": self.centre, "spread": self.spread}

    def encode(self, states: Tensor) -> dict[str, Tensor]:
        level = (states - self.centre) / self.spread
        scales = (level.abs().amax(-1) / LEVELS).clamp(1e-6, 6e4).half()
        rounded = (level / scales.float()[..., None]).round_().clamp_(-LEVELS, LEVELS)
        return {"states": rounded.to(torch.int8), "scales": scales}

    def decode(self, stored: dict[str, Tensor], room: Tensor) -> Tensor:
        scales = stored["scales"].float().T[..., None]  # (L, N, 1)
        torch.mul(stored["states"].transpose(0, 1), scales, out=room)
        return torch.addcmul(self.centre[:, None], room, self.spread[:, None], out=room)


Codec = Plain | Int8


def codec(dtype: str, sample: Tensor) -> Codec:
    """The codec for states like those of the sample (N, L, D)."""
    return Plain(PLAIN[dtype]) if dtype in PLAIN else Int8.fitted(sample)


def restored(dtype: str, constants: dict[str, Tensor]) -> Codec:
    """The codec of a store, from its constants."""
    return Plain(PLAIN[dtype]) if dtype in PLAIN else Int8(**constants)


def bytes_per_row(dtype: str, layers: int, features: int) -> int:
    """Bytes of one token (or view) in all layers; int8 adds a scale of two bytes per layer."""
    return layers * (features * PLAIN[dtype].itemsize if dtype in PLAIN else features + 2)
