"""Fixed samples of examples: stratified, and decided by the data alone, so that runs can be compared."""

import hashlib

import numpy as np

from bertvision.errors import UserError
from bertvision.types import Examples

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1000


def sample(examples: Examples, count: int, purpose: str) -> np.ndarray:
    """Row numbers, ascending, of a stratified sample: each class (or tenth of the scores) keeps its share.

    `purpose` makes different samples of the same data independent of each other.
    """
    if count >= len(examples):
        return np.arange(len(examples))
    order = _order(examples, purpose)
    strata = _strata(examples)
    shares = np.bincount(strata) * count / len(examples)
    take = np.floor(shares).astype(int)
    # Largest remainders get the places that rounding down left over; ties go to the lower stratum.
    for stratum in np.argsort(-(shares - take), kind="stable")[: count - take.sum()]:
        take[stratum] += 1
    chosen = [order[strata[order] == stratum][:n] for stratum, n in enumerate(take)]
    return np.sort(np.concatenate(chosen))


def ranks(examples: Examples) -> np.ndarray:
    """A number between 0 and 1 for every example: those below x are a stratified share x of all, and part of every
    larger share."""
    order, strata, found = _order(examples, "ranks"), _strata(examples), np.empty(len(examples))
    for stratum in np.unique(strata):
        rows = order[strata[order] == stratum]
        found[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return found


def split(examples: Examples, share: float, most: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """(rest, sample) as row numbers: `share` of the rows but at most `most`."""
    chosen = sample(examples, max(1, min(most, round(share * len(examples)))), purpose)
    rest = np.setdiff1d(np.arange(len(examples)), chosen)
    if examples.targets is not None and examples.targets.dtype.kind == "i":
        # A class with no example left to train on could not be learned at all: its examples go back.
        lost = np.setdiff1d(examples.targets[chosen], examples.targets[rest])
        back = np.isin(examples.targets[chosen], lost)
        rest, chosen = np.sort(np.concatenate([rest, chosen[back]])), chosen[~back]
    if not len(chosen):
        raise UserError(
            f"Each of the {len(rest)} examples is of another class, so none can be held out to choose on:"
            " raise --limit, or is --label the right column?"
        )
    return rest, chosen


def hold_out(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """(train, held-out) rows. Every choice is made on the held-out rows, which no training ever sees."""
    if len(examples) < 10:
        raise UserError(f"{len(examples)} training examples are too few to hold some out: at least 10 are needed.")
    if examples.questions is not None:
        return _hold_out_groups(examples)
    return split(examples, HELD_OUT_SHARE, HELD_OUT_MOST, "held-out")


def _hold_out_groups(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Whole articles, or whole contexts where there are few articles: a context seen in training is half the answer.

    An article is mostly answerable or mostly not. So of much data more articles are set aside than are used, and the
    questions used have the classes' shares of all data; null thresholds are tuned on them.
    """
    assert examples.questions is not None
    assert examples.second_texts is not None
    assert examples.targets is not None
    wanted = max(1, min(4 * HELD_OUT_MOST, round(HELD_OUT_SHARE * len(examples))))
    for names in (examples.questions.articles, examples.second_texts):
        groups: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            groups.setdefault(name, []).append(row)
        order = sorted(
            groups, key=lambda name: hashlib.sha256(b"held-out" + name.encode("utf-8", "surrogatepass")).digest()
        )
        aside: list[int] = []
        for name in order:
            # Whole groups while they fit; one that is too large for what is left is passed over.
            if len(aside) + len(groups[name]) <= wanted:
                aside += groups[name]
        if len(aside) >= wanted / 2:
            rest, chosen = np.setdiff1d(np.arange(len(examples)), aside), np.sort(np.array(aside))
            if len(chosen) > HELD_OUT_MOST:
                kinds = examples.targets[chosen]
                counts = np.bincount(examples.targets) * HELD_OUT_MOST // len(examples)
                chosen = np.sort(np.concatenate([chosen[kinds == kind][:count] for kind, count in enumerate(counts)]))
            return rest, chosen
    return split(examples, HELD_OUT_SHARE, HELD_OUT_MOST, "held-out")


def _order(examples: Examples, purpose: str) -> np.ndarray:
    salted = [hashlib.sha256(purpose.encode() + key).digest() for key in examples.digests()]
    return np.array(sorted(range(len(examples)), key=lambda row: (salted[row], row)))


def _strata(examples: Examples) -> np.ndarray:
    if examples.targets is None:
        return np.zeros(len(examples), dtype=int)
    if examples.targets.dtype.kind == "i":
        return examples.targets
    ranks = np.argsort(np.argsort(examples.targets, kind="stable"), kind="stable")
    return ranks * 10 // len(examples)
