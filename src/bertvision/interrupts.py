"""Ctrl-C that waits for a safe point, so that saved files are complete. A second Ctrl-C does not wait.

A plain KeyboardInterrupt is not enough: libraries with bare `except` clauses can swallow it.
"""

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Inside the block, `asked` turns true on the first SIGINT or SIGTERM; `check` raises where stopping is safe."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
