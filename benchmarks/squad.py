"""SQuAD 2.0 over fine-tuning: encoder, heads and ensembles, and the paper's three claims; one small file per run.

    python -m benchmarks.squad run --data ../shared/data/SQuAD2 --limit 8000     # the run directory is kept, see --runs
    python -m benchmarks.squad table                                             # Markdown for docs/lab-notes

The claims, each with a paired bootstrap on dev:

(a) a head scores above the encoder at equal fine-tuning;
(b) an ensemble scores above both;
(c) a head trained on the first mark's states scores higher on the last mark's states than on those it was trained on.

`rescore` lets the checkpoints of a finished run answer again, and selects and scores with the current code.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import bertvision
from bertvision.backbones import encoder as backbones
from bertvision.backbones.tokenise import tokenise
from bertvision.inference.answer import Target, answer
from bertvision.kinds import kinds
from bertvision.metrics.intervals import Score, compare, score
from bertvision.prepare import parts_of, prepare
from bertvision.progress import Progress
from bertvision.records import ENCODER, GREEDY, MAX, ModelName, Results
from bertvision.runs.checkpoints import load_heads
from bertvision.runs.directory import Run
from bertvision.runs.predictions import SplitPredictions, write_predictions
from bertvision.states.passes import Reads, clean_pass
from bertvision.tasks import load as load_task
from bertvision.training import marks
from bertvision.training.deadline import Clock, Watch
from bertvision.types import HELD_OUT
from bertvision_paper.plan import PLAIN

RESULTS = Path(__file__).parent / "results" / "squad"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "rescore", "table"])
    parser.add_argument("--data", default="../shared/data/SQuAD2")
    parser.add_argument("--task", default="squad2")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--limit", type=int, default=8000)
    parser.add_argument("--dev-limit", type=int, default=2000)
    parser.add_argument("--epochs", default="1")
    parser.add_argument("--marks", default="1/4,1/2,1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    if given.action == "table":
        print(table())
        return
    names = ("task", "data", "backbone", "limit", "dev_limit", "epochs", "marks", "seed")
    options = {name: getattr(given, name) for name in names}
    label = f"{given.task}-{Path(given.backbone).name}-{given.limit}-{given.epochs}-{given.seed}".replace("/", "_")
    out = given.runs / label
    # As the tables in docs/lab-notes were made.
    run = Run(out) if out.exists() else bertvision.fit(options.pop("task"), out=out, **PLAIN, **options)
    if given.action == "rescore":
        rescore(run)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{label}.json").write_text(json.dumps(summary(run), indent=1) + "\n")


def summary(run: Run) -> dict[str, Any]:
    record, results = run.record, run.results
    kind, costs = record.kind, record.costs
    assert costs is not None
    options = {name: value for name, value in record.recipe.as_dict().items() if name not in ("out", "data")}
    found = []
    for one in results.marks:
        dev = run.predictions(one.mark)["dev"]
        metrics = ("f1", "exact", "found_f1") if kind == "span" else ("accuracy", "f1")
        compared = [(name, ENCODER) for name in ("best_head", "selected")]
        compared += [(name, ENCODER) for name in one.models if ModelName.parse(name).ensemble]
        named: dict[str, Any] = {"best_head": one.best_head, "selected": one.selected}
        differences = {
            f"{above} - {below}": {
                metric: _difference(dev, named.get(below, below), named.get(above, above), metric, kind)
                for metric in metrics
            }
            for above, below in [*compared, (MAX, "best_head"), (GREEDY, "best_head")]
        }
        kept: dict[str, Any] = {"epoch": one.mark, "selected": one.selected, "best_head": one.best_head}
        kept |= {"costs": one.costs, "seconds": one.seconds, "null_thresholds": one.null_thresholds or None}
        for split in (HELD_OUT, "dev"):
            kept[split] = {
                model: {metric: _rounded(score) for metric, score in scores.items()}
                for model, scores in one.scores[split].items()
            }
        found.append(kept | {"differences": differences})
    result = {"options": options, "metrics": record.metrics, "selected": asdict(results.selected), "marks": found}
    result |= {"costs": asdict(costs), "parameters": record.parameters, "versions": record.versions}
    result["examples"] = {name: part.examples for name, part in record.data.items()}
    if kind == "span" and len(found) > 1:
        result["transfer"] = transfer(run, results.marks[0].mark, results.last.mark)
    return result


def rescore(run: Run) -> None:
    """Let the checkpoints of a finished run answer again; select and score with the current code."""
    setting = prepare(run.record.recipe, Progress())
    targets = {split: setting.targets(split) for split in setting.evaluated}
    results, rescored = run.results, []
    for old in results.marks:
        folder = run.mark_folder(old.mark)
        heads, _ = load_heads(folder, setting.shape, list(old.ways))
        encoder = backbones.load(str(folder / "encoder"), 2, 0, span=setting.shape.span, pooled=setting.shape.pooled)
        # Without polish, all heads answer as they were saved.
        there = replace(setting, encoder=encoder, recipe=replace(setting.recipe, polish=0))
        watch = Watch(Clock.start())
        made = marks.answers_at(there, heads, old.mark, run.path / "states", there.evaluated, watch)
        ridden = {name: head for name, head in heads.items() if not ModelName.parse(name).polished}
        verdict = marks.judge(there, made, old.mark, ridden)
        past = {name: getattr(old, name) for name in ("step", "seconds", "costs", "modes", "polished_windows")}
        rescored.append(replace(verdict.record, **past))
        write_predictions(run.predictions_file(old.mark), targets, verdict.predictions)
    best = max(rescored, key=lambda one: one.goodness or 0.0)
    Results.of(results.task, results.metric, rescored, best).write(run.path / "scores.json")


def transfer(run: Run, early: str, late: str) -> dict[str, Any]:
    """Heads of the `early` mark on the states of the `late` one. Thresholds are tuned again on held-out questions."""
    record, trained = run.record, run.results.at(early)
    recipe, shape = record.recipe, record.shape
    parts = parts_of(load_task(recipe), recipe)
    names = list(trained.ways)
    heads, _ = load_heads(run.mark_folder(early), shape, names)
    encoder = backbones.load(str(run.mark_folder(late) / "encoder"), 2, 0, span=True, pooled=shape.pooled)
    found: dict[str, Any] = {}
    judges, outputs = {}, {}
    for split in (HELD_OUT, "dev"):
        encoded = tokenise(encoder, parts[split], recipe, split_contexts=True)
        judges[split] = kinds["span"].judge(parts[split], encoded.together, recipe)
        steps = clean_pass(encoder, encoded, Reads(shape.paired, tokens=True))
        outputs[split] = answer(steps, encoded.together, heads, Target("span", record.scale, shape))
    before = run.predictions(early)["dev"].outputs
    for name in names:
        threshold = judges[HELD_OUT].predictions(outputs[HELD_OUT][name]).threshold
        values = judges["dev"].predictions(outputs["dev"][name], threshold).values
        targets = judges["dev"].targets
        found[name] = {
            metric: {
                "own": _rounded(trained.score(name, metric, "dev")),
                "later": _rounded(score(values, targets, metric, "span")),
                "later - own": _rounded(compare(before[name], values, targets, metric, "span")),
            }
            for metric in ("f1", "exact", "found_f1")
        }
    return {"early": early, "late": late, "heads": found}


def _difference(dev: SplitPredictions, one: str, other: str, metric: str, kind: str) -> dict[str, float]:
    return _rounded(compare(dev.outputs[one], dev.outputs[other], dev.targets, metric, kind))


def _rounded(found: Score) -> dict[str, float]:
    return {key: round(value, 4) for key, value in found.as_dict().items()}


def table() -> str:
    lines: list[str] = []
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text())
        metrics = [metric for metric in result["marks"][0]["dev"][ENCODER] if metric != "HasAns_exact"]
        lines += ["", f"### {file.stem}", "", f"| epochs | model | s | {' | '.join(metrics)} |"]
        lines.append("|---" * (3 + len(metrics)) + "|")
        for mark in result["marks"]:
            for model, found in mark["dev"].items():
                chosen = "**" if model == mark["selected"] else ""
                first = found[metrics[0]]
                cells = [f"{first['value']:.3f} [{first['low']:.3f}, {first['high']:.3f}]"]
                cells += [f"{found[metric]['value']:.3f}" for metric in metrics[1:]]
                seconds = f"{mark['seconds']:.0f}" if model == ENCODER else ""
                lines.append(f"| {mark['epoch']} | {chosen}{model}{chosen} | {seconds} | {' | '.join(cells)} |")
        both = [metric for metric in (metrics[0], "found_f1") if metric in metrics]
        lines += ["", f"| epochs | difference [95%] | {' | '.join(both)} |", "|---" * (2 + len(both)) + "|"]
        for mark in result["marks"]:
            for name, found in mark["differences"].items():
                lines.append(
                    f"| {mark['epoch']} | {name} | {' | '.join(_interval(found[metric]) for metric in both)} |"
                )
        for name, found in result.get("transfer", {}).get("heads", {}).items():
            cells = [
                f"{of['own']['value']:.3f} to {of['later']['value']:.3f}: {_interval(of['later - own'])}"
                for of in (found[metric] for metric in both)
            ]
            when = f"{result['transfer']['early']} on {result['transfer']['late']}"
            lines.append(f"| {when} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _interval(found: dict[str, float]) -> str:
    return f"{found['value']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


if __name__ == "__main__":
    main()
