"""Encoder, heads and ensembles over fine-tuning, several tasks and seeds; resumable, one small result file per run.

    python -m benchmarks.league run --data ../shared/data            # hours; every finished run is kept
    python -m benchmarks.league table                                # Markdown for docs/lab-notes, from the files

Each (task, seed) is two runs with the same rows and settings: `heads` (marks up to 2 epochs, everything by default) and
`encoder` (plain fine-tuning for 3 epochs, no heads), which is what its score and seconds are held against.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import bertvision
from bertvision.metrics.intervals import resampled
from bertvision.records import ENCODER, GREEDY, ModelName
from bertvision.runs.directory import Run
from bertvision.types import HELD_OUT
from bertvision_paper.plan import PLAIN

RESULTS = Path(__file__).parent / "results" / "league"
KEPT_RESAMPLES = 300
PLANS: dict[str, dict[str, Any]] = {
    "heads": {"epochs": 2, "marks": "0,3/10,1,2"},
    "heads-one-epoch": {"epochs": 1, "marks": "3/10,1/2,1"},
    "encoder": {"epochs": 3, "marks": "1,2,3", "heads": "none"},
    # Ways to a third of the encoder's cost: a schedule of half an epoch, with more steps, or with longer polish.
    "half": {"epochs": "1/2", "marks": "1/2"},
    "half-batch-8": {"epochs": "1/2", "marks": "1/2", "batch_size": 8},
    "half-polish-20": {"epochs": "1/2", "marks": "1/2", "polish": 20, "head_lr": 3e-4},
}
LIMITS = {"sst-2": 20_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="sts-b,mrpc,rte,cola,sst-2")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--plans", default="heads,encoder")
    parser.add_argument("--backbone", default="minilm-l6")
    given = parser.parse_args()
    if given.action == "table":
        print(table())
        return
    for seed in map(int, given.seeds.split(",")):
        for task in given.tasks.split(","):
            for plan in given.plans.split(","):
                run(task, seed, plan, given.data, given.backbone)


def run(task: str, seed: int, plan: str, data: str, backbone: str) -> None:
    file = RESULTS / f"{Path(backbone).name}-{task}-{plan}-{seed}.json"
    if file.exists():
        return
    print("running", file.stem, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        limit = LIMITS.get(task)
        finished = bertvision.fit(
            task, data=data, backbone=backbone, seed=seed, out=out, limit=limit, **PLAIN | PLANS[plan]
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(summary(finished), indent=None, separators=(",", ":")) + "\n")
        shutil.rmtree(out)


def summary(run: Run) -> dict[str, Any]:
    """Scores and costs, and the resampled dev scores of encoder, best head and selection for paired intervals."""
    record, results = run.record, run.results
    assert record.costs is not None
    options = {name: value for name, value in record.recipe.as_dict().items() if name not in ("out", "data")}
    metric = results.metric
    marks = []
    for one in results.marks:
        dev = run.predictions(one.mark)["dev"]
        models = {"encoder": ENCODER, "selected": one.selected, "best_head": one.best_head}
        draws = {
            role: np.round(resampled(dev.outputs[name], dev.targets, metric)[:KEPT_RESAMPLES].astype(float), 4).tolist()
            for role, name in models.items()
            if name
        }
        kept = {split: {m: {k: round(s.value, 4) for k, s in found.items()} for m, found in one.scores[split].items()}
                for split in (HELD_OUT, "dev")}  # fmt: skip
        costs = {part: round(seconds, 2) for part, seconds in one.costs.items()}
        marks.append({"epoch": one.mark, "costs": costs, "pairs": one.ways, **models, **kept, "draws": draws})
    return {
        "options": options, "metric": metric, "selected": asdict(results.selected), "costs": asdict(record.costs),
        "parameters": record.parameters, "versions": record.versions, "marks": marks,
    }  # fmt: skip


def load() -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """(backbone, task, plan) -> results by seed."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text())
        options = result["options"]
        plan = next(name for name in sorted(PLANS, key=len, reverse=True) if f"-{name}-" in file.stem)
        found.setdefault((Path(options["backbone"]).name, options["task"], plan), []).append(result)
    return found


