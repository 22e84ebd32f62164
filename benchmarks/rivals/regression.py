"""Logistic or ridge regression on fixed features: strength, and which features, chosen on held-out rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.rivals import Job, Outcome, targets
from benchmarks.rivals.measuring import asked, size_of

from bertvision.types import Examples

STRENGTHS = 10.0 ** np.arange(-3, 5)
Features = Callable[[Examples], np.ndarray]


def chosen(job: Job, ways: dict[str, Features]) -> Outcome:
    """The outcome of the best regression over all ways to get features."""
    import joblib

    from bertvision.metrics.intervals import measure

    started = job.clock.now()
    trials = []
    for name, features in ways.items():
        x, held = features(job.train), features(job.held_out)
        for strength in STRENGTHS:
            model = fitted(x, targets(job.train), strength, job.kind)
            goodness = measure(answers(model, held, job.kind), targets(job.held_out), job.metric)
            trials.append((goodness, f"{name}, strength {strength:g}", name, model))
    goodness, note, name, model = max(trials, key=lambda trial: trial[0])
    training = job.clock.now() - started

    def predict(examples: Examples) -> np.ndarray:
        return answers(model, ways[name](examples), job.kind)

    ready, latency = asked(job, predict)
    with job.clock.paused():
        file = job.folder / "regression.joblib"
        joblib.dump(model, file)
        return Outcome(
            "ridge regression" if job.kind == "score" else "logistic regression",
            predict(job.dev),
            predict(job.held_out),
            training,
            ready,
            int(model[-1].coef_.size + np.size(model[-1].intercept_)),
            size_of(file),
            latency,
            needs_encoder=True,
            note=note,
        )


def fitted(x: np.ndarray, y: np.ndarray, strength: float, kind: str) -> Any:
    # Standardised first: https://scikit-learn.org/stable/modules/linear_model.html regularises all features alike.
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    last = Ridge(alpha=strength) if kind == "score" else LogisticRegression(C=1 / strength, max_iter=2000)
    return make_pipeline(StandardScaler(), last).fit(x, y)


def answers(model: Any, x: np.ndarray, kind: str) -> np.ndarray:
    return model.predict(x)[:, None] if kind == "score" else model.predict_proba(x)
