"""Fixed stratified samples of examples. They depend on the data alone, so that runs can be compared."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from bertvision.errors import UserError
from bertvision.types import Examples

HELD_OUT_SHARE = 0.1
HELD_OUT_MOST = 1000
GROWTH = 2  # a sample may become this many times as large to cover every class
LARGEST_GROUP = 5  # rows that share texts stay together unless a group has more than one row in five


def sample(examples: Examples, count: int, purpose: str) -> np.ndarray:
    """Row numbers, ascending, of a stratified sample: each class (or tenth of the scores) keeps its share.

    Every class has a row if `count` allows. `purpose` makes different samples of the same data independent.
    """
    if count >= len(examples):
        return np.arange(len(examples))
    strata = _strata(examples)
    take = _shares(examples, strata, count, purpose)
    missing = np.flatnonzero((take == 0) & (np.bincount(strata) > 0))
    if np.count_nonzero(take) + len(missing) <= count:
        for stratum in missing:
            take[np.argmax(take)] -= 1
            take[stratum] = 1
    return np.sort(_first(_order(examples, purpose), strata, take))


def ranks(examples: Examples) -> np.ndarray:
    """A number between 0 and 1 per example. Those below x are a stratified share x, and part of every larger share."""
    order, strata, found = _order(examples, "ranks"), _strata(examples), np.empty(len(examples))
    found[order] = (_ranks_within(strata[order]) + 0.5) / np.bincount(strata)[strata[order]]
    return found


def split(examples: Examples, share: float, most: int, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """(rest, sample) as row numbers. The sample is `share` of the rows, but at most `most`.

    Rows that share a text stay on one side. Each class keeps a row in the rest. To cover every class that has more, the
    sample may become twice as large.
    """
    count, largest = (max(1, min(times * most, round(times * share * len(examples)))) for times in (1, GROWTH))
    strata, order = _strata(examples), _order(examples, purpose)
    take = _shares(examples, strata, count, purpose)
    if _of_classes(examples):
        spare = np.maximum(np.bincount(strata) - 1, 0)
        take = np.minimum(take, spare)
        left_out = [stratum for stratum in _salted_order(len(take), purpose) if spare[stratum] and not take[stratum]]
        take[left_out[: largest - take.sum()]] = 1
    chosen = np.zeros(0, dtype=np.int64)
    for groups in _groupings(examples, LARGEST_GROUP):
        chosen = _whole(order, groups, strata, take, largest if _of_classes(examples) else 0)
        if 2 * len(chosen) >= take.sum():
            break
    rest = np.setdiff1d(np.arange(len(examples)), chosen)
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
    """(N,) the fold of each row, from 0 to count - 1.

    Each class (or tenth of the scores) is spread as evenly as possible, and rows that share a text are in one fold. A
    class with fewer rows, or groups of rows, than folds is missing in some of them.
    """
    strata, groups = _strata(examples).tolist(), next(_groupings(examples, max(count, LARGEST_GROUP)))
    found, totals = np.full(len(examples), -1), [0] * count
    filled = [[0] * count for _ in range(max(strata, default=0) + 1)]  # rows by stratum and fold
    members, order = _members(groups), _order(examples, "folds")
    # Large groups first: single rows then even out what is left. The sort is stable.
    for row in sorted(order.tolist(), key=lambda row: -len(members.get(int(groups[row]), ()))):
        if found[row] >= 0:
            continue
        rows = members.get(int(groups[row]), [row])
        of_class = [filled[strata[one]] for one in rows]
        fold = min(range(count), key=lambda one: (sum(counts[one] for counts in of_class), totals[one]))
        found[rows] = fold
        totals[fold] += len(rows)
        for counts in of_class:
            counts[fold] += 1
    return found


def _groupings(examples: Examples, parts: int) -> Iterator[np.ndarray]:
    """Ways to group rows that share texts, (N,) group numbers each, the strictest first.

    A grouping with more than one row in `parts` in one group is skipped: if nearly every pair asks the same question,
    what the pairs share says nothing about them. The last one keeps every row apart.
    """
    first, second, texts = _numbered(examples)
    ways = [first]
    if second is not None:
        both = np.unique(first * texts + second, return_inverse=True)[1]
        ways = [_connected(first, second, texts), first, second, both]
    for groups in ways:
        if np.bincount(groups).max() <= max(1, len(examples) / parts):
            yield groups
    yield np.arange(len(examples))


def _numbered(examples: Examples) -> tuple[np.ndarray, np.ndarray | None, int]:
    """(N,) numbers of the first and second texts, and how many there are. Equal texts have equal numbers; empty ones,
    which say nothing, have one each."""
    texts = [*examples.texts, *(examples.second_texts or ())]
    hashes = np.fromiter(map(hash, texts), dtype=np.int64, count=len(texts))
    different, numbers = np.unique(hashes, return_inverse=True)
    empty = np.fromiter((not text or text.isspace() for text in texts), dtype=bool, count=len(texts))
    numbers[empty] = len(different) + np.arange(np.count_nonzero(empty))
    count = len(examples)
    return numbers[:count], numbers[count:] if examples.second_texts is not None else None, len(different) + sum(empty)


def _connected(first: np.ndarray, second: np.ndarray, texts: int) -> np.ndarray:
    """(N,) one number for all pairs that are connected by common texts (union-find)."""
    parent = list(range(texts))

    def root(text: int) -> int:
        while parent[text] != text:
            parent[text] = text = parent[parent[text]]
        return text

    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        parent[root(one)] = root(other)
    return np.array([root(text) for text in first.tolist()], dtype=np.int64)


def _whole(order: np.ndarray, groups: np.ndarray, strata: np.ndarray, take: np.ndarray, most: int) -> np.ndarray:
    """Rows, ascending, of whole groups: at most `take` of each stratum; a group that does not fit is skipped.

    If a stratum then has none, a larger group is taken, as long as no stratum is used up and there are at most `most`.
    """
    members = _members(groups)
    if not members:
        return np.sort(_first(order, strata, take))
    chosen, later, seen = list[int](), list[tuple[list[int], Counter[int]]](), set[int]()
    left, used, sizes = Counter(dict(enumerate(take.tolist()))), Counter[int](), np.bincount(strata).tolist()
    wanted, stratum_of = int(take.sum()), strata.tolist()

    def add(rows: list[int], counts: Counter[int]) -> None:
        chosen.extend(rows)
        used.update(counts)
        left.subtract(counts)

    for row, group in zip(order.tolist(), groups[order].tolist(), strict=True):
        if len(chosen) == wanted:
            break
        if group in seen:
            continue
        rows = members.get(group, [row])
        counts = Counter(stratum_of[one] for one in rows)
        if all(left[stratum] >= count for stratum, count in counts.items()):
            add(rows, counts)
        elif len(rows) > 1:
            later.append((rows, counts))
        if len(rows) > 1:
            seen.add(group)
    for rows, counts in later:
        lacking = any(left[stratum] > 0 and not used[stratum] for stratum in counts)
        kept = all(used[stratum] + count < sizes[stratum] for stratum, count in counts.items())
        if lacking and kept and len(chosen) + len(rows) <= most:
            add(rows, counts)
    return np.sort(np.array(chosen, dtype=np.int64))


def _members(groups: np.ndarray) -> dict[int, list[int]]:
    """The rows of each group that has several."""
    several = np.flatnonzero(np.bincount(groups)[groups] > 1)
    found: dict[int, list[int]] = defaultdict(list)
    for row, group in zip(several.tolist(), groups[several].tolist(), strict=True):
        found[group].append(row)
    return found


def _first(order: np.ndarray, strata: np.ndarray, take: np.ndarray) -> np.ndarray:
    """The first rows of each stratum, `take` of them."""
    return order[_ranks_within(strata[order]) < take[strata[order]]]


def _ranks_within(strata: np.ndarray) -> np.ndarray:
    """(N,) how many of the same stratum come before."""
    order, sizes = np.argsort(strata, kind="stable"), np.bincount(strata)
    found = np.empty(len(strata), dtype=np.int64)
    found[order] = np.arange(len(strata)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return found


def _shares(examples: Examples, strata: np.ndarray, count: int, purpose: str) -> np.ndarray:
    """How many rows each stratum gives to a sample of `count`: its share, rounded so that the sum is right.

    The largest remainders get the places left by rounding down. Ties between classes are broken by a salted hash, so
    that it is not always the alphabetically first ones that are sampled.
    """
    shares = np.bincount(strata) * count / len(examples)
    take = np.floor(shares).astype(int)
    ties = np.arange(len(take))
    if _of_classes(examples):
        ties[_salted_order(len(take), purpose)] = np.arange(len(take))
    take[np.lexsort((ties, take - shares))[: count - take.sum()]] += 1
    return take


def _salted_order(strata: int, purpose: str) -> list[int]:
    return sorted(range(strata), key=lambda stratum: _salted(purpose, str(stratum).encode()))


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
    salted = bytearray()
    for key in examples.digests():
        salted += _salted(purpose, key)[:16]
    # As two big-endian numbers per row: sorted like the bytes, in a fraction of the memory of a list.
    return np.lexsort(np.frombuffer(salted, dtype=">u8").reshape(-1, 2).T[::-1])


def _salted(purpose: str, key: bytes) -> bytes:
    return hashlib.sha256(purpose.encode() + key).digest()


def _of_classes(examples: Examples) -> bool:
    return examples.targets is not None and examples.targets.dtype.kind == "i"


def _strata(examples: Examples) -> np.ndarray:
    if examples.targets is None:
        return np.zeros(len(examples), dtype=int)
    if examples.targets.dtype.kind == "i":
        return examples.targets
    return np.argsort(np.argsort(examples.targets, kind="stable"), kind="stable") * 10 // len(examples)
