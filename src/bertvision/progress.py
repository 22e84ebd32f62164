"""What is happening, on stderr: a bar for each long piece of work and a line for what is worth knowing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm


class Progress:
    """`quiet` says nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, line: str) -> None:
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator["Bar"]:
        # Without a terminal a bar would fill a log file: one line every half minute is enough there.
        slow = {} if sys.stderr.isatty() else {"mininterval": 30.0, "maxinterval": 60.0}
        with tqdm(
            total=total, initial=done, desc=label, disable=self.quiet, file=sys.stderr, leave=False, unit="", **slow
        ) as inner:
            yield Bar(inner)


class Bar:
    def __init__(self, inner: "tqdm[None]") -> None:
        self.tick: Callable[[int], object] = inner.update
        self.note: Callable[[str], None] = lambda text: inner.set_postfix_str(text, refresh=False)
