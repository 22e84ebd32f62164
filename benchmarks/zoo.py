"""The head zoo, measured: one pass against many, stacks against loops, and the paper's heads against ours.

python -m benchmarks.zoo onepass   # 24 heads in one pass against 24 runs: texts (STS-B) and tokens (SQuAD 2.0)
python -m benchmarks.zoo stacked   # 16 copies (4 seeds x 4 learning rates) as one computation
python -m benchmarks.zoo ride      # all heads of the paper riding along on STS-B, three seeds
python -m benchmarks.zoo league    # heads of the paper and ours on frozen states, five seeds in one pass, 2,000 rows
python -m benchmarks.zoo spans --backbone RUN/marks/1/encoder   # the twenty span heads, three seeds in one pass
python -m benchmarks.zoo table     # Markdown for docs/lab-notes, from the files in benchmarks/results/zoo/
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import bertvision
from bertvision.backbones.tokenise import JOINT
from bertvision.heads import heads as known_heads
from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import build, expand
from bertvision.inference.extract import Origin, StoreOptions, write_store
from bertvision.metrics.intervals import resampled
from bertvision.options import Request
from bertvision.prepare import Prepared, prepare
from bertvision.progress import Progress
from bertvision.records import ENCODER, MarkRecord, ModelName
from bertvision.runs.directory import Run, partial_of
from bertvision.runs.predictions import SplitPredictions
from bertvision.states.batches import bucketed
from bertvision.states.hidden import HiddenStates
from bertvision.states.passes import clean_pass, collect
from bertvision.states.sources import Memory, Source, Stored, collect_tokens
from bertvision.stores.reader import open_store
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.polish import Lesson, polish
from bertvision.types import HELD_OUT, TRAIN
from bertvision_paper.paper import SPAN_SCORES
from bertvision_paper.plan import PLAIN

RESULTS = Path(__file__).parent / "results" / "zoo"
TEXTS = Shape(layers=7, features=384, outputs=2, paired=True, pooled=False)
Batches = Iterator[tuple[HiddenStates, torch.Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["onepass", "stacked", "ride", "league", "spans", "table"])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="sts-b,mrpc,rte,cola")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=2000)
    parser.add_argument("--polish", type=int, help="epochs of the span heads, instead of fit's")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    if given.action == "onepass":
        heavy = ("learned-pooling-adapter-inception", "learned-pooling-adapter-xception")
        several = tokens(given.data, 40, given.backbone)
        light = replace(several, names=[name for name in several.names if name not in heavy])
        found: list[dict[str, Any]] = []
        for setting, share in ((texts(given.data, 300, given.backbone), 8), (several, 4), (light, 4)):
            found.append(one_pass(setting, share))
            keep("onepass", found)
    elif given.action == "stacked":
        settings = texts(given.data, 3000, given.backbone), tokens(given.data, 100, given.backbone)
        keep("stacked", [stacked(setting, "adapter-64") for setting in settings])
    elif given.action == "ride":
        ride(given.data, min(given.seeds, 3))
    elif given.action == "league":
        for task in given.tasks.split(","):
            frozen_league(task, given.data, given.seeds, given.limit)
    elif given.action == "spans":
        span_league(given.data, given.backbone, given.limit, min(given.seeds, 3), given.polish)
    else:
        print(table())


def keep(name: str, result: Any) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def texts(data: str, limit: int, backbone: str) -> Prepared:
    """STS-B with every paper head for texts but `xception`, which costs more than all others, and five of ours."""
    names = [name for name in expand("paper", TEXTS) if name != "xception"]
    ours = ["last-layer-views", "adapter-64-views", "layer-attention", "ladder", "layer-mixer"]
    return settled("sts-b", data, limit, backbone, ",".join([*names, *ours][:24]))


def tokens(data: str, limit: int, backbone: str) -> Prepared:
    """SQuAD 2.0 with every paper head for tokens and four of ours."""
    heads = "paper,adapter-64-normalised,layer-attention,ladder,layer-mixer"
    return settled("squad2", f"{data}/SQuAD2", limit, backbone, heads)


def settled(task: str, data: str, limit: int, backbone: str, heads: str) -> Prepared:
    request = Request(task=task, data=data, backbone=backbone, heads=heads, limit=limit, dev_limit=100, pairs=JOINT)
    return prepare(request, Progress(quiet=True))


def computed(setting: Prepared) -> Batches:
    """The frozen encoder's states, computed batch by batch, as in a run without a store."""
    targets, batches = setting.train_targets(), bucketed(setting.windows[TRAIN].lengths, 16, 0, 0)
    for step in clean_pass(setting.encoder, setting.encoded[TRAIN], setting.reads, batches=batches):
        yield step.states, targets[step.rows]


