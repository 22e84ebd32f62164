"""Seconds, bytes and the state of the machine. No torch here: the process that starts the jobs must stay small, because
a child's peak memory begins with that of its parent."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks.rivals import Job

    from bertvision.types import Examples

BEGAN = "RIVALS_BEGAN"  # the variable in which a job finds when it was started
ASKED = 30  # examples asked one by one for the latency
SIDE, ROUNDS = 1536, 12  # of the calibration: about two seconds here
ODD = 0.15  # of the usual speed: further from it, before or after a job, its seconds cannot be held against others


class Clock:
    """Seconds since the process was started, less those spent on what nobody would wait for (scoring, dev answers)."""

    def __init__(self, began: float | None = None) -> None:
        self.began = float(os.environ.get(BEGAN, time.time())) if began is None else began
        self.left_out = 0.0

    def now(self) -> float:
        return time.time() - self.began - self.left_out

    def leave_out(self, seconds: float) -> None:
        self.left_out += seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        started = time.time()
        try:
            yield
        finally:
            self.left_out += time.time() - started


def asked(job: "Job", predict: Callable[["Examples"], object]) -> tuple[float, float]:
    """(seconds from the start of the process until the first dev example is answered, median seconds for one more)."""
    predict(job.dev.take([0]))
    ready, spent = job.clock.now(), []
    with job.clock.paused():
        for i in range(1, ASKED + 1):
            one = job.dev.take([i % len(job.dev)])
            started = time.perf_counter()
            predict(one)
            spent.append(time.perf_counter() - started)
    return ready, statistics.median(spent)


def size_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def calibrate(threads: int) -> float:
    """Billions of operations a second in a fixed matrix product (median): lower where the machine is not ours alone."""
    from threadpoolctl import threadpool_limits

    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    spent = []
    with threadpool_limits(threads):
        for _ in range(ROUNDS):
            started = time.perf_counter()
            matrix @ matrix
            spent.append(time.perf_counter() - started)
    return 2 * SIDE**3 / statistics.median(spent[1:]) / 1e9
