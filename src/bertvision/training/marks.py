"""What happens at a mark: heads are polished, every model answers, ensembles are made, all are scored."""

import time
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from bertvision.ensembling import Outputs
from bertvision.heads.base import Head
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.pooling import LearnedPooling
from bertvision.training.answering import answer
from bertvision.training.checkpoints import POLISHED
from bertvision.training.heads import build
from bertvision.training.judging import Predictions, goodness, scores
from bertvision.training.polish import polish
from bertvision.training.selection import Ensemble, best, ensembles, preferred
from bertvision.training.setting import Setting
from bertvision.training.supply import supplied
from bertvision.types import HELD_OUT


@dataclass
class Report:
    """Predictions of every model on every split at one mark, the heads behind them, and what each part cost."""

    outputs: dict[str, Outputs]  # split -> model -> (W, C)
    heads: dict[str, Head] = field(default_factory=dict)
    pairs: dict[str, str] = field(default_factory=dict)  # head -> reads pairs joint or separate
    ridden: set[str] = field(default_factory=set)  # those heads that were trained on the way
    joint: dict[str, Head] = field(default_factory=dict)  # polished, reading pairs joint, whether or not that is better
    ensembles: dict[str, Ensemble] = field(default_factory=dict)
    thresholds: dict[str, float | None] = field(default_factory=dict)  # model -> null threshold, for spans
    predictions: dict[str, dict[str, Predictions]] = field(default_factory=dict)  # split -> model -> per example
    modes: dict[str, str] = field(default_factory=dict)  # way of reading pairs -> where polished heads had states from
    polished_windows: int | None = None  # how many windows' token states fit in memory, for spans
    seconds: dict[str, float] = field(default_factory=dict)


def report(setting: Setting, ridden: dict[str, Head], mark: str, folder: Path) -> Report:
    """Let encoder, ridden heads, newly polished heads and ensembles answer all evaluated splits. States that are kept
    on disk meanwhile lie in `folder`."""
    made = Report({split: {} for split in setting.evaluated}, ridden=set(ridden))
    ways = ways_of(setting, Fraction(mark))
    for way in dict.fromkeys(["joint", *ways]):
        heads = dict(ridden) if way == "joint" else {}
        if way in ways:
            heads |= _polish(setting, way, ridden, mark, made, folder)
        answer_all(setting, way, heads, mark, made)
    conclude(setting, made)
    return made


def conclude(setting: Setting, made: Report) -> None:
    """Ensembles, thresholds and predictions per example, from what every single model said."""
    judge = setting.judges[HELD_OUT]
    made.ensembles = ensembles(made.outputs[HELD_OUT], judge, setting.metric)
    for outputs in made.outputs.values():
        outputs |= {name: ensemble.of(outputs, judge.kind) for name, ensemble in made.ensembles.items()}
    made.thresholds = {name: judge.threshold(values) for name, values in made.outputs[HELD_OUT].items()}
    for split, outputs in made.outputs.items():
        made.predictions[split] = {
            name: setting.judges[split].predictions(values, made.thresholds[name]) for name, values in outputs.items()
        }


def entry(setting: Setting, made: Report) -> dict[str, Any]:
    """The mark's part of scores.json: choices on held-out data, and scores of every model on every split."""
    answers, judge = made.outputs[HELD_OUT], setting.judges[HELD_OUT]
    heads = {name: values for name, values in answers.items() if name in made.heads}
    selected = preferred(answers, judge, setting.metric)
    chosen: dict[str, Any] = {
        "selected": selected,
        "goodness": goodness(judge, answers[selected], setting.metric)[0],
        "best_head": best(heads, judge, setting.metric) if heads else None,
        "pairs": made.pairs,
        "modes": made.modes,
    }
    # That of a lead, which rode, is of the encoder before it was fine-tuned.
    solved = {name: head for name, head in made.heads.items() if name not in made.ridden}
    profiles = {name: head.profile for name, head in solved.items() if isinstance(head, ClosedForm)}
    # Of states that are not normalised, as the pooler's never are, weights say nothing: a large one needs but a small.
    weights = {
        name: head.body.weights.detach().softmax(0)
        for name, head in made.heads.items()
        if head.normalised and not head.pooled and isinstance(head.body, LearnedPooling)
    }
    for key, found in (("layer_profiles", profiles), ("layer_weights", weights)):
        if found:
            chosen[key] = {name: [round(float(value), 4) for value in values] for name, values in found.items()}
    if setting.shape.span:
        chosen |= {"null_thresholds": made.thresholds, "polished_windows": made.polished_windows}
    metrics = setting.dataset.metrics
    for split, said in made.predictions.items():
        chosen[split] = {name: scores(setting.judges[split], values, metrics) for name, values in said.items()}
    return chosen


