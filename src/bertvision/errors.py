"""The error that a user can fix: shown as a single message, never as a traceback."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What was asked, what was found, what to do; names the flag and quotes the value."""


class Interrupted(UserError):
    """Ctrl-C, at a point where everything done until then is kept (or nothing had been written)."""


@contextmanager
def disk_errors(advice: str) -> Iterator[None]:
    """Inside, a full disk is a `UserError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if getattr(error, "errno", None) in full or any(f"os error {code})" in str(error) for code in full):
            raise UserError(f"The disk is full ({error}). Make room, {advice}") from None
        raise
