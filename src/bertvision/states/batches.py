"""Batches of examples of similar length, in an order that depends on seed and epoch only."""

import numpy as np
import torch

TOKENS = 2**15 if torch.cuda.is_available() else 2**11  # in a batch without training; on two cores more does not help
MOST = 128
POOL = 50  # batches of examples that are sorted by length together; larger pads less and shuffles less


def bucketed(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """One epoch of batches: shuffled, sorted by length within pools, and the batches shuffled again.

    Every batch but one is full, so the number of steps is the same in each epoch.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    pools = [order[i : i + POOL * batch_size] for i in range(0, len(order), POOL * batch_size)]
    order = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def by_length(lengths: np.ndarray) -> list[np.ndarray]:
    """All examples once, longest first, so that memory peaks at the start.

    A batch has at most TOKENS tokens with padding: short texts come in large batches, long ones waste little.
    """
    order, batches, first = np.argsort(-lengths, kind="stable"), [], 0
    while first < len(order):
        count = min(MOST, max(1, TOKENS // int(lengths[order[first]])))
        batches.append(order[first : first + count])
        first += count
    return batches


def padded(lengths: np.ndarray, batches: list[np.ndarray]) -> int:
    """The positions that are computed, padding included: how long batches take."""
    return sum(len(batch) * int(lengths[batch].max()) for batch in batches)


def padding_share(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    """The share of computed positions that are padding."""
    return 1 - float(lengths.sum()) / padded(lengths, batches)
