"""Read a store: batches of hidden states, ready while the last one is still being used."""

import math
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
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
from bertvision.stores.format import Header, damaged, read_manifest, refuse
from bertvision.stores.place import Place

POOL = 50  # batches' worth of windows among which they are shuffled and sorted by length
AHEAD = 2  # batches that are made ready


@dataclass(frozen=True)
class StoredBatch:
    """Hidden states of some windows, padded with zeros."""

    hidden: Tensor  # (B, L, T, D) float32; views stand along T
    pooled: Tensor | None  # (B, D), where the encoder has a trained pooler
    mask: Tensor  # (B, T)
    segments: Tensor | None  # (B, T), of tokens
    logits: Tensor | None  # the encoder's own, (B, C) or for spans (B, T, 2); not of training examples
    targets: Tensor  # (B,), or for spans (B, 2)
    ids: list[str]
    rows: np.ndarray  # where these windows stand in the store


@dataclass(frozen=True)
class Rows:
    """What is known of the windows of some splits, in the order they are stored."""

    split: np.ndarray
    window: np.ndarray
    example: np.ndarray
    id: pyarrow.Array  # far smaller than as a list
    length: np.ndarray
    targets: np.ndarray
    rank: np.ndarray | None  # of training windows: which of them a share of the data has
    shard: np.ndarray  # names
    first: np.ndarray  # where its tokens (or views) begin in the shard
    place: np.ndarray  # which window of the shard it is


