"""The tensors of a shard: the encoder's pass over its windows, encoded for the disk as they come."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.states.hidden import joined, pool, pooling_weights, views_of
from bertvision.stores.codec import SAMPLE_ROWS, Codec
from bertvision.stores.format import Header, Shard
from bertvision.stores.writer import finite
from bertvision.training.batches import by_length
from bertvision.training.setting import Setting
from bertvision.types import Windows


class Reading:
    """The encoder's pass over the windows of a shard."""

    def __init__(self, setting: Setting, header: Header) -> None:
        self.setting, self.header, self.encoder = setting, header, setting.encoder
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder.to(device).eval()
        self.separate = setting.options.pairs == "separate" and setting.encoded["train"].alone is not None

    def sample(self, shard: Shard) -> Tensor:
        """States (N, L, D) of the first windows of the store, for the codec."""
        lengths = self.setting.encoded[shard.split].together.lengths[shard.windows]
        enough = 1 + int(np.searchsorted(np.cumsum(self.header.rows_of(lengths)), SAMPLE_ROWS))
        few = replace(shard, windows=shard.windows[:enough])
        found: list[Tensor] = []
        self._read(few, lambda states, *_: found.append(states), lambda windows: None)
        return torch.cat(found)

    def shard(self, shard: Shard, codec: Codec, tick: Callable[[int], object]) -> dict[str, Tensor]:
        """Its tensors, windows in the order of the plan."""
        windows = self.setting.encoded[shard.split].together
        lengths = self.header.rows_of(windows.lengths[shard.windows])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        made: dict[str, Tensor] = {}

        def room(name: str, like: Tensor, count: int) -> Tensor:
            if name not in made:
                made[name] = torch.zeros(count, *like.shape[1:], dtype=like.dtype)
            return made[name]

        def put(
            states: Tensor, places: np.ndarray, segments: Tensor, logits: Tensor | None, pooled: Tensor | None
        ) -> None:
            # A window of tokens comes alone, pooled views come in batches.
            if self.header.tokens:
                rows: Any = slice(int(offsets[places[0]]), int(offsets[places[0] + 1]))
            else:
                rows = np.concatenate([np.arange(offsets[place], offsets[place + 1]) for place in places])
            per_row = codec.encode(states)
            if self.header.tokens:
                per_row["segments"] = segments
                if self.header.span and logits is not None:
                    per_row["logits"] = logits
            for name, values in per_row.items():
                room(name, values, int(offsets[-1]))[rows] = values
            for name, whole in (("logits", None if self.header.span else logits), ("pooled", pooled)):
                if whole is not None:
                    room(name, whole, len(shard.windows))[torch.from_numpy(places)] = whole

        self._read(shard, put, tick)
        return made

    @torch.inference_mode()
    def _read(self, shard: Shard, use: Callable[..., object], tick: Callable[[int], object]) -> None:
        """Give `use` the states (N, L, D) of one batch after the other, and where in the shard they belong."""
        lengths = self.setting.encoded[shard.split].together.lengths
        for places in by_length(lengths[shard.windows]):
            rows = shard.windows[places]
            if self.header.tokens:
                self._tokens(shard.split, rows, places, use)
            else:
                self._pooled(shard.split, rows, places, use)
            tick(len(rows))

    def _tokens(self, split: str, rows: np.ndarray, places: np.ndarray, use: Callable[..., object]) -> None:
        """Window by window: the states of one stay in the processor's cache until they are encoded and put away."""
        windows, evaluated = self.setting.encoded[split].together, split != "train"
        batch = self.encoder.batch(windows, rows)
        logits, layers, pooled = self.encoder(batch.inputs)
        kept = [layers[i].float().cpu() for i in self.header.layers]
        segments, logits = batch.segments.to(torch.int8).cpu(), logits.float().cpu()
        for i, length in enumerate(windows.lengths[rows]):
            states = torch.stack([layer[i, :length] for layer in kept], 1)
            finite(states, lambda row=rows[i]: self._text(split, row))  # type: ignore[misc]
            said = logits[i, :length] if self.header.span else logits[i : i + 1]
            whole = pooled[i : i + 1].float().cpu() if self.header.pooled and pooled is not None else None
            use(states, places[i : i + 1], segments[i, :length], said if evaluated else None, whole)

    def _pooled(self, split: str, rows: np.ndarray, places: np.ndarray, use: Callable[..., object]) -> None:
        encoded, evaluated = self.setting.encoded[split], split != "train"
        logits: Tensor | None
        if self.separate:
            assert encoded.alone is not None
            (one, _, pooled), (other, _, second) = (self._views(windows, rows, False) for windows in encoded.alone)
            states, logits = self._chosen(joined(one, other)), None
            pooled = (pooled + second) / 2 if pooled is not None and second is not None else None
            if evaluated:  # what the encoder itself says, it says of both texts together
                logits = self._views(encoded.together, rows, True)[1]
        else:
            views, logits, pooled = self._views(encoded.together, rows, self.setting.shape.paired)
            states = self._chosen(views)
        finite(states, lambda: self._text(split, rows[0]))
        use(
            states.cpu(),
            places,
            torch.zeros(0),
            logits.float().cpu() if evaluated and logits is not None else None,
            pooled.float().cpu() if self.header.pooled and pooled is not None else None,
        )

    def _views(self, windows: Windows, rows: np.ndarray, pairs: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        batch = self.encoder.batch(windows, rows)
        logits, layers, pooled = self.encoder(batch.inputs)
        return pool(layers, pooling_weights(batch.mask, batch.segments, pairs)).float(), logits, pooled

    def _chosen(self, views: Tensor) -> Tensor:
        """(B, L, V, D) of all views and layers -> (B * V, L, D) of those that are kept."""
        known = views_of(self.setting.shape.paired)
        kept = [known.index(view) for view in self.header.views]
        return views[:, self.header.layers][:, :, kept].transpose(1, 2).flatten(0, 1)

    def _text(self, split: str, row: int) -> str:
        example = int(self.setting.encoded[split].together.examples[row])
        return repr(self.setting.parts[split].texts[example][:60])
