"""How many threads compute: on a busy machine, threads that wait for each other are slower than one alone.

With other processes on every core, an eigendecomposition in two threads can take twenty times as long as in one.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

PROBE, ROUNDS = 0.1, 2  # seconds for each number of threads, and how often
FASTER = 0.9  # one thread must take at most this share of the time
BUSY, FREE = 0.85, 0.95  # share of the time that this thread is on a processor: others use it too, or nobody does
WINDOW = 1.0  # seconds over which that is measured
SOON, LATER = 3.0, 30.0  # seconds between two probes: more and more while nothing changes
_most = 1  # threads that the user allows, while `kept`


@contextmanager
def kept() -> Iterator[None]:
    """Inside, the number of threads may be changed; afterwards it is as before."""
    global _most
    before, _most = (torch.get_num_threads(), _most), torch.get_num_threads()
    try:
        with threadpool_limits(limits=None):  # which restores those of NumPy and others
            yield
    finally:
        torch.set_num_threads(before[0])
        _most = before[1]


def settle() -> bool:
    """Compute in all threads or in one, whichever is faster now. Returns whether it is one instead of several."""
    if _most == 1:
        return False
    both = [[_seconds(_most), _seconds(1)] for _ in range(ROUNDS)]
    several, one = (sum(times) for times in zip(*both, strict=True))
    alone = one < FASTER * several
    torch.set_num_threads(1 if alone else _most)
    threadpool_limits(limits=1 if alone else _most)  # of NumPy, SciPy and scikit-learn, which solve heads
    return alone


def _seconds(threads: int) -> float:
    """Of a small feed-forward layer."""
    torch.set_num_threads(threads)
    states, weights = torch.ones(512, 384), torch.ones(384, 1536)
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < PROBE:
        torch.nn.functional.gelu(states @ weights) @ weights.T
        count += 1
    return elapsed / count


class Threads:
    """Watches whether others use the processors, and settles again when that changes."""

    def __init__(
        self,
        settle: Callable[[], bool] = settle,
        now: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self.settle, self.now, self.processor = settle, now, processor
        self.alone, self.probed, self.pause = torch.get_num_threads() < _most, now(), 0.0
        self.at, self.used = now(), processor()

    def adapt(self) -> None:
        """To be called often: it does nothing most of the time."""
        now, used = self.now(), self.processor()
        if now - self.at < WINDOW:
            return
        share = (used - self.used) / (now - self.at)
        changed = share > FREE if self.alone else share < BUSY
        if now - self.probed >= (self.pause if changed else LATER if self.alone else float("inf")):
            before, self.alone = self.alone, self.settle()
            self.probed = self.now()
            self.pause = SOON if before != self.alone else min(LATER, max(SOON, 2 * self.pause))
        self.at, self.used = self.now(), self.processor()