def undisturbed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those whose seconds count: tests ran beside some runs, which are marked (scores do not depend on it)."""
    return [result for result in results if not result.get("disturbed")] or results


def seconds_at(mark: dict[str, Any]) -> float:
    """What a user pays for the models of one mark: fine-tuning up to it, and the passes and polish at it."""
    parts = [
        value
        for name, value in mark["costs"].items()
        if name.startswith("polish_") or "train" in name or HELD_OUT in name
    ]
    return float(mark["costs"]["fine_tune_loop"] + sum(parts))


def interval(results: list[dict[str, Any]], index: int, role: str) -> tuple[float, float, float]:
    """Mean over seeds of (role - encoder) on dev, with a bootstrap over examples, paired within each seed."""
    metric = results[0]["metric"]
    value = np.mean(
        [m["dev"][m[role]][metric] - m["dev"][ENCODER][metric] for m in (r["marks"][index] for r in results)]
    )
    draws = [np.subtract(r["marks"][index]["draws"][role], r["marks"][index]["draws"]["encoder"]) for r in results]
    low, high = np.quantile(np.mean(draws, 0), [0.025, 0.975])
    return float(value), float(low), float(high)


def best_ridden(mark: dict[str, Any], metric: str) -> str | None:
    ridden = [name for name in mark["pairs"] if not ModelName.parse(name).polished]
    return max(ridden, key=lambda name: mark[HELD_OUT][name][metric], default=None)


def mean_dev(marks: list[dict[str, Any]], models: list[str | None], metric: str) -> str:
    """Mean dev score over seeds, where each seed may have chosen another model."""
    if not all(models):
        return "-"
    return f"{np.mean([mark['dev'][model][metric] for mark, model in zip(marks, models, strict=True)]):.3f}"


def score_rows(found: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[str]:
    head = "task, backbone | seeds | epochs | s | encoder | ridden head | best head | greedy | selected"
    head += " | best head - encoder [95%] | selected - encoder [95%]"
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for (backbone, task, plan), results in found.items():
        if plan == "encoder":
            continue
        metric = results[0]["metric"]
        for index, mark in enumerate(results[0]["marks"]):
            at = [result["marks"][index] for result in results]
            choices: list[list[str | None]] = [
                [ENCODER for _ in at],
                [best_ridden(m, metric) for m in at],
                [m["best_head"] for m in at],
                [GREEDY for _ in at],
                [m["selected"] for m in at],
            ]
            cells = [_label(task, metric, backbone, plan), str(len(results)), mark["epoch"]]
            quiet = [result["marks"][index] for result in undisturbed(results)]
            cells.append(f"{np.mean([seconds_at(m) for m in quiet]):.0f}")
            cells += [mean_dev(at, models, metric) for models in choices]
            for role in ("best_head", "selected"):
                value, low, high = interval(results, index, role)
                cells.append(f"{value:+.3f} [{low:+.3f}, {high:+.3f}]")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def cost_rows(found: dict[tuple[str, str, str], list[dict[str, Any]]]) -> list[str]:
    head = "task, backbone | seeds | encoder, 3 epochs | its s | ours reaches it at | ours s | share"
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    for (backbone, task, plan), results in found.items():
        rivals = {r["options"]["seed"]: r for r in found.get((backbone, task, "encoder"), [])}
        ours = [r for r in results if r["options"]["seed"] in rivals]
        if plan == "encoder" or not ours:
            continue
        metric = ours[0]["metric"]
        beaten = [rivals[r["options"]["seed"]] for r in ours]
        target = float(np.mean([rival["marks"][-1]["dev"][ENCODER][metric] for rival in beaten]))
        spent = float(np.mean([rival["marks"][-1]["costs"]["fine_tune_loop"] for rival in undisturbed(beaten)]))
        reached = "not reached | - | -"
        for index, mark in enumerate(ours[0]["marks"]):
            at = [r["marks"][index] for r in ours]
            if np.mean([m["dev"][m["selected"]][metric] for m in at]) >= target:
                seconds = float(np.mean([seconds_at(r["marks"][index]) for r in undisturbed(ours)]))
                reached = f"{mark['epoch']} epochs | {seconds:.0f} | {seconds / spent:.2f}"
                break
        lines.append(
            f"| {_label(task, metric, backbone, plan)} | {len(ours)} | {target:.3f} | {spent:.0f} | {reached} |"
        )
    return lines


def _label(task: str, metric: str, backbone: str, plan: str) -> str:
    return f"{task} ({metric}), {backbone}" + ("" if plan.startswith("heads") else f", {plan}")


def table() -> str:
    found = load()
    return "\n".join([*score_rows(found), "", *cost_rows(found)])


if __name__ == "__main__":
    main()
