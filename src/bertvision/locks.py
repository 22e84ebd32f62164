"""One writer at a time: a lock file that is removed after use, and that does not bind once its process has ended."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

import psutil

from bertvision.errors import UserError

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

PATIENCE = 0.5  # seconds: a process may hold a lock just to see whether it is free, or to remove it
POLL = 0.02


@contextmanager
def lock(
    path: Path, what: object, advice: str = "Wait for it, or choose another --out.", *, shared: bool = False,
    wait: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Inside, no other process holds the lock file `path`; a `shared` lock is held by several. If it is taken, `wait`,
    or raise an error about `what` it protects."""
    given_up = time.monotonic() + PATIENCE
    while True:
        try:
            file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  (held open, which is what holds the lock)
        except OSError as error:
            raise UserError(f"'{what}' cannot be written: {error.strerror}.") from None
        free = _take(file, shared)
        if free and _same(file, path):  # the holder before may have removed it
            break
        holder = "" if shared else _read(file)
        file.close()
        if not free and not wait and time.monotonic() > given_up:
            by = f"another process{f' ({holder})' if holder else ''}"
            raise UserError(f"'{what}' is being written by {by}. {advice}")
        time.sleep(POLL)
    try:
        if not shared:
            with suppress(OSError):  # a full disk: who holds it is for messages only
                file.truncate(0)
                os.write(file.fileno(), f"pid {os.getpid()}, started {datetime.now():%Y-%m-%d %H:%M:%S}".encode())
        yield
    finally:
        # Removed while it is held, so that a process that opened it meanwhile notices. Of those who share it, the last
        # one removes it.
        if _same(file, path) and (not shared or _take(file, False)):
            path.unlink()
        file.close()


def refuse_if_locked(path: Path, what: object) -> None:
    """Raise what `lock` would."""
    if path.exists():
        with lock(path, what):
            pass


def _take(file: TextIO, shared: bool) -> bool:
    """Whether the lock was free and is now ours. It is released with the file."""
    if fcntl is not None:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            pass
    # Without help of the system: unless the process that is named in the file still runs.
    pid = _read(file).removeprefix("pid ").partition(",")[0]
    return not (pid.isdigit() and int(pid) != os.getpid() and psutil.pid_exists(int(pid)))


def _read(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def _same(file: TextIO, path: Path) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
