"""How many threads compute: on a busy machine, threads that wait for each other are slower than one alone.

With another process on each core, an eigendecomposition in two threads can take twenty times as long as in one.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PROBE = 0.1  # seconds, for each number of threads and round
ROUNDS = 2
FASTER = 0.9  # one thread must take at most this share of the time
_most = 1  # threads that the user allows, while `adapting`


@contextmanager
def adapting() -> Iterator[None]:
    """Inside, `settle` may change the number of threads; afterwards it is as before."""
    global _most
    before, _most = (torch.get_num_threads(), _most), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _most = before[1]


def settle() -> bool:
    """Compute in all threads or in one, whichever is faster now. Returns whether this gave up threads."""
    if _most == 1:
        return False
    counts = (_most, 1)
    took = [sum(times) for times in zip(*([_seconds(count) for count in counts] for _ in range(ROUNDS)), strict=True)]
    alone = took[1] < FASTER * took[0]
    torch.set_num_threads(1 if alone else _most)
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
