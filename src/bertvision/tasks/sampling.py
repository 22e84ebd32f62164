"""Fixed stratified samples of examples. They depend on the data alone, so that runs can be compared."""

import hashlib
from collections import defaultdict

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
    order, strata = _order(examples, purpose), _strata(examples)
    shares = np.bincount(strata) * count / len(examples)
    take = np.floor(shares).astype(int)
    # The largest remainders get the places left by rounding down; ties go to the lower stratum.
    take[np.argsort(take - shares, kind="stable")[: count - take.sum()]] += 1
    chosen = [order[strata[order] == stratum][:n] for stratum, n in enumerate(take)]
    return np.sort(np.concatenate(chosen))


def ranks(examples: Examples) -> np.ndarray:
    """A number between 0 and 1 per example. Those below x are a stratified share x, and part of every larger share."""
    order, strata, found = _order(examples, "ranks"), _strata(examples), np.empty(len(examples))
    for stratum in np.unique(strata):
        rows = order[strata[order] == stratum]
        found[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    return found


def split(examples: Examples, share: float, most: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """(rest, sample) as row numbers. The sample is `share` of the rows, but at most `most`."""
    chosen = sample(examples, max(1, min(most, round(share * len(examples)))), purpose)
    rest = np.setdiff1d(np.arange(len(examples)), chosen)
    if examples.targets is not None and examples.targets.dtype.kind == "i":
        # A class without training examples could not be learned: its examples go back.
        lost = np.setdiff1d(examples.targets[chosen], examples.targets[rest])
        back = np.isin(examples.targets[chosen], lost)
        rest, chosen = np.sort(np.concatenate([rest, chosen[back]])), chosen[~back]
    if not len(chosen):
        raise UserError(
            f"Each of the {len(rest)} examples is of another class, so none can be held out. Raise --limit, or check"
            " --label."
        )
    return rest, chosen


def hold_out(examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """(train, held-out) rows. Every choice is made on the held-out rows, which are never trained on.

    Of questions, whole articles are held out, or whole contexts if there are few articles: a context seen in training
    gives away half the answer.
    """
    if len(examples) < 10:
        raise UserError(f"{len(examples)} training examples are too few to hold some out: at least 10 are needed.")
    if examples.questions is not None:
        assert examples.second_texts is not None
        wanted = max(1, min(4 * HELD_OUT_MOST, round(HELD_OUT_SHARE * len(examples))))
        for names in (examples.questions.articles, examples.second_texts):
            aside = _whole_groups(names, wanted)
            if len(aside) >= wanted / 2:
                return np.setdiff1d(np.arange(len(examples)), aside), _balanced(examples, aside)
    return split(examples, HELD_OUT_SHARE, HELD_OUT_MOST, "held-out")


def folds(examples: Examples, count: int) -> np.ndarray:
    """(N,) the fold of each row."""
    order, strata, found = _order(examples, "folds"), _strata(examples), np.empty(len(examples), dtype=np.int64)
    found[order[np.argsort(strata[order], kind="stable")]] = np.arange(len(examples)) % count
    return found


def _whole_groups(names: list[str], wanted: int) -> np.ndarray:
    """Rows of groups with the same name: at most `wanted`. A group that does not fit any more is skipped."""
    groups: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        groups[name].append(row)
    aside: list[int] = []
    for name in sorted(groups, key=lambda name: _salted("held-out", name.encode(errors="surrogatepass"))):
        if len(aside) + len(groups[name]) <= wanted:
            aside += groups[name]
    return np.sort(np.array(aside, dtype=np.int64))


def _balanced(examples: Examples, rows: np.ndarray) -> np.ndarray:
    """At most HELD_OUT_MOST of the rows, with the class shares of all examples.

    Articles are mostly answerable or mostly not, but null thresholds are tuned on these rows.
    """
    assert examples.targets is not None
    if len(rows) <= HELD_OUT_MOST:
        return rows
    counts = np.bincount(examples.targets) * HELD_OUT_MOST // len(examples)
    return np.sort(np.concatenate([rows[examples.targets[rows] == kind][:n] for kind, n in enumerate(counts)]))


def _order(examples: Examples, purpose: str) -> np.ndarray:
    salted = [_salted(purpose, key) for key in examples.digests()]
    return np.array(sorted(range(len(examples)), key=salted.__getitem__))


def _salted(purpose: str, key: bytes) -> bytes:
    return hashlib.sha256(purpose.encode() + key).digest()


def _strata(examples: Examples) -> np.ndarray:
    if examples.targets is None:
        return np.zeros(len(examples), dtype=int)
    if examples.targets.dtype.kind == "i":
        return examples.targets
    return np.argsort(np.argsort(examples.targets, kind="stable"), kind="stable") * 10 // len(examples)
