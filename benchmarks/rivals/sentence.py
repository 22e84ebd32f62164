"""sentence-transformers and scikit-learn: embeddings of a frozen encoder, a regression on them.

https://sbert.net/docs/sentence_transformer/usage/usage.html: `SentenceTransformer(folder).encode(texts)`, and cosine
similarity as the score of a pair (https://sbert.net/docs/sentence_transformer/usage/semantic_textual_similarity.html).
Pairs are u, v, |u-v|, u*v: what https://sbert.net/docs/package_reference/sentence_transformer/losses.html#softmaxloss
concatenates (its multiplication included). The encoder is the one these pages use as their example.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.rivals import START, Contestant, Job, Outcome, Task, Variant, contestants, everywhere
from benchmarks.rivals.measuring import asked
from benchmarks.rivals.regression import regressions

from bertvision.types import Examples

Vectors = Callable[[Examples], list[np.ndarray]]


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    vectors = embedder(job)

    def features(examples: Examples) -> np.ndarray:
        return combined(vectors(examples))

    return [*cosines(job, vectors), *regressions(job, {"embeddings": features})]


def embedder(job: Job) -> Vectors:
    """Examples -> the embeddings of their texts, per column."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(job.encoder), device="cpu")
    model.max_seq_length = job.max_length

    def vectors(examples: Examples) -> list[np.ndarray]:
        texts = [examples.texts] + ([examples.second_texts] if examples.second_texts is not None else [])
        return [model.encode(column, show_progress_bar=False) for column in texts]

    return vectors


def cosines(job: Job, vectors: Vectors) -> list[Outcome]:
    """The cosine as the score of a pair: no training at all."""
    if job.kind != "score" or job.dev.second_texts is None:
        return []

    def cosine(examples: Examples) -> np.ndarray:
        u, v = vectors(examples)
        return ((u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1))[:, None]

    entered = job.clock.now()
    ready, latency = asked(job, cosine)
    with job.clock.paused():
        said, held = cosine(job.dev), job.held_back(cosine)
    job.clock.leave_out(job.clock.now() - entered)
    return [Outcome("cosine", said, held, 0.0, ready, 0, 0, latency, needs_encoder=True)]


def combined(columns: list[np.ndarray]) -> np.ndarray:
    if len(columns) == 1:
        return columns[0]
    u, v = columns
    return np.concatenate([u, v, np.abs(u - v), u * v], 1)


def seconds(task: Task) -> float:
    # Two short texts take about as long as one of their common length; 1,536 features are slow to regress on.
    return START + task.clean + task.answers + task.rows * (0.006 if task.pairs else 0.001)


contestants.add(
    "sentence",
    Contestant(
        "sentence-transformers embeddings + scikit-learn (logistic or ridge regression; cosine)",
        {"regression": Variant({}, everywhere(1), seconds)},
        run,
        "sentence-transformers + scikit-learn",
        ("sentence-transformers", "scikit-learn"),
        seeded=False,
    ),
)
