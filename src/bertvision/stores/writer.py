"""Write a store shard by shard: each is whole or not there, so that the same command can always go on."""

import errno
import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.errors import UserError
from bertvision.stores.codec import PLAIN, Codec, codec, restored
from bertvision.stores.format import MANIFEST, PLAN, Header, Shard, check_same, damaged
from bertvision.stores.place import Place, digest

CONSTANTS = "constants.safetensors"


class Writer:
    """One store in the making, or the part i of n of one: parts need nothing of each other."""

    def __init__(self, place: Place, header: Header, shards: list[Shard], command: str, where: dict[str, Any]) -> None:
        self.place, self.header, self.shards, self.command, self.where = place, header, shards, command, where
        self.files: list[str] = []  # that are not shards

    def open(self, sample: Callable[[], Tensor]) -> Codec:
        """Say what is being written, or see that it is what is there already; find or read the codec's constants."""
        header = self.header.as_dict()
        plan = {"header": header, "shards": [shard.name for shard in self.shards], "command": self.command}
        for name in (MANIFEST, PLAN):
            if self.place.exists(name):
                check_same(self.place, self.place.read_json(name)["header"], header)
        if not self.place.exists(MANIFEST) and not self.place.exists(PLAN):
            if any(not name.startswith(".lock") for name in self.place.names()):
                raise UserError(f"'{self.place}' is not empty and not a store. Choose another --out.")
            self.place.write_json(PLAN, plan)
        if self.header.dtype in PLAIN and self.header.components is None:
            return restored(self.header.dtype, None, {})
        self.files.append(CONSTANTS)
        if self.place.exists(CONSTANTS):
            return restored(self.header.dtype, self.header.components, load_file(self.place.local(CONSTANTS)))
        made = codec(self.header.dtype, self.header.components, sample())
        constants = {name: value.contiguous() for name, value in made.constants.items()}
        self.place.write(CONSTANTS, lambda path: save_file(constants, path))
        return made

    def table(self, name: str, columns: dict[str, Any]) -> None:
        self.files.append(name)
        if not self.place.exists(name):
            table = pyarrow.table(columns)
            self.place.write(name, lambda path: pyarrow.parquet.write_table(table, path))

    def copy(self, name: str, file: Path) -> None:
        self.files.append(name)
        if not self.place.exists(name):
            self.place.write(name, lambda path: shutil.copyfile(file, path))

    def tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        self.files.append(name)
        if not self.place.exists(name):
            self.place.write(name, lambda path: save_file(tensors, path))

    def missing(self, part: int, of: int, repair: bool) -> list[Shard]:
        """The shards of this part that are still to be written; with `repair` also those that are damaged."""
        bad: set[str] = set()
        if self.place.exists(MANIFEST):
            manifest = self.place.read_json(MANIFEST)
            sizes = {name: entry["bytes"] for name, entry in manifest["files"].items()}
            bad = {name for name in sizes if self.place.exists(name) and self.place.size(name) != sizes[name]}
            bad |= set(damaged(self.place, manifest)) if repair else set()
            for name in bad:
                self.place.remove(name)
        return [s for s in self.shards[part::of] if not self.place.exists(s.name)]

    def check_room(self, shards: list[Shard]) -> None:
        if self.place.is_local:
            needed, free = sum(shard.bytes for shard in shards), shutil.disk_usage(self.place.root).free
            if needed > free:
                raise UserError(
                    f"'{self.place}': {needed / 1e9:.1f} GB are still to be written, the disk has {free / 1e9:.1f} GB."
                    " A smaller --dtype, fewer --layers, pooled --views or a --limit need less."
                )

    def write(self, shard: Shard, tensors: dict[str, Tensor]) -> None:
        with self._full_disk():
            self.place.write(shard.name, lambda path: save_file(tensors, path))
            self._note(shard)

    def _note(self, shard: Shard) -> None:
        self.place.write_json(f"{shard.name}.sha256", digest(self.place.local(shard.name)))

    def finish(self) -> bool:
        """Write the manifest if no shard is missing; the last part to end does."""
        if any(not self.place.exists(shard.name) for shard in self.shards):
            return False
        entries = {}
        for shard in self.shards:
            if not self.place.exists(f"{shard.name}.sha256"):
                self._note(shard)  # the last writer was ended between the two
            entries[shard.name] = {
                "bytes": self.place.size(shard.name), "windows": len(shard.windows), "split": shard.split,
                "sha256": self.place.read_json(f"{shard.name}.sha256"),
            }  # fmt: skip
        for name in self.files:
            entries[name] = {"bytes": self.place.size(name), "sha256": digest(self.place.local(name))}
        manifest = {"header": self.header.as_dict(), "command": self.command, "where": self.where, "files": entries}
        with self._full_disk():
            self.place.write_json(MANIFEST, manifest)
        for name in self.place.names():
            if name == PLAN or name.endswith(".sha256") or (name.startswith(".") and name.endswith(".tmp")):
                self.place.remove(name)
        return True

    @contextmanager
    def alone(self, part: int, of: int) -> Iterator[None]:
        """Refuse a second writer of the same part. The lock goes with the process, however that ends."""
        if not self.place.is_local:
            yield
            return
        path = Path(self.place.path(f".lock-{part}-{of}"))
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"'{self.place}' is being written by another process.") from None
            for shard in self.shards[part::of]:
                for left in Path(self.place.root).glob(f".{shard.name}.*.tmp"):
                    left.unlink()  # of a writer that was ended
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError) as error:
            full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            if getattr(error, "errno", None) in full or any(f"os error {code})" in str(error) for code in full):
                raise UserError(
                    f"The disk is full ({error}). What is written is kept; make room, then go on: {self.command}"
                ) from None
            raise


def finite(states: Tensor, ids: Callable[[], str]) -> None:
    if not torch.isfinite(states).all():
        raise UserError(
            f"The encoder gives states that are not finite, e.g. for {ids()}. Nothing of that shard is kept."
        )
