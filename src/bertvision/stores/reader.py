"""Read a store: batches of hidden states, prepared while the previous one is in use."""

import math
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from bertvision.errors import UserError
from bertvision.stores.codec import Codec, restored
from bertvision.stores.format import CONSTANTS, Header, damaged, read_manifest, refuse
from bertvision.stores.place import Place

POOL = 50  # batches whose windows are shuffled and sorted by length together
AHEAD = 2  # batches that are prepared in advance


@dataclass(frozen=True)
class StoredBatch:
    """Hidden states of some windows, padded with zeros."""

    hidden: Tensor  # (B, L, T, D) float32; T counts tokens or views
    pooled: Tensor | None  # (B, D), if the encoder has a trained pooler
    mask: Tensor  # (B, T)
    segments: Tensor | None  # (B, T), of tokens
    logits: Tensor | None  # of the encoder, (B, C) or for spans (B, T, 2); not for training examples
    targets: Tensor  # (B,), or for spans (B, 2)
    ids: list[str]
    rows: np.ndarray  # row numbers of these windows in the store


@dataclass(frozen=True)
class Rows:
    """The windows of some splits, in stored order."""

    split: np.ndarray
    window: np.ndarray
    example: np.ndarray
    id: pyarrow.Array  # far smaller than a list
    length: np.ndarray
    targets: np.ndarray
    rank: np.ndarray | None  # of training windows: decides which shares of the data have them
    shard: np.ndarray  # names
    first: np.ndarray  # the window's first token (or view) in the shard
    place: np.ndarray  # the window's number in the shard


class Rooms:
    """Memory for batches, reused once its batch is freed: allocating it costs more than decoding.

    A tensor made from an array keeps it alive as long as the tensor has views. So the memory is free when the array
    that was handed out is gone.
    """

    def __init__(self, size: int) -> None:
        self.arrays = [np.empty(size, dtype=np.float32) for _ in range(AHEAD + 2)]
        self.given: list[Callable[[], object]] = [lambda: None for _ in self.arrays]

    def take(self, shape: tuple[int, ...]) -> Tensor:
        for i, array in enumerate(self.arrays):
            if self.given[i]() is None:
                part = array[: math.prod(shape)]
                self.given[i] = weakref.ref(part)
                return torch.from_numpy(part).view(shape)
        return torch.empty(shape)  # the caller keeps batches


