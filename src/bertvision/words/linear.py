"""Linear models of sparse rows: ridge regression, and one logistic regression per class.

Each chooses its strength inside the rows it is given, by the error on rows that were left out.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse

ALPHAS = tuple(float(alpha) for alpha in 10.0 ** np.arange(-2, 2.1, 0.5))  # of ridge regression
STRENGTHS = (0.3, 3.0, 30.0, 300.0)  # C of logistic regression: with a temperature, more values bring nothing
FOLDS = 3
TRIED = 10  # classes that choose the strength; more of them choose the same
TOLERANCE = 0.1  # of liblinear: with 0.01 the scores are the same and take up to three times as long
TEMPERATURES = np.exp(np.linspace(-3, 4, 71))
SMALLEST = 1e-9  # probability


@dataclass(frozen=True)
class Linear:
    """Weights of a score or of K classes, and how to read probabilities from them."""

    coefficients: np.ndarray  # (F, K) float32
    intercepts: np.ndarray  # (K,)
    strength: float
    temperature: float = 1.0
    logistic: bool = False

    def decisions(self, rows: sparse.csr_matrix) -> np.ndarray:
        """(N, K)"""
        return np.asarray(rows @ self.coefficients.astype(np.float64)) + self.intercepts

    def probabilities(self, rows: sparse.csr_matrix) -> np.ndarray:
        """(N, K)"""
        return probable(self.decisions(rows), self.temperature, self.logistic)


def probable(decisions: np.ndarray, temperature: float, logistic: bool) -> np.ndarray:
    """Probabilities that sum to one: a softmax or, of logistic regressions, each one's probability to a power."""
    scaled = temperature * (-np.logaddexp(0, -decisions) if logistic else decisions)
    odds = np.exp(scaled - scaled.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def score_model(rows: sparse.csr_matrix, targets: np.ndarray, weights: np.ndarray, some: np.ndarray) -> Linear:
    """Ridge regression; the rows in `some` choose its strength."""
    wanted, share = targets[some], weights[some] / weights[some].sum()
    trials = _left_out(rows[some], wanted[:, None], weights[some])
    strength = min((float(share @ (said[:, 0] - wanted) ** 2), alpha) for alpha, said in trials)[1]
    return _ridge(rows, targets[:, None], weights, strength)


def small_class_model(rows: sparse.csr_matrix, classes: np.ndarray, weights: np.ndarray, some: np.ndarray) -> Linear:
    """Ridge regression of each class against the others, which is ahead of logistic regression on few rows."""
    wanted = np.eye(classes.max() + 1)[classes]
    best = min(
        (*_tempered(said, classes[some], weights[some], False), alpha)
        for alpha, said in _left_out(rows[some], wanted[some], weights[some])
    )
    return _ridge(rows, wanted, weights, best[2], best[1])


def class_model(
    rows: sparse.csr_matrix, classes: np.ndarray, weights: np.ndarray, some: np.ndarray, folds: np.ndarray, seed: int
) -> Linear:
    """A logistic regression of each class against the others; `some` rows, in `folds`, choose the strength."""
    x, y, w, count = rows[some], classes[some], weights[some], classes.max() + 1
    tried = np.unique(np.linspace(0, count - 1, TRIED).astype(int))

    def crossed(strength: float, which: np.ndarray) -> np.ndarray:
        found = np.zeros((len(y), len(which)))
        for fold in range(FOLDS):
            rest, here = folds != fold, folds == fold
            found[here] = _logistic(x[rest], y[rest], w[rest], which, strength, seed).decisions(x[here])
        return found

    if count == 2:  # the two are one regression
        tried = np.array([1])
    losses = []
    for strength in STRENGTHS:
        said = crossed(strength, tried)
        binary = np.stack([np.stack([-one, one], 1) for one in said.T])
        losses.append(
            np.mean([_tempered(one, (y == k).astype(int), w, True)[0] for one, k in zip(binary, tried, strict=True)])
        )
    strength = STRENGTHS[int(np.argmin(losses))]
    which = tried if count == 2 else np.arange(count)
    said = _both(crossed(strength, which))
    temperature = _tempered(said, y, w, True)[1]
    found = _logistic(rows, classes, weights, which, strength, seed)
    return Linear(_both(found.coefficients), _both(found.intercepts), strength, temperature, True)


def _both(values: np.ndarray) -> np.ndarray:
    """Two opposite columns, if there is one."""
    return np.concatenate([-values, values], -1) if values.shape[-1] == 1 else values


def _left_out(rows: sparse.csr_matrix, targets: np.ndarray, weights: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """For each strength of a ridge regression: what it says of each row (N, K) if it is fitted on all others.

    Exact, from one eigendecomposition of the rows' products.
    """
    w = weights / weights.mean()
    root, share = np.sqrt(w)[:, None], w / w.sum()
    products = (rows @ rows.T).toarray()
    middle = products @ share
    values, axes = np.linalg.eigh(root * (products - middle - middle[:, None] + share @ middle) * root.T)
    values, mean = values.clip(0), share @ targets
    along = axes.T @ (root * (targets - mean))
    for alpha in ALPHAS:
        shrunk = values / (values + alpha)
        said = mean + axes @ (shrunk[:, None] * along) / root
        leverage = (axes**2) @ shrunk + share  # that of the mean too
        yield alpha, targets - (targets - said) / (1 - leverage).clip(1e-3)[:, None]


def _ridge(
    rows: sparse.csr_matrix, targets: np.ndarray, weights: np.ndarray, strength: float, temperature: float = 1.0
) -> Linear:
    from sklearn.linear_model import Ridge

    if not rows.shape[1]:  # empty texts
        mean = np.average(targets, 0, weights)
        return Linear(np.zeros((0, len(mean)), np.float32), mean, strength, temperature)
    made = Ridge(alpha=strength, solver="sparse_cg").fit(rows, targets, weights / weights.mean())
    coefficients = np.reshape(made.coef_, (targets.shape[1], -1)).T.astype(np.float32)
    return Linear(coefficients, np.reshape(made.intercept_, -1), strength, temperature)


def _logistic(
    rows: sparse.csr_matrix, classes: np.ndarray, weights: np.ndarray, which: np.ndarray, strength: float, seed: int
) -> Linear:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    coefficients = np.zeros((rows.shape[1], len(which)), np.float32)
    intercepts = np.full(len(which), -np.log(len(classes) + 1.0))  # of a class that these rows lack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an unfinished solution is as good
        for place, one in enumerate(which):
            if 0 < (inside := classes == one).sum() < len(classes):
                made = LogisticRegression(C=strength, solver="liblinear", dual=True, tol=TOLERANCE, random_state=seed)
                made.fit(rows, inside, weights / weights.mean())
                coefficients[:, place], intercepts[place] = made.coef_[0], made.intercept_[0]
    return Linear(coefficients, intercepts, strength)


def _tempered(decisions: np.ndarray, classes: np.ndarray, weights: np.ndarray, logistic: bool) -> tuple[float, float]:
    """(log loss, temperature) with the temperature that makes the loss smallest."""
    row, share = np.arange(len(classes)), weights / weights.sum()

    def loss(temperature: float) -> float:
        right = probable(decisions, temperature, logistic)[row, classes]
        return -float(share @ np.log(right.clip(SMALLEST)))

    return min((loss(temperature), float(temperature)) for temperature in TEMPERATURES)
