"""Logistic or ridge regression on fixed features: with the library's own strength, and chosen on held-out rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.rivals import Job, Outcome, targets
from benchmarks.rivals.measuring import asked, size_of

from bertvision.types import Examples

STRENGTHS = 10.0 ** np.arange(-3, 5)
Features = Callable[[Examples], np.ndarray]


def regressions(job: Job, ways: dict[str, Features]) -> list[Outcome]:
    """Two outcomes: the first way with the library's own strength, and the best on held-out rows of all ways and
    strengths, for who has the time."""
    from bertvision.metrics.intervals import measure

    started = job.clock.now()
    first = next(iter(ways))
    x = {first: ways[first](job.train)}
    plain = fitted(x[first], targets(job.train), 1.0, job.kind)
    outcomes = [asked_of(job, ways[first], plain, started, f"{first}, 1")]
    trials = []
    for name, features in ways.items():
        x[name] = x[name] if name in x else features(job.train)
        held = features(job.held_out)
        for strength in STRENGTHS:
            model = fitted(x[name], targets(job.train), strength, job.kind)
            goodness = measure(answers(model, held, job), targets(job.held_out), job.metric)
            trials.append((goodness, name, strength, model))
    _, name, strength, model = max(trials, key=lambda trial: trial[0])
    return [*outcomes, asked_of(job, ways[name], model, started, f"{name}, {strength:g}", " chosen of several")]


def asked_of(job: Job, features: Features, model: Any, started: float, note: str, how: str = "") -> Outcome:
    import joblib

    entered = job.clock.now()

    def predict(examples: Examples) -> np.ndarray:
        return answers(model, features(examples), job)

    ready, latency = asked(job, predict)
    with job.clock.paused():
        file = job.folder / "regression.joblib"
        joblib.dump(model, file)
        outcome = Outcome(
            ("ridge regression" if job.kind == "score" else "logistic regression") + how,
            predict(job.dev),
            predict(job.held_out),
            entered - started,
            ready,
            int(model[-1].coef_.size + np.size(model[-1].intercept_)),
            size_of(file),
            latency,
            needs_encoder=True,
            note=f"features and strength: {note}",
        )
    job.clock.leave_out(job.clock.now() - entered)  # asking is not part of the way to the next
    return outcome


def fitted(x: Any, y: np.ndarray, strength: float, kind: str, scaled: bool = True) -> Any:
    # Standardised first: https://scikit-learn.org/stable/modules/linear_model.html regularises all features alike.
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    last = Ridge(alpha=strength) if kind == "score" else LogisticRegression(C=1 / strength, max_iter=2000)
    return make_pipeline(*([StandardScaler()] if scaled else []), last).fit(x, y)


def answers(model: Any, x: Any, job: Job) -> np.ndarray:
    if job.kind == "score":
        return model.predict(x)[:, None]
    return spread(model.predict_proba(x), model.classes_, job.dataset.outputs)


def spread(probabilities: np.ndarray, classes: np.ndarray, outputs: int) -> np.ndarray:
    """(N, outputs): a class that is not among the rows of training has probability 0."""
    found = np.zeros((len(probabilities), outputs))
    found[:, classes] = probabilities
    return found
