"""How states become numbers on disk: plain floating point, or eight bits with scales that let outliers live.

A codec turns states (N, L, D) in float32 into tensors of N rows, and these into a batch's (L, N, D). What it must know
beforehand (the centre and range of each feature) it finds on a sample; the store keeps these constants once.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bertvision.errors import UserError

PLAIN = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPES = (*PLAIN, "int8")
LEVELS = 127  # to each side of zero
SAMPLE_ROWS = 4096  # tokens or views on which a codec finds its constants


class Codec(Protocol):
    def encode(self, states: Tensor) -> dict[str, Tensor]: ...
    def decode(self, stored: dict[str, Tensor], room: Tensor) -> Tensor:
        """Into `room` (L, N, D), float32: a window's place in a batch, so that nothing is copied twice."""

    @property
    def constants(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class Plain:
    dtype: torch.dtype

    def encode(self, states: Tensor) -> dict[str, Tensor]:
        found = states.to(self.dtype)
        if self.dtype == torch.float16 and not torch.isfinite(found).all():
            raise UserError("A hidden state is too large for fp16 (65,504): use --dtype bf16, fp32 or int8.")
        return {"states": found}

    def decode(self, stored: dict[str, Tensor], room: Tensor) -> Tensor:
        return room.copy_(stored["states"].transpose(0, 1))

    @property
    def constants(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True)
class Int8:
    """Features are centred and brought to one range, then each row of D has a scale of its own.

    Encoders have a few features that are a hundred times as large as the others: with one scale per row these alone
    would be kept well. And they have tokens that are larger as a whole: with one scale per feature these would be cut
    off. The range is a feature's largest value, not its deviation: where values are rare and large, dividing by the
    deviation would make this feature decide its rows' scales.
    """

    centre: Tensor  # (L, D)
    spread: Tensor  # the largest distance from the centre, in a sample

    @classmethod
    def fitted(cls, sample: Tensor) -> "Int8":
        centre = sample.mean(0)
        return cls(centre, (sample - centre).abs().amax(0).clamp(min=1e-6))

    def encode(self, states: Tensor) -> dict[str, Tensor]:
        level = (states - self.centre) / self.spread
        scales = (level.abs().amax(-1) / LEVELS).clamp(1e-6, 6e4).half()
        rounded = (level / scales.float()[..., None]).round_().clamp_(-LEVELS, LEVELS)
        return {"states": rounded.to(torch.int8), "scales": scales}

    def decode(self, stored: dict[str, Tensor], room: Tensor) -> Tensor:
        scales = stored["scales"].float().T[..., None]  # (L, N, 1)
        torch.mul(stored["states"].transpose(0, 1), scales, out=room)
        return torch.addcmul(self.centre[:, None], room, self.spread[:, None], out=room)

    @property
    def constants(self) -> dict[str, Tensor]:
        return {"centre": self.centre, "spread": self.spread}


def codec(dtype: str, sample: Tensor) -> Codec:
    """The codec for states like those of the sample (N, L, D)."""
    return Plain(PLAIN[dtype]) if dtype in PLAIN else Int8.fitted(sample)


def restored(dtype: str, constants: dict[str, Tensor]) -> Codec:
    """The codec of a store, from its constants."""
    return Plain(PLAIN[dtype]) if dtype in PLAIN else Int8(constants["centre"], constants["spread"])


def bytes_per_row(dtype: str, layers: int, features: int) -> int:
    """Of one token (or view) in all layers."""
    return layers * (features * {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}[dtype] + (2 if dtype == "int8" else 0))
