"""The tensors of a shard: the pass over its windows, encoded for the disk as they come."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision.backbones.tokenise import SEPARATE
from bertvision.prepare import Prepared
from bertvision.states.hidden import HiddenStates
from bertvision.states.passes import Reads, Step, Tick, clean_pass, default_device
from bertvision.stores.codec import SAMPLE_ROWS, Codec
from bertvision.stores.format import Header, Shard
from bertvision.stores.writer import finite
from bertvision.types import TRAIN


class ShardMaker:
    """Makes the shards of one store."""

    def __init__(self, setting: Prepared, header: Header) -> None:
        self.setting, self.header = setting, header
        self.reads = Reads(setting.shape.paired, header.tokens, tuple(header.layers))

    def sample(self, shard: Shard) -> Tensor:
        """States (N, L, D) of the first windows of the store, for the codec."""
        lengths = self.setting.windows[shard.split].lengths[shard.windows]
        enough = 1 + int(np.searchsorted(np.cumsum(self.header.rows_of(lengths)), SAMPLE_ROWS))
        found = []
        for places, step in self._steps(replace(shard, windows=shard.windows[:enough])):
            found += [states for _, states in self._rows(places, step, lengths)]
        return torch.cat(found)

    def shard(self, shard: Shard, codec: Codec, tick: Tick) -> dict[str, Tensor]:
        """Its tensors, windows in the order of the plan."""
        windows, header, evaluated = self.setting.windows[shard.split], self.header, shard.split != TRAIN
        lengths = windows.lengths[shard.windows]
        offsets = np.concatenate([[0], np.cumsum(header.rows_of(lengths))])
        made: dict[str, Tensor] = {}

        def put(name: str, values: Tensor, rows: Any, count: int) -> None:
            if name not in made:
                made[name] = torch.zeros(count, *values.shape[1:], dtype=values.dtype)
            made[name][rows] = values

        for places, step in self._steps(shard):
            for some, states in self._rows(places, step, lengths):
                finite(states, lambda some=some: self._text(shard, some[0]))  # type: ignore[misc]
                rows: Any = np.concatenate([np.arange(offsets[place], offsets[place + 1]) for place in some])
                for name, values in codec.encode(states).items():
                    put(name, values, rows, int(offsets[-1]))
            logits = step.logits.float().cpu() if evaluated and step.logits is not None else None
            for i, place in enumerate(places) if header.tokens else ():
                first, last = windows.offsets[shard.windows[place]], windows.offsets[shard.windows[place] + 1]
                rows = slice(int(offsets[place]), int(offsets[place + 1]))
                put("segments", torch.from_numpy(windows.segments[first:last]), rows, int(offsets[-1]))
                if header.span and logits is not None:
                    put("logits", logits[i, : last - first], rows, int(offsets[-1]))
            pooled = step.states.pooled.float().cpu() if header.pooled and step.states.pooled is not None else None
            for name, whole in (("logits", None if header.span else logits), ("pooled", pooled)):
                if whole is not None:
                    put(name, whole, torch.from_numpy(places), len(shard.windows))
            tick(len(places))
        return made

    def _steps(self, shard: Shard) -> Iterator[tuple[np.ndarray, Step]]:
        """Batches of a shard: the places of their windows in it, and the pass over them."""
        encoder, encoded, way = self.setting.encoder, self.setting.encoded[shard.split], self.setting.recipe.pairs
        place = np.empty(len(encoded), dtype=np.int64)
        place[shard.windows] = np.arange(len(shard.windows))
        said: dict[int, Tensor] = {}
        if way == SEPARATE and shard.split != TRAIN:  # the encoder's own answer is about both texts together
            for step in clean_pass(encoder, encoded, self.reads, rows=shard.windows, device=default_device()):
                assert step.logits is not None
                said |= zip(step.rows.tolist(), step.logits, strict=True)
        for step in clean_pass(encoder, encoded, self.reads, way=way, rows=shard.windows, device=default_device()):
            logits = torch.stack([said[row] for row in step.rows.tolist()]) if said else step.logits
            yield place[step.rows], replace(step, logits=logits)

    def _rows(self, places: np.ndarray, step: Step, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """States as (rows, L, D): of tokens window by window, so that they stay in the processor's cache until they
        are encoded; of pooled views for the whole batch."""
        if self.header.tokens:
            for i, place in enumerate(places):
                yield places[i : i + 1], step.states.layers[i, :, : lengths[place]].transpose(0, 1).cpu()
        else:
            yield places, self._views(step.states).cpu()

    def _views(self, states: HiddenStates) -> Tensor:
        kept = [states.views.index(view) for view in self.header.views]
        return states.layers[:, :, kept].transpose(1, 2).flatten(0, 1)

    def _text(self, shard: Shard, place: int) -> str:
        example = int(self.setting.windows[shard.split].examples[shard.windows[place]])
        return repr(self.setting.parts[shard.split].texts[example][:60])