def train(setting: Prepared, names: list[str], batches: Batches) -> tuple[dict[str, Head], dict[str, float]]:
    """Train for one epoch; also returns the seconds of getting the states, and of training on them."""
    heads = build(names, setting.shape, 0)
    trainer = HeadTrainer(heads, setting.dataset.kind, lr=1e-3, seed=0)
    seconds = {"states": 0.0, "heads": 0.0}
    started = time.perf_counter()
    for states, targets in batches:
        seconds["states"] += time.perf_counter() - started
        started = time.perf_counter()
        trainer.accumulate(states, targets)
        trainer.step(1.0)
        seconds["heads"] += time.perf_counter() - started
        started = time.perf_counter()
    return heads, seconds


def one_pass(setting: Prepared, share: int) -> dict[str, Any]:
    """Train all heads together and one after another: on states that the encoder computes as they are needed, then on
    states in memory."""
    names = setting.names
    result: dict[str, Any] = {"task": setting.dataset.task, "heads": len(names), "windows": len(setting.windows[TRAIN])}
    kept = [(states, targets) for states, targets in computed(setting)]
    sources: dict[str, Callable[[], Batches]] = {
        "recomputed": lambda: computed(setting),
        # `take` copies, as a batch that is read from memory does; what heads share is worked out again.
        "memory": lambda: ((states.take(torch.arange(len(states))), targets) for states, targets in kept),
    }
    for source, batches in sources.items():
        train(setting, names[:1], batches())  # warm
        together, spent = train(setting, names, batches())
        alone: dict[str, Head] = {}
        separate = {"states": 0.0, "heads": 0.0}
        for name in names:
            heads, seconds = train(setting, [name], batches())
            alone |= heads
            separate = {part: separate[part] + seconds[part] for part in separate}
        batch = kept[0][0]
        worst = max(
            float((values(together[n], batch, setting) - values(alone[n], batch, setting)).abs().max()) for n in names
        )
        result[source] = {
            "one_pass": spent, "separate": separate, "ratio": sum(spent.values()) / sum(separate.values()),
            "largest_difference": worst,
        }  # fmt: skip
    result["target"] = 1 / share
    return result


def values(head: Head, states: HiddenStates, setting: Prepared) -> torch.Tensor:
    with torch.no_grad():
        return setting.kind.outputs(head.eval()(states), setting.scale)


def stacked(setting: Prepared, name: str, rounds: int = 3) -> dict[str, Any]:
    """One head, 16 as a stack, and 16 one after another, in turn, the fastest of each: passes over states in memory (as
    polish makes them, token states in half precision) and over a store."""
    labels = expand(f"{name}:seed=0..3:lr=1e-3/3e-3/1e-4/3e-4", setting.shape)
    encoder, encoded, targets = setting.encoder, setting.encoded[TRAIN], setting.train_targets()
    result: dict[str, Any] = {
        "task": setting.dataset.task,
        "head": name,
        "copies": len(labels),
        "windows": len(encoded),
    }
    with tempfile.TemporaryDirectory() as folder:
        options = StoreOptions(folder + "/store")
        write_store(setting, options, [TRAIN], Origin(""), {"encoder": ""}, "")
        store = open_store(options.out)
        states: Any = (
            collect_tokens(encoder, encoded, 0)
            if setting.shape.span
            else collect(encoder, encoded, setting.reads, JOINT)
        )
        for where, source in (("memory", lambda: Memory(states, 0)), ("store", lambda: Stored(store, TRAIN, 0))):
            best: dict[str, float] = {}
            for _ in range(rounds):
                for label, groups in (("one", [labels[:1]]), ("stack", [labels]), ("loop", [[one] for one in labels])):
                    best[label] = min(best.get(label, np.inf), passes(setting, groups, source, targets))
            result[where] = {
                "seconds": best,
                "stack_to_one": best["stack"] / best["one"],
                "stack_to_loop": best["stack"] / best["loop"],
            }
    return result


def passes(setting: Prepared, groups: list[list[str]], source: Callable[[], Source], targets: torch.Tensor) -> float:
    made = [build(group, setting.shape, 0) for group in groups]
    recipe = replace(setting.recipe, polish=1, head_lr=1e-3, seed=0)
    started = time.perf_counter()
    for heads in made:
        polish(heads, Lesson(source(), targets, setting.dataset.kind), recipe)
    return time.perf_counter() - started


def frozen_league(task: str, data: str, seeds: int, limit: int) -> None:
    """Heads on the frozen encoder's states, all seeds in one pass; two seeds of abbreviated Xceptions, and no
    `xception`: it alone costs as much as all the others."""
    several, two = f"seed=0..{seeds - 1}", "seed=0..1"
    shape = replace(TEXTS, paired=task not in ("cola", "sst-2"))
    costly = ("xception-abbreviated", "xception-abbreviated-cls")
    names = [name for name in expand("all", shape) if name != "xception"]
    heads = [f"{name}:{two if name in costly else several}" for name in names]
    run = fitted(f"zoo-{task}-{limit}", task, data=data, heads=",".join(heads), limit=limit, epochs="0", marks="0")
    keep(f"league-{task}", league_of([run], "0"))


def ride(data: str, seeds: int) -> None:
    """One pass of fine-tuning per seed with every head of the paper in it, and nothing after it."""
    runs = [
        fitted(f"zoo-ride-{seed}", "sts-b", data=data, heads="paper", polish=0, marks="1", seed=seed, **PLAIN)
        for seed in range(seeds)
    ]
    keep("league-ride-sts-b", league_of(runs, "1"))


