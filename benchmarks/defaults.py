"""How defaults are chosen: by scores on held-out training rows. Dev rows are never used.

    python -m benchmarks.defaults lead --data ../shared/data --tasks cola,mrpc --seeds 0,1
    python -m benchmarks.defaults selection runs/A runs/B ...

`lead`: fine-tune for an epoch through the output layer alone (`--lead own`), with and without frozen embeddings, and
through a lead, with and without dropout.
`selection`: choose a model on one half of a finished run's held-out rows and score it on the other half, many times.
Compared are the best single model, the best of single models and ensembles, and the model that `fit` selects. For
classes and scores; predictions of spans cannot be averaged here.
Both print their results and append them to benchmarks/results/defaults/.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import bertvision
from bertvision.inference.answer import Outputs
from bertvision.inference.select import choose, combined, matching_shift
from bertvision.kinds import Judge, goodness, kinds
from bertvision.metrics.intervals import measure
from bertvision.options import Request
from bertvision.records import ENCODER, GREEDY, Ensemble, ModelName
from bertvision.runs.directory import Run
from bertvision.types import HELD_OUT, Examples, Windows

RESULTS = Path(__file__).parent / "results" / "defaults"
DRAWS = 30
LIMITS = {"sst-2": 20_000, "qnli": 10_000}
WAYS: dict[str, dict[str, Any]] = {
    "own": {"lead": "own", "polish": 0},
    "own, embeddings frozen": {"lead": "own", "freeze": "embeddings", "polish": 0},
    "lead": {},
    "lead, nothing frozen": {"freeze": "none"},
    "lead, polished": {"polish": 8, "pairs": "joint"},
    "lead, batches of 16": {"batch_size": 16},
    "lead, batches of 8": {"batch_size": 8},
    "lead, two layers frozen, 3/2 epochs": {"batch_size": 16, "freeze": "2", "epochs": "3/2"},
    "lead, dropout": {"batch_size": 16, "dropout": True},
    "lead, dropout, twice the rate": {"batch_size": 16, "dropout": True, "lr": 2e-4},
    "lead, dropout, batches of 8": {"batch_size": 8, "dropout": True},
    "lead, dropout, two layers frozen": {"batch_size": 16, "dropout": True, "freeze": "2"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["lead", "selection"])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="cola,mrpc")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--ways", default="own;own, embeddings frozen;lead")
    given = parser.parse_args()
    if given.what == "selection":
        put("selection", [row for path in given.runs for row in selections(Run(path))])
        return
    for seed in given.seeds.split(","):
        for task in given.tasks.split(","):
            for way in given.ways.split(";"):
                put("lead", [led(task, int(seed), way, given.data, given.backbone)])


def put(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        for row in rows:
            print(row, flush=True)
            file.write(json.dumps(row) + "\n")


def led(task: str, seed: int, way: str, data: str, backbone: str) -> dict[str, Any]:
    """Held-out losses of encoder and lead after the last step, and scores of the models chosen on halves."""
    options = {"epochs": "1"} | WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        run = bertvision.fit(
            task, data=data, backbone=backbone, seed=seed, limit=LIMITS.get(task), dev_limit=40,
            marks=options["epochs"], out=Path(folder) / "run", quiet=True, **options,
        )  # fmt: skip
        outputs, targets, metric, kind = held_out(run, options["epochs"])
        judge = judge_of(targets, kind)
        losses = {name: round(judge.loss(outputs[name]), 4) for name in (ENCODER, "closed-form") if name in outputs}
        costs = run.record.costs
        assert costs is not None
        row = {"task": task, "seed": seed, "way": way, "metric": metric, "seconds": round(costs.seconds)}
        return row | {"losses": losses} | chosen(outputs, targets, metric, kind)


def selections(run: Run) -> Iterator[dict[str, Any]]:
    for one in run.results.marks:
        outputs, targets, metric, kind = held_out(run, one.mark)
        row = {"run": run.path.name, "mark": one.mark, "metric": metric, "rows": len(targets)}
        yield row | chosen(outputs, targets, metric, kind)


def held_out(run: Run, mark: str) -> tuple[Outputs, np.ndarray, str, str]:
    """Predictions of every single model on held-out rows, the targets, the metric and the kind."""
    kept, record = run.predictions(mark)[HELD_OUT], run.record
    outputs = {name: np.asarray(said) for name, said in kept.outputs.items() if not ModelName.parse(name).ensemble}
    return outputs, np.asarray(kept.targets), record.metric, record.kind


def chosen(outputs: Outputs, targets: np.ndarray, metric: str, kind: str) -> dict[str, float]:
    """Mean score on one half of what is chosen on the other, by rule."""
    random = np.random.default_rng(0)
    found: dict[str, list[float]] = {}
    for _ in range(DRAWS):
        order = random.permutation(len(targets))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        judge = judge_of(targets[first], kind)
        here = {name: said[first] for name, said in outputs.items()}
        there = {name: said[second] for name, said in outputs.items()}
        choice, single = choose(here, judge, metric), best(here, judge, metric)
        here |= {name: combined(ensemble, here, kind) for name, ensemble in choice.ensembles.items()}
        there |= {name: combined(ensemble, there, kind) for name, ensemble in choice.ensembles.items()}
        rules = {"single": single, "best": best(here, judge, metric), "preferred": choice.selected}
        rules |= {"greedy": GREEDY} if GREEDY in there else {}
        for rule, name in rules.items():
            found.setdefault(rule, []).append(measure(there[name], targets[second], metric, kind))
        if kind == "class" and there[single].shape[1] == 2:
            shift = matching_shift(here[single][:, 1], float(targets[first].mean()))
            matched = combined(Ensemble("mean", {single: 1.0}, shift), there, kind)
            found.setdefault("single, matched", []).append(measure(matched, targets[second], metric, kind))
    return {rule: round(float(np.mean(scores)), 4) for rule, scores in found.items()}


def best(outputs: Outputs, judge: Judge, metric: str) -> str:
    """The model that scores highest; between equals, the one with the lower loss."""
    return max(outputs, key=lambda name: goodness(judge, outputs[name], judge.predictions(outputs[name]), metric))


def judge_of(targets: np.ndarray, kind: str) -> Judge:
    """A judge that has targets but no texts: every example is one window, whose tokens are not needed."""
    none, rows = np.empty(0), np.arange(len(targets))
    windows = Windows(none, none, none, np.arange(len(rows) + 1), 0, rows)
    return kinds[kind].judge(Examples([""] * len(rows), None, targets), windows, Request())


if __name__ == "__main__":
    main()
