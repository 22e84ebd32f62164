"""Progress on stderr: a bar for each long piece of work, and a line for what is worth knowing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


class Progress:
    """`quiet` prints nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._check: Callable[[], None] = _never

    def say(self, line: str) -> None:
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)

    @contextmanager
    def guarded(self, check: Callable[[], None]) -> Iterator[None]:
        """Inside, `check` is called at every tick of a bar; it may raise to stop long work."""
        before, self._check = self._check, check
        try:
            check()
            yield
        finally:
            self._check = before

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator["Bar"]:
        # Without a terminal a bar would fill a log file: one line every half minute is enough there.
        slow = {} if sys.stderr.isatty() else {"mininterval": 30.0, "maxinterval": 60.0}
        with tqdm(
            total=total, initial=done, desc=label, disable=self.quiet, file=sys.stderr, leave=False, unit="", **slow
        ) as inner:
            yield Bar(inner, self._check)


def _never() -> None:
    """Let work go on."""


class Bar:
    def __init__(self, inner: "tqdm[None]", check: Callable[[], None]) -> None:
        self.inner, self.check = inner, check

    def tick(self, steps: int) -> None:
        self.inner.update(steps)
        self.check()

    def note(self, text: str) -> None:
        self.inner.set_postfix_str(text, refresh=False)