def fitted(name: str, task: str, **options: Any) -> Run:
    """A new run, a resumed one, or a finished one if it exists."""
    path = Path("runs") / name
    return Run(path) if path.exists() else bertvision.fit(task, out=path, resume=partial_of(path).exists(), **options)


def league_of(runs: list[Run], mark: str, metric: str | None = None) -> dict[str, Any]:
    """Per head, over its seeds (variants in one run, or runs): mean held-out and dev score, and the difference of dev
    scores to the best head of the paper (by held-out score, mean over seeds), paired within seeds."""
    record, results = runs[0].record, runs[0].results
    assert record.costs is not None
    metric, kind = metric or results.metric, record.kind
    seeds: dict[str, list[tuple[MarkRecord, SplitPredictions, str]]] = {}
    for run in runs:
        at, dev = run.results.at(mark), run.predictions(mark)["dev"]
        for label in at.ways:
            name = ModelName.parse(label).variant.name
            if name in known_heads:  # old runs have heads that are gone
                seeds.setdefault(name, []).append((at, dev, label))
    rows = {}
    for name, found in seeds.items():
        draws = [resampled(dev.outputs[n], dev.targets, metric, kind).astype(float) for _, dev, n in found]
        rows[name] = {
            "held_out": mean([at.score(label, metric, HELD_OUT).value for at, _, label in found]),
            "dev": mean([at.score(label, metric, "dev").value for at, _, label in found]),
            "each": [round(at.score(label, metric, "dev").value, 4) for at, _, label in found],
            "parameters": record.size(found[0][2]),
            "source": known_heads[name].source,
            "draws": np.mean(draws, 0),
        }
    paper = [name for name in rows if rows[name]["source"] == "paper"]
    rival = max(paper, key=lambda name: rows[name]["held_out"])
    strongest = max(paper, key=lambda name: rows[name]["dev"])
    for row in rows.values():
        for label, other in (("to_best_paper_head", rival), ("to_strongest_paper_head_on_dev", strongest)):
            low, high = np.quantile(row["draws"] - rows[other]["draws"], [0.025, 0.975])
            row[label] = [round(row["dev"] - rows[other]["dev"], 4), round(float(low), 4), round(float(high), 4)]
    for row in rows.values():
        del row["draws"]
    encoder = mean([run.results.at(mark).score(ENCODER, metric, "dev").value for run in runs])
    costs = {name: round(seconds, 1) for name, seconds in results.at(mark).costs.items()}
    return {
        "task": results.task,
        "metric": metric,
        "seconds": record.costs.seconds,
        "costs": costs,
        "encoder": encoder,
        "best_paper_head": rival,
        "strongest_paper_head_on_dev": strongest,
        "heads": rows,
    }


def span_league(data: str, backbone: str, limit: int, seeds: int, polish: int | None) -> None:
    heads = f"paper:seed=0..{seeds - 1},adapter-64-ngram:seed=0..{seeds - 1},adapter-64-normalised:seed=0..{seeds - 1}"
    run = fitted(f"zoo-squad2-{limit}-{polish}", "squad2", data=f"{data}/SQuAD2", backbone=backbone, heads=heads,
                 limit=limit, dev_limit=1000, epochs="0", marks="0", polish=polish)  # fmt: skip
    result = league_of([run], "0", "found_f1")
    for mark, scores in SPAN_SCORES.items():
        printed = {name: f1 for name, (_, f1) in scores.items()}
        ours = [result["heads"][name]["dev"] for name in printed]
        found = spearmanr(ours, list(printed.values()))
        result[f"rank correlation, {mark}"] = {"spearman": round(found.statistic, 3), "p": round(found.pvalue, 4)}
        for name, value in printed.items():
            result["heads"][name][f"paper, {mark}"] = value
    keep("league-squad2", result)


def mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 4)


def table() -> str:
    lines: list[str] = []
    for file in sorted(RESULTS.glob("league-*.json")):
        result = json.loads(file.read_text())
        title = f"{file.stem}: {result['metric']}, encoder {result['encoder']:.3f}, {result['seconds']:.0f} s a run"
        lines += ["", f"### {title}", ""]
        head = "head | source | parameters | seeds | held-out | dev | dev - strongest paper head on dev [95%]"
        printed = [f"paper, {mark}" for mark in ("3/10", "1")] if result["task"] == "squad2" else []
        head += "".join(f" | {one}" for one in printed)
        lines += [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
        for name, row in sorted(result["heads"].items(), key=lambda item: -item[1]["held_out"]):
            value, low, high = row["to_strongest_paper_head_on_dev"]
            cells = [name, row["source"], f"{row['parameters']:,}", str(len(row["each"])), f"{row['held_out']:.3f}"]
            cells += [f"{row['dev']:.3f}", f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"]
            cells += [f"{row[one]:.3f}" if one in row else "" for one in printed]
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"\n{key} with the paper: {value}" for key, value in result.items() if key.startswith("rank")]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
