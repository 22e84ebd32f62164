"""What happens at a mark: every model answers, polished heads are trained, ensembles are made, all are scored."""

import time
from dataclasses import dataclass, field
from typing import Any

from bertvision.ensembling import Outputs
from bertvision.heads.base import Head
from bertvision.states import HiddenStates
from bertvision.training.checkpoints import POLISHED
from bertvision.training.collect import collect, collect_separate
from bertvision.training.heads import build, predict
from bertvision.training.polish import polish, steps_of
from bertvision.training.selection import Ensemble, best, ensembles, goodness, score_all
from bertvision.training.setting import HELD_OUT, Setting


@dataclass
class Report:
    """Predictions of every model on every split at one mark, the heads behind them, and what each part cost."""

    outputs: dict[str, Outputs]  # split -> model -> (N, C)
    heads: dict[str, Head] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)  # head -> reads pairs joint or separate
    ensembles: dict[str, Ensemble] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def report(setting: Setting, ridden: dict[str, Head], mark: str) -> Report:
    """Let encoder, ridden heads, newly polished heads and ensembles answer all evaluated splits."""
    made = Report({split: {} for split in setting.evaluated})
    ways = _ways(setting)
    for way in dict.fromkeys(["joint", *ways]):
        polished = way in ways
        states = _collect(setting, way, [*setting.evaluated, *(["train"] if polished else [])], mark, made)
        if way == "joint":
            _add(setting, made, states, ridden, way)
        if polished:
            _add(setting, made, states, _polish(setting, states.pop("train"), way, ridden, mark, made), way)
    made.ensembles = ensembles(made.outputs[HELD_OUT], setting.targets(HELD_OUT), setting.metric)
    for outputs in made.outputs.values():
        outputs |= {name: ensemble.of(outputs) for name, ensemble in made.ensembles.items()}
    return made


def entry(setting: Setting, made: Report) -> dict[str, Any]:
    """The mark's part of scores.json: choices on held-out data, and scores of every model on every split."""
    answers, truth = made.outputs[HELD_OUT], setting.targets(HELD_OUT)
    heads = {name: values for name, values in answers.items() if name in made.heads}
    chosen = {
        "selected": best(answers, truth, setting.metric),
        "best_head": best(heads, truth, setting.metric) if heads else None,
        "pairs": made.pairs,
    }
    metrics = setting.dataset.metrics
    return chosen | {split: score_all(made.outputs[split], setting.targets(split), metrics) for split in made.outputs}


def _ways(setting: Setting) -> list[str]:
    """How pairs are read by the heads that are polished."""
    if not setting.names or not setting.options.polish:
        return []
    if not setting.shape.pairs:
        return ["joint"]
    return ["joint", "separate"] if setting.options.pairs == "auto" else [setting.options.pairs]


def _collect(setting: Setting, way: str, splits: list[str], mark: str, made: Report) -> dict[str, HiddenStates]:
    found = {}
    passes = sum(len(setting.encoded[split]) for split in splits) * (2 if way == "separate" else 1)
    with setting.progress.bar(f"mark {mark}: states ({way})", passes) as bar:
        for split in splits:
            started = time.perf_counter()
            if way == "separate":
                found[split] = collect_separate(setting.encoder, setting.encoded[split], bar.tick)
            else:
                logits, found[split] = collect(setting.encoder, setting.encoded[split], bar.tick)
                if split in made.outputs:
                    made.outputs[split]["encoder"] = setting.kind.outputs(logits, setting.scale)
            made.seconds[f"collect_{way}_{split}"] = time.perf_counter() - started
    return found


def _polish(
    setting: Setting, states: HiddenStates, way: str, ridden: dict[str, Head], mark: str, made: Report
) -> dict[str, Head]:
    started, options = time.perf_counter(), setting.options
    heads = build(setting.names, setting.shape, options.seed, setting.encoder.device)
    if options.polish_from == "ridden" and way == "joint":
        for name, head in ridden.items():
            heads[name].load_state_dict(head.state_dict())
    with setting.progress.bar(f"mark {mark}: polish ({way})", steps_of(len(states), options.polish)) as bar:
        polish(
            heads,
            states,
            setting.train_targets(),
            setting.dataset.kind,
            epochs=options.polish,
            lr=options.head_lr,
            seed=options.seed,
            tick=bar.tick,
        )
    made.seconds[f"polish_{way}"] = time.perf_counter() - started
    return {name + POLISHED: head for name, head in heads.items()}


def _add(setting: Setting, made: Report, states: dict[str, HiddenStates], heads: dict[str, Head], way: str) -> None:
    """Put heads' answers into the report; of two heads with one name the better on held-out data stays."""
    answers = {
        split: {name: setting.kind.outputs(logits, setting.scale) for name, logits in predict(heads, part).items()}
        for split, part in states.items()
        if split in made.outputs
    }
    truth = setting.targets(HELD_OUT)
    for name, head in heads.items():
        rival = made.outputs[HELD_OUT].get(name)
        mine = goodness(answers[HELD_OUT][name], truth, setting.metric)
        if rival is not None and mine <= goodness(rival, truth, setting.metric):
            continue
        made.heads[name], made.pairs[name] = head, way
        for split in made.outputs:
            made.outputs[split][name] = answers[split][name]
