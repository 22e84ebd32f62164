"""Write a store shard by shard: each is whole or not there, so that the same command can always go on."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.errors import UserError, disk_errors
from bertvision.stores.codec import PLAIN, Codec, codec, restored
from bertvision.stores.format import MANIFEST, PLAN, Header, Shard, check_same, damaged, has_size
from bertvision.stores.place import Place, digest

CONSTANTS = "constants.safetensors"


class Writer:
    """One store in the making, or the part i of n of one: parts need nothing of each other."""

    def __init__(
        self,
        place: Place,
        header: Header,
        shards: list[Shard],
        command: str,
        where: dict[str, Any],
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.place, self.header, self.shards, self.command, self.where = place, header, shards, command, where
        self.part = part
        self.mine = shards[part[0] :: part[1]]
        self.files: list[str] = []  # that are not shards

    @contextmanager
    def writing(self, repair: bool) -> Iterator[None]:
        """Inside, this process alone writes this part, and what is damaged has been removed."""
        part, of = self.part
        with disk_errors(f"then go on (what is written is kept): {self.command}"), ExitStack() as held:
            # Parts may run side by side; the whole is written alone.
            held.enter_context(self._lock("", fcntl.LOCK_EX if of == 1 else fcntl.LOCK_SH))
            held.enter_context(self._lock(f"-{part}-{of}", fcntl.LOCK_EX))
            self._begin()
            self._discard(repair)
            yield

    def _begin(self) -> None:
        """Say what is being written, or see that it is what is there already."""
        header = self.header.as_dict()
        for name in (MANIFEST, PLAN):
            if self.place.exists(name):
                check_same(self.place, self.place.read_json(name)["header"], header)
                return
        if any(not name.startswith(".") for name in self.place.names()):
            raise UserError(f"'{self.place}' is not empty and not a store. Choose another --out.")
        shards = [shard.name for shard in self.shards]
        self.place.write_json(PLAN, {"header": header, "shards": shards, "command": self.command})

    def _discard(self, repair: bool) -> None:
        """Files that are not what the manifest says; without `repair` only those whose size gives them away."""
        own = {shard.name for shard in self.mine}
        if self.place.exists(MANIFEST):
            manifest = self.place.read_json(MANIFEST)
            shards = {shard.name for shard in self.shards}
            ours = {name: entry for name, entry in manifest["files"].items() if name in own or name not in shards}
            bad = set(damaged(self.place, manifest, list(ours))) if repair else set()
            bad |= {name for name, entry in ours.items() if not has_size(self.place, name, entry["bytes"])}
            for name in bad:
                self.place.remove(name)
                self.place.remove(f"{name}.sha256")
        for left in Path(self.place.root).glob(".*.tmp") if self.place.is_local else ():
            if any(left.name.startswith(f".{name}.") for name in own):
                left.unlink()  # of a writer that was ended

    def codec(self, sample: Callable[[], Tensor]) -> Codec:
        """The constants that are there, or new ones. Of parts that begin together one finds them, the others wait."""
        if self.header.dtype in PLAIN:
            return restored(self.header.dtype, {})
        self.files.append(CONSTANTS)
        with self._lock("-constants", fcntl.LOCK_EX, wait=True):
            if not self.place.exists(CONSTANTS):
                made = codec(self.header.dtype, sample())
                constants = {name: value.contiguous() for name, value in made.constants.items()}
                self.place.write(CONSTANTS, lambda path: save_file(constants, path))
        return restored(self.header.dtype, load_file(self.place.local(CONSTANTS)))

    def table(self, name: str, columns: dict[str, Any]) -> None:
        self.file(name, lambda path: pyarrow.parquet.write_table(pyarrow.table(columns), path))

    def tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.file(name, lambda path: save_file(tensors, path))

    def file(self, name: str, fill: Callable[[Path], object]) -> None:
        """A file that belongs to all parts, and is the same whoever writes it."""
        self.files.append(name)
        if not self.place.exists(name):
            self.place.write(name, fill)

    def missing(self) -> list[Shard]:
        """The shards of this part that are still to be written; the disk must have room for them."""
        found = [shard for shard in self.mine if not self.place.exists(shard.name)]
        if self.place.is_local:
            needed, free = sum(shard.bytes for shard in found), shutil.disk_usage(self.place.root).free
            if needed > free:
                raise UserError(
                    f"'{self.place}': {needed / 1e9:.1f} GB are still to be written, the disk has {free / 1e9:.1f} GB."
                    " A smaller --dtype, fewer --layers, pooled --views or a --limit need less."
                )
        return found

    def write(self, shard: Shard, tensors: dict[str, Tensor]) -> None:
        made = self.place.write(shard.name, lambda path: save_file(tensors, path))
        self.place.write_json(f"{shard.name}.sha256", made)

    def finish(self) -> bool:
        """Write the manifest if no shard is missing; the last part to end does."""
        with self._lock("-finish", fcntl.LOCK_EX, wait=True):
            there = set(self.place.names())
            if any(shard.name not in there for shard in self.shards):
                return False
            kept = self.place.read_json(MANIFEST)["files"] if MANIFEST in there else {}
            entries = {}
            for shard in self.shards:
                entries[shard.name] = {
                    "bytes": self.place.size(shard.name), "windows": len(shard.windows), "split": shard.split,
                    "sha256": self._sum(shard.name, there, kept),
                }  # fmt: skip
            for name in self.files:
                entries[name] = {"bytes": self.place.size(name), "sha256": digest(self.place.local(name))}
            manifest = {"header": self.header.as_dict(), "command": self.command, "where": self.where, "files": entries}
            self.place.write_json(MANIFEST, manifest)
            for name in there:
                if name == PLAN or name.endswith(".sha256") or (name.startswith(".") and name.endswith(".tmp")):
                    self.place.remove(name)
            return True

    def _sum(self, name: str, there: set[str], kept: dict[str, Any]) -> Any:
        """Of the shard as it was written just now, or before; its writer may have been ended before it said so."""
        if f"{name}.sha256" in there:
            return self.place.read_json(f"{name}.sha256")
        return kept[name]["sha256"] if name in kept else digest(self.place.local(name))

    @contextmanager
    def _lock(self, what: str, how: int, wait: bool = False) -> Iterator[None]:
        """A lock on this machine, which goes with the process however that ends. URLs have none."""
        if not self.place.is_local:
            yield
            return
        label = hashlib.sha256(os.path.realpath(self.place.root).encode()).hexdigest()[:24]
        with open(Path(tempfile.gettempdir()) / f"bertvision-{os.getuid()}-{label}{what}.lock", "w") as file:
            try:
                fcntl.flock(file, how if wait else how | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"'{self.place}' is being written by another process.") from None
            yield


def finite(states: Tensor, ids: Callable[[], str]) -> None:
    if not torch.isfinite(states).all():
        raise UserError(f"The encoder gives states that are not finite, e.g. for {ids()}; such a store is of no use.")
