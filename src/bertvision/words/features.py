"""Texts as sparse rows: TF-IDF of words and of characters; of a pair, what its texts share and what they do not.

The numbers are those of scikit-learn's `TfidfVectorizer` with `sublinear_tf`. Character n-grams lie within words, so
they are found once for every different word, which takes a fraction of the time.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import sparse

from bertvision.types import Examples

TOKEN = re.compile(r"\w+|[^\w\s]")
WORDS, CHARACTERS = "words", "characters"  # sorts of features of a text
# Of a pair: words of both texts, of one of them, and of which one.
SHARED, DIFFERENT, FIRST, SECOND = PAIRED = ("shared", "different", "first", "second")
OVERLAP = "overlap"  # of a pair: how much the texts have in common, in a few numbers
LENGTHS = range(2, 6)  # characters of an n-gram
MOST_FEATURES = 50_000  # of each sort
FREQUENT = 700  # rows: with as many, pairs of words count too
WEIGHT = 0.6  # of the numbers in `overlap`, beside rows of length 1

Found = dict[str, list[str]]  # sort -> features of one example
Vocabularies = dict[str, dict[str, int]]  # sort -> feature -> column


@dataclass(frozen=True)
class Features:
    """What turns texts into rows: vocabularies, and how rare each feature is."""

    limit: int  # characters of a text that are read
    vocabularies: Vocabularies
    idf: dict[str, np.ndarray]  # sort -> (F,)
    centre: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of the numbers in `overlap`; empty for texts
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def fit(cls, examples: Examples, limit: int) -> tuple["Features", sparse.csr_matrix]:
        """The features of these examples, and their rows."""
        counts, vocabularies = _counts(examples, limit, None)
        kept = {sort: _kept(found, vocabularies[sort], sort) for sort, found in counts.items()}
        for sort, columns in kept.items():
            counts[sort], names = counts[sort][:, columns], list(vocabularies[sort])
            vocabularies[sort] = {names[column]: place for place, column in enumerate(columns)}
        idf = {sort: _idf(found) for sort, found in counts.items()}
        made = cls(limit, vocabularies, idf)
        if examples.second_texts is not None:
            numbers = made._overlaps(examples)
            made = cls(limit, vocabularies, idf, numbers.mean(0), numbers.std(0) + 1e-6)
        return made, made._weighted(counts, examples)

    def rows(self, examples: Examples) -> sparse.csr_matrix:
        return self._weighted(_counts(examples, self.limit, self.vocabularies)[0], examples)

    def names(self) -> list[str]:
        """Of every column."""
        found = [name for vocabulary in self.vocabularies.values() for name in vocabulary]
        return found + [OVERLAP] * len(self.centre)

    def _weighted(self, counts: dict[str, sparse.csr_matrix], examples: Examples) -> sparse.csr_matrix:
        parts = [_tf_idf(counts.pop(sort), idf) for sort, idf in self.idf.items()]  # counts are not needed again
        if len(self.centre):
            numbers = np.clip((self._overlaps(examples) - self.centre) / self.spread, -5, 5)
            parts.append(sparse.csr_matrix(WEIGHT * numbers))
        return sparse.hstack(parts, format="csr")

    def _overlaps(self, examples: Examples) -> np.ndarray:
        """(N, numbers)"""
        assert examples.second_texts is not None
        rarity: Counter[str] = Counter()
        for sort in PAIRED:  # a word may be in several of them
            for word, column in self.vocabularies[sort].items():
                rarity[word] = max(rarity[word], self.idf[sort][column])
        unknown = max(rarity.values(), default=1.0)
        pairs = zip(examples.texts, examples.second_texts, strict=True)
        return np.array([_overlap(a[: self.limit], b[: self.limit], rarity, unknown) for a, b in pairs])


def tokens(text: str) -> list[str]:
    """Words and marks, in lower case."""
    return TOKEN.findall(text.lower())


def _of_text(text: str, _: str) -> Found:
    words = tokens(text)
    pairs = [f"{one} {other}" for one, other in pairwise(words)]
    return {WORDS: words + pairs, CHARACTERS: text.lower().split()}


def _of_pair(text: str, other: str) -> Found:
    first, second = set(tokens(text)), set(tokens(other))
    alone = sorted(first - second), sorted(second - first)
    return {SHARED: sorted(first & second), DIFFERENT: alone[0] + alone[1], FIRST: alone[0], SECOND: alone[1]}


def _counts(
    examples: Examples, limit: int, known: Vocabularies | None
) -> tuple[dict[str, sparse.csr_matrix], Vocabularies]:
    """sort -> (N, F) counts. Without known vocabularies, every feature gets a column."""
    paired = examples.second_texts is not None
    others: Sequence[str] = examples.second_texts if examples.second_texts is not None else [""] * len(examples)
    find: Callable[[str, str], Found] = _of_pair if paired else _of_text
    sorts = PAIRED if paired else (WORDS, CHARACTERS)
    vocabularies: Vocabularies = {sort: {} for sort in sorts} if known is None else dict(known)
    grown = [sort for sort in sorts if known is None or sort == CHARACTERS]
    written: dict[str, int] = {}  # words as they are written, of which character n-grams are taken
    found = (find(a[:limit], b[:limit]) for a, b in zip(examples.texts, others, strict=True))
    counts = _counted(found, {**vocabularies, CHARACTERS: written} if not paired else vocabularies, grown)
    if not paired:
        grams = ({CHARACTERS: _grams(word)} for word in written)
        within = _counted(grams, {CHARACTERS: vocabularies[CHARACTERS]}, sorts if known is None else ())
        counts[CHARACTERS] = counts[CHARACTERS] @ within[CHARACTERS]
    return counts, vocabularies


def _counted(found: Iterable[Found], vocabularies: Vocabularies, grown: Sequence[str]) -> dict[str, sparse.csr_matrix]:
    """How often each row has each feature. Vocabularies in `grown` take in new features; others leave them out."""
    columns = {sort: array("i") for sort in vocabularies}
    numbers = {sort: array("f") for sort in vocabularies}
    ends = {sort: array("q", [0]) for sort in vocabularies}
    for features in found:
        for sort, vocabulary in vocabularies.items():
            for feature, number in Counter(features[sort]).items():
                column = vocabulary.setdefault(feature, len(vocabulary)) if sort in grown else vocabulary.get(feature)
                if column is not None:
                    columns[sort].append(column)
                    numbers[sort].append(number)
            ends[sort].append(len(columns[sort]))
    return {
        sort: sparse.csr_matrix(
            (np.array(numbers[sort]), np.array(columns[sort]), np.array(ends[sort])),
            shape=(len(ends[sort]) - 1, len(vocabulary)),
        )
        for sort, vocabulary in vocabularies.items()
    }


def _grams(word: str) -> list[str]:
    """Character n-grams of a word with a space on either side, as scikit-learn's `char_wb` has them."""
    padded, found = f" {word} ", []
    for length in LENGTHS:
        found += [padded[i : i + length] for i in range(max(1, len(padded) - length + 1))]
        if length >= len(padded):
            break  # a short word counts once
    return found