class Rooms:
    """Memory for batches, used again once nobody holds the batch in it: fresh memory costs more than decoding.

    A tensor made from an array holds on to it for as long as there are views of the tensor; so the memory is free when
    the array that was handed out is gone.
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
        return torch.empty(shape)  # somebody collects batches


class Store:
    """A finished store, or some splits of one; `len` is the number of windows."""

    def __init__(self, place: Place, manifest: dict[str, Any], splits: tuple[str, ...]) -> None:
        self.place, self.manifest, self.splits = place, manifest, splits
        self.header = Header(**manifest["header"])
        self.layers, self.features = len(self.header.layers), self.header.features
        self._open: dict[str, Any] = {}
        self._checked: set[str] = set()

    def only(self, *splits: str) -> "Store":
        lacking = [split for split in splits if split not in self.header.data]
        if lacking:
            raise UserError(f"The store '{self.place}' has no {lacking[0]}: it has {', '.join(self.header.data)}.")
        return Store(self.place, self.manifest, splits)

    def __len__(self) -> int:
        return sum(self.header.data[split]["windows"] for split in self.splits)

    @cached_property
    def codec(self) -> Codec:
        name = "constants.safetensors"
        constants = load_file(self.place.local(name)) if name in self.manifest["files"] else {}
        return restored(self.header.dtype, constants)

    @cached_property
    def rows(self) -> Rows:
        tables = [pyarrow.parquet.read_table(self.place.local(f"rows-{split}.parquet")) for split in self.splits]
        table = pyarrow.concat_tables(tables, promote_options="default")
        column = {name: table[name].to_numpy() for name in table.column_names if name not in ("id", "shard")}
        shards = table["shard"].combine_chunks().dictionary_encode()  # few names, which all rows share
        column["shard"] = np.array(shards.dictionary.to_pylist(), dtype=object)[shards.indices.to_numpy()]
        targets = np.stack([column["start"], column["end"]], 1) if "start" in column else column["target"]
        split = np.repeat(list(self.splits), [len(part) for part in tables])
        taken = self.header.rows_of(column["length"])
        fresh = np.r_[True, column["shard"][1:] != column["shard"][:-1]] if len(taken) else np.zeros(0, bool)
        begins, groups = np.flatnonzero(fresh), np.cumsum(fresh) - 1
        before = np.cumsum(taken) - taken
        return Rows(
            split, column["window"], column["example"], table["id"].combine_chunks(), column["length"], targets,
            column.get("rank"), column["shard"], before - before[begins][groups],
            np.arange(len(taken)) - begins[groups],
        )  # fmt: skip

    def examples(self, split: str) -> pyarrow.Table:
        return pyarrow.parquet.read_table(self.place.local(f"examples-{split}.parquet"))

    def order(self, batch_size: int, seed: int | None) -> list[np.ndarray]:
        """The batches as rows: pools of shards, in each the windows shuffled and put with others of their length.

        Without a seed: as stored, which is random already, and always the same.
        """
        if not len(self):
            return []
        random = None if seed is None else np.random.default_rng([seed, len(self)])
        names, first = np.unique(self.rows.shard, return_index=True)
        shards = [np.flatnonzero(self.rows.shard == name) for name in names[np.argsort(first)]]
        if random is not None:
            shards = [shards[i] for i in random.permutation(len(shards))]
        batches: list[np.ndarray] = []
        pool: list[np.ndarray] = []
        for i, shard in enumerate(shards):
            pool.append(shard)
            if sum(map(len, pool)) >= POOL * batch_size or i == len(shards) - 1:
                batches += self._pooled(np.concatenate(pool), batch_size, random)
                pool = []
        return batches

    def _pooled(self, rows: np.ndarray, size: int, random: np.random.Generator | None) -> list[np.ndarray]:
        rows = rows if random is None else random.permutation(rows)
        rows = rows[np.argsort(self.header.rows_of(self.rows.length[rows]), kind="stable")]
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        return batches if random is None else [batches[i] for i in random.permutation(len(batches))]

    def batches(
        self, batch_size: int, seed: int | None = None, *, start: int = 0, check: bool = False
    ) -> Iterator[StoredBatch]:
        """Every window once; equal seeds give equal batches, and `start` goes on at that one. With `check` a shard's
        checksum is tested before it is used for the first time."""
        order = self.order(batch_size, seed)[start:]
        longest = (len(rows) * int(self.header.rows_of(self.rows.length[rows]).max()) for rows in order)
        rooms = Rooms(max(longest, default=0) * self.layers * self.features)
        ready: queue.Queue[StoredBatch | BaseException | None] = queue.Queue(AHEAD)
        stopped = threading.Event()

        def put(item: StoredBatch | BaseException | None) -> None:
            while not stopped.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.1)
                    break

        def work() -> None:
            try:
                for rows in order:
                    if stopped.is_set():
                        return
                    put(self.batch(rows, check, rooms))
                put(None)
            except BaseException as error:
                put(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join()

    def batch(self, rows: np.ndarray, check: bool = False, rooms: Rooms | None = None) -> StoredBatch:
        known, header = self.rows, self.header
        lengths = header.rows_of(known.length[rows])
        mask = torch.arange(int(lengths.max()))[None] < torch.from_numpy(lengths)[:, None]
        shape = (len(rows), self.layers, mask.shape[1], self.features)
        hidden = torch.empty(shape) if rooms is None else rooms.take(shape)
        beside: dict[str, Tensor] = {}  # what there is once per token, or once per window

        def put(name: str, at: Any, values: Tensor, like: torch.Size) -> None:
            if name not in beside:
                beside[name] = torch.zeros(*like, dtype=values.dtype)
            beside[name][at] = values

        for name in dict.fromkeys(known.shard[rows]):
            stored, here = self.shard(name, check), np.flatnonzero(known.shard[rows] == name)
            for i in here:
                length = int(lengths[i])
                part = slice(int(known.first[rows[i]]), int(known.first[rows[i]]) + length)
                coded = {key: values[part] for key, values in stored.items() if key in ("states", "scales")}
                self.codec.decode(coded, hidden[i, :, :length])
                hidden[i, :, length:] = 0
                for key in ("segments", "logits") if header.span else ("segments",):
                    if key in stored:
                        put(key, (i, slice(length)), stored[key][part], mask.shape + stored[key].shape[1:])
            for key in ("pooled",) if header.span else ("pooled", "logits"):
                if key in stored:
                    values = stored[key][torch.from_numpy(known.place[rows[here]])]
                    put(key, torch.from_numpy(here), values, torch.Size([len(rows), *values.shape[1:]]))
        ids = known.id.take(pyarrow.array(rows)).to_pylist()
        return StoredBatch(
            hidden, beside.get("pooled"), mask, beside.get("segments"), beside.get("logits"),
            torch.from_numpy(known.targets[rows]), ids, rows,
        )  # fmt: skip

    def shard(self, name: str, check: bool = False) -> dict[str, Tensor]:
        """Its tensors, mapped into memory: pages are read when they are touched."""
        if check and name not in self._checked:
            refuse(self.place, self.manifest, damaged(self.place, self.manifest, [name]), "damaged")
            self._checked.add(name)
        if name not in self._open:
            self._open[name] = _mapped(self.place.local(name), self.place)
        found: dict[str, Tensor] = self._open[name]
        return found


def _mapped(path: Path, place: Place) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"In the store '{place}', {path.name} cannot be read: {error}.") from None


def summary(store: Store) -> dict[str, Any]:
    """What `store info` says."""
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