def ways_of(setting: Setting, mark: Fraction = Fraction(0)) -> list[str]:
    """How pairs are read at a mark by the heads that are polished there, if any."""
    if not setting.names or not setting.options.polishes(mark):
        return []
    if setting.encoded["train"].alone is None:
        return ["joint"]
    return ["joint", "separate"] if setting.options.pairs == "auto" else [setting.options.pairs]


def _polish(
    setting: Setting, way: str, ridden: dict[str, Head], mark: str, made: Report, folder: Path
) -> dict[str, Head]:
    """Heads trained on the states of the encoder as it is at this mark."""
    options, encoder = setting.options, setting.encoder
    heads = build(setting.names, setting.shape, options.seed, encoder.device, encoder.top)
    if way == "separate":  # one that needs every token reads both texts at once
        heads = {name: head for name, head in heads.items() if not head.sequences}
    targets, ranks = setting.train_targets(), setting.train_ranks()
    started = time.perf_counter()
    with supplied(setting, way, heads, mark, folder) as supply:
        made.seconds[f"collect_{way}_train"] = time.perf_counter() - started
        made.modes[way], started = supply.mode, time.perf_counter()
        if supply.rows is not None:
            made.polished_windows = len(supply.rows)
            targets, ranks = targets[supply.rows], ranks[supply.rows] if ranks is not None else None
        with setting.progress.bar(f"mark {mark}: polish ({way})", supply.source.steps(options.polish)) as bar:
            polish(
                supply.heads,
                supply.source,
                targets,
                setting.dataset.kind,
                epochs=options.polish,
                lr=options.head_lr,
                seed=options.seed,
                ranks=ranks,
                tick=bar.tick,
            )
    made.seconds[f"polish_{way}"] = time.perf_counter() - started
    if way == "joint":
        made.joint = supply.heads
    return {name + POLISHED: head for name, head in supply.heads.items()}


def answer_all(setting: Setting, way: str, heads: dict[str, Head], mark: str, made: Report) -> None:
    """Put the answers of the encoder (joint) and of `heads` into the report; of two heads with one name the better on
    held-out data stays."""
    found: dict[str, Outputs] = {}
    total = sum(len(setting.encoded[split]) for split in made.outputs) * (2 if way == "separate" else 1)
    with setting.progress.bar(f"mark {mark}: answers ({way})", total) as bar:
        for split in made.outputs:
            started = time.perf_counter()
            found[split] = answer(
                setting.encoder,
                setting.encoded[split],
                way,
                heads,
                setting.shape,
                setting.dataset.kind,
                setting.scale,
                bar.tick,
            )
            made.seconds[f"answer_{way}_{split}"] = time.perf_counter() - started
    if way == "joint":
        for split, outputs in found.items():
            made.outputs[split]["encoder"] = outputs["encoder"]
    judge, held = setting.judges[HELD_OUT], found[HELD_OUT]
    for name, head in heads.items():
        rival = made.outputs[HELD_OUT].get(name)
        if rival is not None and goodness(judge, held[name], setting.metric) <= goodness(judge, rival, setting.metric):
            continue
        made.heads[name], made.pairs[name] = head, way
        for split in made.outputs:
            made.outputs[split][name] = found[split][name]
