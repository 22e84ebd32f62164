"""No fine-tuning at all: our heads on a frozen encoder against what sentence-transformers + scikit-learn users do.

    python -m benchmarks.frozen --data ../shared/data --tasks sts-b,mrpc,rte --out benchmarks/results/frozen.json

Same weights, same train rows, regularisation of the rivals chosen on the same held-out rows; dev is scored once.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bertvision
from bertvision.backbones import backbones
from bertvision.metrics.intervals import compare, measure, score
from bertvision.options import Request
from bertvision.prepare import parts_of
from bertvision.tasks import tasks
from bertvision.types import HELD_OUT, TRAIN

STRENGTHS = 10.0 ** np.arange(-3, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="sts-b,mrpc,rte")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", default="benchmarks/results/frozen.json")
    given = parser.parse_args()
    rows = []
    for task in given.tasks.split(","):
        targets, rivals = rivals_on(task, given.data)
        ours = [ours_on(task, given.data, seed) for seed in range(given.seeds)]
        metric = tasks[task].metrics[0]
        for name, (outputs, seconds) in (rivals | {f"ours, seed {i}": found for i, found in enumerate(ours)}).items():
            row: dict[str, Any] = {"task": task, "metric": metric, "model": name, "seconds": round(seconds, 1)}
            row |= score(outputs, targets, metric).as_dict()
            row["ours_minus_this"] = compare(outputs, ours[0][0], targets, metric).as_dict()
            rows.append(row)
            print(row, flush=True)
    Path(given.out).parent.mkdir(parents=True, exist_ok=True)
    Path(given.out).write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def ours_on(task: str, data: str, seed: int) -> tuple[np.ndarray, float]:
    """(dev predictions of what was selected on held-out data, seconds)."""
    with tempfile.TemporaryDirectory() as folder:
        run = bertvision.fit(task, data=data, epochs=0, seed=seed, out=Path(folder) / "run", quiet=True)
        found = run.results.at("0")
        print(task, "selected", found.selected, flush=True)
        return run.predictions("0")["dev"].outputs[found.selected], found.seconds


def rivals_on(task: str, data: str) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, float]]]:
    """Dev targets, and name -> (dev predictions, seconds) of the rivals."""
    from sentence_transformers import SentenceTransformer

    options = Request(task=task, data=data)
    parts = parts_of(tasks[task].load(options), options)
    started = time.perf_counter()
    model = SentenceTransformer(str(backbones["minilm-l6"].folder()), device="cpu")
    vectors = {}
    for name in (TRAIN, HELD_OUT, "dev"):
        part = parts[name]
        assert part.second_texts is not None
        vectors[name] = tuple(model.encode(texts, show_progress_bar=False) for texts in (part.texts, part.second_texts))
    encoding = time.perf_counter() - started
    features = {name: np.concatenate([u, v, np.abs(u - v), u * v], 1) for name, (u, v) in vectors.items()}
    targets = {name: known for name in vectors if (known := parts[name].targets) is not None}
    metric = tasks[task].metrics[0]
    found = {}
    if metric == "pearson":
        u, v = vectors["dev"]
        cosine = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
        found["cosine"] = (cosine[:, None], encoding)
    name = "ridge on u, v, |u-v|, uv" if metric == "pearson" else "logistic regression on u, v, |u-v|, uv"
    started = time.perf_counter()
    trials = [fitted(features, targets, strength, metric) for strength in STRENGTHS]
    best = max(trials, key=lambda trial: measure(trial[HELD_OUT], targets[HELD_OUT], metric))
    found[name] = (best["dev"], encoding + time.perf_counter() - started)
    return targets["dev"], found


def fitted(features: dict[str, np.ndarray], targets: Any, strength: float, metric: str) -> dict[str, np.ndarray]:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if metric == "pearson":
        ridge = Ridge(alpha=strength).fit(features[TRAIN], targets[TRAIN])
        return {name: ridge.predict(features[name])[:, None] for name in (HELD_OUT, "dev")}
    logistic = make_pipeline(StandardScaler(), LogisticRegression(C=1 / strength, max_iter=2000))
    logistic.fit(features[TRAIN], targets[TRAIN])
    return {name: logistic.predict_proba(features[name]) for name in (HELD_OUT, "dev")}


if __name__ == "__main__":
    main()