class Store:
    """A finished store, or some splits of one; `len` is the number of windows."""

    def __init__(self, place: Place, manifest: dict[str, Any], splits: tuple[str, ...]) -> None:
        self.place, self.manifest, self.splits = place, manifest, splits
        self.header = Header(**manifest["header"])
        self.layers, self.features = len(self.header.layers), self.header.features
        self._open: dict[str, dict[str, Tensor]] = {}
        self._checked: set[str] = set()

    def only(self, *splits: str) -> "Store":
        for split in splits:
            if split not in self.header.data:
                raise UserError(f"The store '{self.place}' has no {split}: it has {', '.join(self.header.data)}.")
        return Store(self.place, self.manifest, splits)

    def __len__(self) -> int:
        return sum(self.header.data[split]["windows"] for split in self.splits)

    @cached_property
    def codec(self) -> Codec:
        constants = load_file(self.place.local(CONSTANTS)) if CONSTANTS in self.manifest["files"] else {}
        return restored(self.header.dtype, constants)

    @cached_property
    def rows(self) -> Rows:
        tables = [pyarrow.parquet.read_table(self.place.local(f"rows-{split}.parquet")) for split in self.splits]
        table = pyarrow.concat_tables(tables, promote_options="default")
        column = {name: table[name].to_numpy() for name in table.column_names if name not in ("id", "shard")}
        shards = table["shard"].combine_chunks().dictionary_encode()  # all rows share a few names
        column["shard"] = np.array(shards.dictionary.to_pylist(), dtype=object)[shards.indices.to_numpy()]
        targets = np.stack([column["start"], column["end"]], 1) if "start" in column else column["target"]
        split = np.repeat(list(self.splits), [len(part) for part in tables])
        taken = self.header.rows_of(column["length"])
        fresh = np.r_[True, column["shard"][1:] != column["shard"][:-1]] if len(taken) else np.zeros(0, bool)
        begins = np.flatnonzero(fresh)[np.cumsum(fresh) - 1]  # of each window: the first window of its shard
        before = np.cumsum(taken) - taken
        return Rows(
            split, column["window"], column["example"], table["id"].combine_chunks(), column["length"], targets,
            column.get("rank"), column["shard"], before - before[begins], np.arange(len(taken)) - begins,
        )  # fmt: skip

    def examples(self, split: str) -> pyarrow.Table:
        return pyarrow.parquet.read_table(self.place.local(f"examples-{split}.parquet"))

    def order(self, batch_size: int, seed: int | None) -> list[np.ndarray]:
        """The batches as row numbers. In pools of shards, windows are shuffled and grouped by length.

        Without a seed: in stored order, which is random already, and always the same.
        """
        random = None if seed is None else np.random.default_rng([seed, len(self)])
        shards = np.split(np.arange(len(self)), np.flatnonzero(self.rows.place == 0)[1:])
        if random is not None:
            shards = [shards[i] for i in random.permutation(len(shards))]
        batches: list[np.ndarray] = []
        pool = np.zeros(0, dtype=np.int64)
        for i, shard in enumerate(shards):
            pool = np.concatenate([pool, shard])
            if len(pool) >= POOL * batch_size or i == len(shards) - 1:
                pool = pool if random is None else random.permutation(pool)
                pool = pool[np.argsort(self.header.rows_of(self.rows.length[pool]), kind="stable")]
                made = [pool[j : j + batch_size] for j in range(0, len(pool), batch_size)]
                batches += made if random is None else [made[j] for j in random.permutation(len(made))]
                pool = pool[:0]
        return batches

    def batches(
        self, batch_size: int, seed: int | None = None, *, start: int = 0, check: bool = False
    ) -> Iterator[StoredBatch]:
        """Every window once, from batch `start` on. Equal seeds give equal batches. With `check`, the checksum of each
        shard is verified before its first use."""
        order = self.order(batch_size, seed)[start:]
        longest = (len(rows) * int(self.header.rows_of(self.rows.length[rows]).max()) for rows in order)
        rooms = Rooms(max(longest, default=0) * self.layers * self.features)
        with ThreadPoolExecutor(1) as worker:
            coming = (worker.submit(self.batch, rows, check, rooms) for rows in order)
            ready = deque(islice(coming, AHEAD))
            try:
                while ready:
                    batch = ready.popleft().result()
                    ready.extend(islice(coming, 1))
                    yield batch
            finally:
                worker.shutdown(cancel_futures=True)

    def batch(self, rows: np.ndarray, check: bool = False, rooms: Rooms | None = None) -> StoredBatch:
        known = self.rows
        lengths = self.header.rows_of(known.length[rows])
        mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths)[:, None]
        shape = (len(rows), self.layers, mask.shape[1], self.features)
        hidden = torch.empty(shape) if rooms is None else rooms.take(shape)
        others: dict[str, Tensor] = {}
        for i, row in enumerate(rows):
            stored, length = self.shard(known.shard[row], check), int(lengths[i])
            part = slice(int(known.first[row]), int(known.first[row]) + length)
            coded = {key: values[part] for key, values in stored.items() if key in ("states", "scales")}
            self.codec.decode(coded, hidden[i, :, :length])
            hidden[i, :, length:] = 0
            for key in stored.keys() - coded.keys():
                per_token = key == "segments" or (key == "logits" and self.header.span)
                values = stored[key][part if per_token else int(known.place[row])]
                if key not in others:
                    like = (*mask.shape, *values.shape[1:]) if per_token else (len(rows), *values.shape)
                    others[key] = torch.zeros(like, dtype=values.dtype)
                others[key][(i, slice(length)) if per_token else i] = values
        ids = known.id.take(pyarrow.array(rows)).to_pylist()
        return StoredBatch(
            hidden, others.get("pooled"), mask, others.get("segments"), others.get("logits"),
            torch.from_numpy(known.targets[rows]), ids, rows,
        )  # fmt: skip

    def shard(self, name: str, check: bool = False) -> dict[str, Tensor]:
        """The tensors of a shard, mapped into memory: pages are read on access."""
        if check and name not in self._checked:
            refuse(self.place, self.manifest, damaged(self.place, self.manifest, [name]), "damaged")
            self._checked.add(name)
        if name not in self._open:
            try:
                with safe_open(self.place.local(name), framework="pt") as file:
                    self._open[name] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                raise UserError(f"In the store '{self.place}', {name} cannot be read: {error}.") from None
        return self._open[name]


def summary(store: Store) -> dict[str, Any]:
    """The output of `store info`."""
    header = store.header
    size = sum(entry["bytes"] for entry in store.manifest["files"].values())
    lengths = store.rows.length
    padded = len(lengths) * int(max(lengths, default=0)) * store.layers * header.features * 4
    found = {
        "store": str(store.place),
        "task": header.task["name"],
        "encoder": header.source["backbone"] + (f" at {header.source['mark']} epochs" if header.source["mark"] else ""),
        "windows": ", ".join(f"{part['windows']:,} {name}" for name, part in header.data.items()),
        "states": f"{', '.join(header.views)} of {store.layers} layers, {header.features} features, {header.dtype}",
        "bytes": size,
        "shards": sum("split" in entry for entry in store.manifest["files"].values()),
    }
    if header.tokens and padded:
        found["padded float32"] = f"{padded:,} bytes: {padded / size:.1f} times as much"
    return found


def open_store(url: str | Path) -> Store:
    """The finished store at a path or URL."""
    place = Place(url)
    manifest = read_manifest(place)
    return Store(place, manifest, tuple(manifest["header"]["data"]))
