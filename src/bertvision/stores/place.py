"""The location of a store: a local folder, or any URL that fsspec supports. Files are written as a whole."""

import hashlib
import json
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from bertvision.errors import UserError


class Place:
    """A folder for the files of one store."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        try:
            self.files, root = fsspec.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # an unknown protocol, or one that needs another package
            raise UserError(f"'{url}' cannot be reached: {error}.") from None
        self.is_local = isinstance(self.files, LocalFileSystem)
        self.root = str(Path(root)) if self.is_local else root.rstrip("/")
        self._fetched: set[str] = set()  # remote files with a copy in `_folder`, which is removed with this object
        if not self.is_local:
            self._folder = Path(tempfile.mkdtemp(prefix="bertvision-store-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def __str__(self) -> str:
        return self.url

    def path(self, name: str) -> str:
        # Names come from manifests and tables that others wrote: they must not lead out of the folder.
        if name in ("", ".", "..") or set(name) & set("/\\:\0"):
            raise UserError(f"The store '{self.url}' names a file '{name}', which is not in its folder.")
        return f"{self.root}/{name}"

    def exists(self, name: str = "") -> bool:
        return bool(self.files.exists(self.path(name) if name else self.root))

    def names(self) -> list[str]:
        if not self.exists():
            return []
        self.files.invalidate_cache()
        return sorted(Path(path).name for path in self.files.ls(self.root, detail=False))

    def size(self, name: str) -> int:
        """Bytes of a file, -1 if it is missing."""
        return int(self.files.size(self.path(name))) if self.exists(name) else -1

    def make(self) -> None:
        try:
            self.files.makedirs(self.root, exist_ok=True)
            if self.is_local and not os.access(self.root, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise UserError(f"'{self.url}' cannot be written: {error.strerror or error}.") from None

    def write(self, name: str, fill: Callable[[Path], object]) -> str:
        """Let `fill` write a temporary file, and rename it once it is on disk. Returns its digest."""
        aside = (Path(self.root) if self.is_local else self._folder) / f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            fill(aside)
            with aside.open("rb") as written:
                os.fsync(written.fileno())
            made = digest(aside)
            self._fetched.discard(name)
            if self.is_local:
                os.replace(aside, self.path(name))
            else:
                self.files.put_file(str(aside), self.path(f".{name}.tmp"))
                self.files.mv(self.path(f".{name}.tmp"), self.path(name))
            return made
        finally:
            aside.unlink(missing_ok=True)

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def read_json(self, name: str) -> Any:
        try:
            return json.loads(self.files.cat_file(self.path(name)))
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.path(name)}' cannot be read: {error}.") from None

    def remove(self, name: str) -> None:
        self._fetched.discard(name)
        with suppress(FileNotFoundError):
            self.files.rm_file(self.path(name))

    def local(self, name: str) -> Path:
        """The file on this machine: itself, or a copy that is downloaded once."""
        if self.is_local:
            return Path(self.path(name))
        if name not in self._fetched:
            self.files.get_file(self.path(name), str(self._folder / name))
            self._fetched.add(name)
        return self._folder / name


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