def _kept(counts: sparse.csr_matrix, vocabulary: dict[str, int], sort: str) -> np.ndarray:
    """Columns of the most frequent features, in alphabetical order."""
    single = sort == WORDS and counts.shape[0] < FREQUENT
    common = np.array([i for i, name in enumerate(vocabulary) if not (single and " " in name)], dtype=np.int64)
    total, names = np.asarray(counts.sum(0)).ravel(), np.array(list(vocabulary), dtype=object)
    order = common[np.argsort(-total[common], kind="stable")][:MOST_FEATURES]
    return order[np.argsort(names[order], kind="stable")]


def _idf(counts: sparse.csr_matrix) -> np.ndarray:
    rows = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.log((1 + counts.shape[0]) / (1 + rows)) + 1


def _tf_idf(counts: sparse.csr_matrix, idf: np.ndarray) -> sparse.csr_matrix:
    """Rows of length 1, or 0 if nothing is known of a text."""
    counts.sort_indices()  # the order of a sum decides its last bit
    values = (1 + np.log(counts.data.astype(np.float64))) * idf[counts.indices]
    made = sparse.csr_matrix((values**2, counts.indices, counts.indptr), shape=counts.shape)
    lengths = np.sqrt(made @ np.ones(made.shape[1]))
    made.data = values / np.repeat(np.where(lengths > 0, lengths, 1), np.diff(made.indptr))
    return made


def _overlap(text: str, other: str, rarity: Counter[str], unknown: float) -> list[float]:
    """How much two texts have in common: words, rare words, pairs of words, characters, numbers; and their lengths."""
    first, second = tokens(text), tokens(other)
    a, b = set(first), set(second)

    def weight(words: set[str]) -> float:
        return sum(rarity[word] or unknown for word in words)

    pairs = [set(pairwise(words)) for words in (first, second)]
    grams = [{gram for word in words for gram in _grams(word)} for words in (a, b)]
    numbers = [{word for word in words if word[0].isdigit()} for words in (a, b)]
    sizes, rare = (len(first), len(second)), (weight(a - b), weight(b - a))
    shares = [
        *_shares(len(a & b), len(a), len(b)),
        *_shares(weight(a & b), weight(a), weight(b)),
        *_shares(len(pairs[0] & pairs[1]), len(pairs[0]), len(pairs[1])),
        *_shares(len(grams[0] & grams[1]), len(grams[0]), len(grams[1])),
    ]
    return [
        *shares,
        *(share**2 for share in shares),
        len(numbers[0] ^ numbers[1]) / (len(numbers[0] | numbers[1]) + 1),
        (sizes[0] - sizes[1]) / (sum(sizes) + 1),
        abs(sizes[0] - sizes[1]) / (sum(sizes) + 1),
        *np.log1p(sizes),
        *np.log1p(rare),
    ]


def _shares(both: float, first: float, second: float) -> tuple[float, float, float]:
    """Of what is in either text, in the first and in the second."""
    return both / (first + second - both or 1), both / (first or 1), both / (second or 1)
