"""What takes seconds: the majority class, and regressions on TF-IDF or on sentence embeddings.

The strength of a regression is chosen by cross-validation on the rows that are given (on a fixed sample of them if they
are many), and the regression is then fitted on all of them. Its held-out score is that of cross-validation.

TF-IDF: words and pairs of words, and pieces of words of 3 to 5 characters, with logarithmic counts, as in
https://scikit-learn.org/stable/modules/feature_extraction.html#text-feature-extraction. Pairs of texts are u, v, |u-v|
and u*v in both cases (benchmarks/rivals/sentence.py says where this comes from).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.rivals import START, Contestant, Job, Outcome, Task, Variant, everywhere, targets
from benchmarks.rivals.measuring import asked, size_of
from benchmarks.rivals.regression import answers, fitted
from benchmarks.rivals.sentence import combined, cosines, embedder
from benchmarks.suite import contestants

from bertvision.types import Examples

FEW, FOLDS_OF_FEW, FOLDS = 500, 5, 3  # rows up to which there are more folds
CHOICE = 1_000  # rows on which a strength is chosen: on all 10,000 of 77 classes it would take a quarter of an hour
MANY = 1_000  # rows from which on pieces that occur once are left out
STRENGTHS = {
    ("tfidf", "class"): (0.001, 0.01, 0.1, 1.0, 10.0),
    ("tfidf", "score"): (0.01, 0.1, 1.0, 10.0, 100.0),
    ("embeddings", "class"): (0.1, 1.0, 10.0, 1e2, 1e3, 1e4),
    ("embeddings", "score"): (1.0, 10.0, 1e2, 1e3, 1e4, 1e5),
}

Features = Callable[[Examples], Any]


def majority(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    """The share of each class, or the mean score, for every row."""
    started, y = job.clock.now(), targets(job.taught)
    shares = np.bincount(y, minlength=job.dataset.outputs) / len(y) if job.kind == "class" else np.array([y.mean()])

    def predict(examples: Examples) -> np.ndarray:
        return np.tile(shares, (len(examples), 1))

    training = job.clock.now() - started
    ready, latency = asked(job, predict)
    name = "majority class" if job.kind == "class" else "mean score"
    return [Outcome(name, predict(job.dev), None, training, ready, len(shares), 8 * len(shares), latency)]


def tfidf(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    started, rows = job.clock.now(), job.taught
    least = 2 if len(rows) >= MANY else 1
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=least)
    pieces = TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(3, 5), min_df=least)
    both = make_union(words, pieces).fit(rows.texts + (rows.second_texts or []))

    def features(examples: Examples) -> Any:
        first = both.transform(examples.texts)
        if examples.second_texts is None:
            return first
        second = both.transform(examples.second_texts)
        return sparse.hstack([first, second, abs(first - second), first.multiply(second)]).tocsr()

    return [regression(job, features, "tfidf", started, kept=both)]


def sentence(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    vectors = embedder(job)
    outcomes = cosines(job, vectors)
    return [*outcomes, regression(job, lambda examples: combined(vectors(examples)), "embeddings", job.clock.now())]


def regression(job: Job, features: Features, name: str, started: float, kept: Any = None) -> Outcome:
    """Logistic or ridge regression on all rows. `kept` is what has to be saved besides."""
    import joblib

    x, y, scaled = features(job.taught), targets(job.taught), name == "embeddings"
    goodness, strength = chosen(job, x, y, STRENGTHS[name, job.kind], scaled)
    model = fitted(x, y, strength, job.kind, scaled)

    def predict(examples: Examples) -> np.ndarray:
        return answers(model, features(examples), job)

    training = job.clock.now() - started
    ready, latency = asked(job, predict)
    with job.clock.paused():
        file = job.folder / "regression.joblib"
        joblib.dump((kept, model), file)
        return Outcome(
            "ridge regression" if job.kind == "score" else "logistic regression",
            predict(job.dev),
            goodness,
            training,
            ready,
            int(model[-1].coef_.size + np.size(model[-1].intercept_)),
            size_of(file),
            latency,
            needs_encoder=scaled,
            note=f"strength {strength:g}, {x.shape[1]:,} features",
        )


def chosen(job: Job, x: Any, y: np.ndarray, strengths: tuple[float, ...], scaled: bool) -> tuple[float, float]:
    """(score in cross-validation, strength) of the best; of equals, the one with the lower loss."""
    from bertvision.metrics.intervals import measure

    random = np.random.default_rng(0)
    rows = np.sort(random.permutation(len(y))[:CHOICE])
    x, y = x[rows], y[rows]
    count = FOLDS_OF_FEW if len(y) <= FEW else FOLDS
    folds, found = folded(y, count, random), []
    for strength in strengths:
        said = np.zeros((len(y), job.dataset.outputs))
        for fold in range(count):
            here = folds == fold
            model = fitted(x[~here], y[~here], strength, job.kind, scaled)
            said[here] = answers(model, x[here], job)
        right = said[np.arange(len(y)), y] if job.kind == "class" else None
        loss = ((said[:, 0] - y) ** 2).mean() if right is None else -np.log(right.clip(1e-9)).mean()
        found.append((measure(said, y, job.metric), -float(loss), strength))
    score, _, strength = max(found)
    return score, strength


def folded(y: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """The fold of each row. Classes, and scores in their order, are dealt out evenly; StratifiedKFold refuses classes
    with fewer rows than folds."""
    order = random.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    folds = np.empty(len(y), dtype=int)
    folds[order] = np.arange(len(y)) % count
    return folds


def cheap(per_row: float) -> Callable[[Task], float]:
    return lambda task: START + per_row * task.rows


def embedding(task: Task) -> float:
    return START + task.clean + task.answers + task.rows * (0.03 if task.pairs else 0.01)


SKLEARN = ("scikit-learn",)
contestants.add(
    "majority",
    Contestant(
        "the most frequent class, or the mean score",
        {"constant": Variant({}, everywhere(0), cheap(0.0))},
        majority,
        "majority class",
        SKLEARN,
        seeded=False,
    ),
)
contestants.add(
    "tfidf",
    Contestant(
        "TF-IDF of words and characters + logistic or ridge regression, strength by cross-validation",
        {"regression": Variant({}, everywhere(0), cheap(0.02))},
        tfidf,
        "TF-IDF + scikit-learn",
        SKLEARN,
        seeded=False,
    ),
)
contestants.add(
    "sentence",
    Contestant(
        "sentence-transformers embeddings + logistic or ridge regression, strength by cross-validation; cosine",
        {"regression": Variant({}, everywhere(0), embedding)},
        sentence,
        "sentence-transformers + scikit-learn",
        ("sentence-transformers", *SKLEARN),
        seeded=False,
    ),
)
