"""Write a store shard by shard. Each shard is written as a whole, so that the same command can always continue."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.errors import UserError, disk_errors
from bertvision.locks import lock
from bertvision.stores.codec import PLAIN, Codec, codec, restored
from bertvision.stores.format import CONSTANTS, MANIFEST, PLAN, Header, Shard, check_same, damaged
from bertvision.stores.place import Place, digest


@dataclass
class Writer:
    """Writes one store, or part i of n of one. Parts are independent of each other."""

    place: Place
    header: Header
    shards: list[Shard]  # of the whole store
    command: str
    where: dict[str, Any]
    part: tuple[int, int] = (0, 1)
    files: list[str] = field(default_factory=list)  # that are not shards

    @property
    def mine(self) -> list[Shard]:
        return self.shards[self.part[0] :: self.part[1]]

    @contextmanager
    def writing(self, repair: bool) -> Iterator[None]:
        """Inside, only this process writes this part. Damaged files have been removed."""
        part, of = self.part
        with (
            disk_errors(f"then go on (what is written is kept): {self.command}"),
            self._lock("", shared=of > 1),  # parts may be written at the same time
            self._lock(f"-{part}-{of}"),
        ):
            self._begin()
            self._discard(repair)
            yield

    def _begin(self) -> None:
        """Write the plan, or check that the existing store has the same header."""
        header = asdict(self.header)
        for name in (MANIFEST, PLAN):
            if self.place.exists(name):
                check_same(self.place, self.place.read_json(name)["header"], header)
                return
        if any(not name.startswith(".") for name in self.place.names()):
            raise UserError(f"'{self.place}' is not empty and not a store. Choose another --out.")
        shards = [shard.name for shard in self.shards]
        self.place.write_json(PLAN, {"header": header, "shards": shards, "command": self.command})

    def _discard(self, repair: bool) -> None:
        """Remove files that differ from the manifest: in size or, with `repair`, in content."""
        own = {shard.name for shard in self.mine}
        if self.place.exists(MANIFEST):
            manifest = self.place.read_json(MANIFEST)
            others = {shard.name for shard in self.shards} - own
            for name, entry in manifest["files"].items():
                if name in others:
                    continue
                if self.place.size(name) != entry["bytes"] or (repair and damaged(self.place, manifest, [name])):
                    self.place.remove(name)
                    self.place.remove(f"{name}.sha256")
        for left in Path(self.place.root).glob(".*.tmp") if self.place.is_local else ():
            if any(left.name.startswith(f".{name}.") for name in own):
                left.unlink()  # of a killed writer

    def codec(self, sample: Callable[[], Tensor]) -> Codec:
        """The codec with stored constants, or with new ones. One of several concurrent parts finds them."""
        if self.header.dtype in PLAIN:
            return restored(self.header.dtype, {})
        self.files.append(CONSTANTS)
        with self._lock("-constants", wait=True):
            if not self.place.exists(CONSTANTS):
                found = codec(self.header.dtype, sample()).constants
                constants = {name: value.contiguous() for name, value in found.items()}
                self.place.write(CONSTANTS, lambda path: save_file(constants, path))
        return restored(self.header.dtype, load_file(self.place.local(CONSTANTS)))

    def table(self, name: str, columns: dict[str, Any]) -> None:
        self.file(name, lambda path: pyarrow.parquet.write_table(pyarrow.table(columns), path))

    def tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.file(name, lambda path: save_file(tensors, path))

    def file(self, name: str, fill: Callable[[Path], object]) -> None:
        """A file that all parts share. It is the same whichever part writes it."""
        self.files.append(name)
        if not self.place.exists(name):
            self.place.write(name, fill)

    def missing(self) -> list[Shard]:
        """The shards of this part that are not written yet. The disk must have room for them."""
        found = [shard for shard in self.mine if not self.place.exists(shard.name)]
        if self.place.is_local:
            needed, free = sum(shard.bytes for shard in found), shutil.disk_usage(self.place.root).free
            if needed > free:
                raise UserError(
                    f"'{self.place}': {needed / 1e9:.1f} GB are still to be written, the disk has {free / 1e9:.1f} GB."
                    " To need less, use a smaller --dtype, fewer --layers, pooled --views or a --limit."
                )
        return found

    def write(self, shard: Shard, tensors: dict[str, Tensor]) -> None:
        checksum = self.place.write(shard.name, lambda path: save_file(tensors, path))
        self.place.write_json(f"{shard.name}.sha256", checksum)

    def finish(self) -> bool:
        """Write the manifest if no shard is missing: the last part does."""
        with self._lock("-finish", wait=True):
            there = set(self.place.names())
            if any(shard.name not in there for shard in self.shards):
                return False
            kept = self.place.read_json(MANIFEST)["files"] if MANIFEST in there else {}
            entries: dict[str, Any] = {}
            for shard in self.shards:
                name = shard.name
                if f"{name}.sha256" in there:
                    checksum = self.place.read_json(f"{name}.sha256")
                else:  # written earlier, or by a writer that was killed before it wrote the checksum
                    checksum = kept[name]["sha256"] if name in kept else digest(self.place.local(name))
                entry = {"bytes": self.place.size(name), "windows": len(shard.windows), "split": shard.split}
                entries[name] = entry | {"sha256": checksum}
            for name in self.files:
                entries[name] = {"bytes": self.place.size(name), "sha256": digest(self.place.local(name))}
            manifest = {"header": asdict(self.header), "command": self.command, "where": self.where, "files": entries}
            self.place.write_json(MANIFEST, manifest)
            for name in there:
                if name == PLAN or name.endswith(".sha256") or (name.startswith(".") and name.endswith(".tmp")):
                    self.place.remove(name)
            return True

    @contextmanager
    def _lock(self, what: str, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
        """A lock on this machine, released when the process ends. URLs are not locked."""
        if not self.place.is_local:
            yield
            return
        label = hashlib.sha256(os.path.realpath(self.place.root).encode()).hexdigest()[:24]
        file = Path(tempfile.gettempdir()) / f"bertvision-{os.getuid()}-{label}{what}.lock"
        with lock(file, self.place, shared=shared, wait=wait):
            yield


def finite(states: Tensor, ids: Callable[[], str]) -> None:
    if not torch.isfinite(states).all():
        raise UserError(f"The encoder gives states that are not finite, e.g. for {ids()}. They cannot be stored.")
