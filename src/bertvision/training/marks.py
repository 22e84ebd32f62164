"""What happens at a mark: heads are polished, every model answers, ensembles are built, all are scored and recorded."""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from bertvision.backbones.tokenise import JOINT, SEPARATE
from bertvision.heads.base import Head
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.pooling import LearnedPooling
from bertvision.heads.variants import build
from bertvision.inference.answer import Outputs, Target, answer
from bertvision.inference.select import choose, combined, constant, majority, scores
from bertvision.kinds import Predictions, goodness
from bertvision.prepare import Prepared, Setting
from bertvision.records import MAJORITY, WORDS, Ensemble, MarkRecord, ModelName
from bertvision.states.passes import clean_pass
from bertvision.states.sources import Memory
from bertvision.training.deadline import ANSWERS, DEV, HEADS, STATES, Watch, piece
from bertvision.training.polish import Lesson, Supply, polish, supplied
from bertvision.training.reported import Batches
from bertvision.training.shared import Shared
from bertvision.types import HELD_OUT, TRAIN


@dataclass
class Said:
    """What models said that read pairs in one way: the heads, and the outputs of all by split."""

    heads: dict[str, Head] = field(default_factory=dict)
    outputs: dict[str, Outputs] = field(default_factory=dict)  # split -> model -> (N, C)


@dataclass
class Answers:
    """What every single model said at one mark, by the way to read pairs, and what each part cost."""

    said: dict[str, Said] = field(default_factory=dict)  # by way
    solved: dict[str, Head] = field(default_factory=dict)  # by label: polished heads that read pairs jointly
    modes: dict[str, str] = field(default_factory=dict)  # way -> where polished heads got their states from
    polished_windows: int | None = None  # how many windows' token states fit in memory, for spans
    seconds: dict[str, float] = field(default_factory=dict)
    dev_limit: int | None = None  # rows of each dev split that all models answered, if time ran out


@dataclass
class Settled:
    """One answer of each model: of two heads with one name that read pairs differently, the better one."""

    outputs: dict[str, Outputs]  # split -> model
    heads: dict[str, Head] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)  # head -> reads pairs joint or separate


@dataclass(frozen=True)
class Verdict:
    """The record of a mark, and what is saved beside it."""

    record: MarkRecord
    heads: dict[str, Head]
    ensembles: dict[str, Ensemble]
    predictions: dict[str, dict[str, Predictions]]  # split -> model


NOTHING: Mapping[str, Shared] = {}


def answers_at(
    setting: Prepared,
    ridden: dict[str, Head],
    mark: str,
    folder: Path,
    splits: list[str],
    watch: Watch,
    read: Mapping[str, Shared] = NOTHING,
) -> Answers:
    """Let encoder, heads that were trained along and newly polished heads answer the splits, as far as there is time.
    A temporary store of states is in `folder`. `read`: states of splits that were read before."""
    made, ways = Answers(), ways_of(setting, Fraction(mark))
    for way in dict.fromkeys([JOINT, *ways]):
        if way in ways[1:] and not watch.of_a_fold and watch.turn(piece(STATES, Fraction(mark), way)).over() >= 1:
            setting.progress.say(f"budget: no time to read pairs {way}")
            break
        heads = dict(ridden) if way == JOINT else {}
        if way in ways:
            heads |= _polished(setting, way, mark, made, folder, watch, read.get(TRAIN))
        _answer(setting, way, heads, mark, made, splits, watch, read)
    started = time.perf_counter()
    for split in splits if setting.words is not None else ():
        made.said[JOINT].outputs[split][WORDS] = setting.words_outputs[split]
    made.seconds["words"] = time.perf_counter() - started
    return made


def judge(setting: Setting, made: Answers, mark: str, ridden: dict[str, Head]) -> Verdict:
    """Choose on held-out examples, and score every model on every split; each is decoded once."""
    settled, metrics = _settled(setting, made), setting.dataset.metrics
    ensembles = _with_majority(setting, settled)
    choice = choose(settled.outputs[HELD_OUT], setting.judges[HELD_OUT], setting.metric)
    ensembles |= choice.ensembles
    predictions = {HELD_OUT: choice.predictions}
    for split, outputs in settled.outputs.items():
        if split != HELD_OUT:
            outputs |= {name: combined(one, outputs, setting.dataset.kind) for name, one in choice.ensembles.items()}
            predictions[split] = {
                name: setting.judges[split].predictions(values, choice.predictions[name].threshold)
                for name, values in outputs.items()
            }
    record = MarkRecord(
        mark=mark,
        selected=choice.selected,
        best_head=choice.best_head,
        ways=settled.ways,
        scores={split: scores(setting.judges[split], said, metrics) for split, said in predictions.items()},
        costs=made.seconds,
        goodness=choice.goodness,
        modes=made.modes,
        layer_profiles=_profiles(settled, ridden),
        layer_weights=_weights(settled),
        polished_windows=made.polished_windows,
    )
    if setting.shape.span:
        record.null_thresholds = {name: said.threshold for name, said in choice.predictions.items()}
    return Verdict(record, settled.heads, ensembles, {split: predictions[split] for split in setting.evaluated})


def _with_majority(setting: Setting, settled: Settled) -> dict[str, Ensemble]:
    """Add the answers of the constant model. Spans have none."""
    if setting.shape.span:
        return {}
    found = majority(setting.judges[HELD_OUT], setting.dataset.outputs)
    for split, outputs in settled.outputs.items():
        outputs[MAJORITY] = constant(found, len(setting.parts[split]))
    return {MAJORITY: found}


def _settled(setting: Setting, made: Answers) -> Settled:
    found = Settled({split: {} for split in setting.evaluated})
    for way, said in made.said.items():
        held_out = said.outputs[HELD_OUT]
        worse = {name for name in said.heads if not _better(setting, name, held_out, found.outputs[HELD_OUT])}
        for name in said.heads.keys() - worse:
            found.heads[name], found.ways[name] = said.heads[name], way
        for split, outputs in said.outputs.items():
            found.outputs[split] |= {name: values for name, values in outputs.items() if name not in worse}
    return found


def _profiles(found: Settled, ridden: dict[str, Head]) -> dict[str, list[float]]:
    """How good each layer is alone. That of a lead is of the encoder before it was fine-tuned, and left out."""
    return {
        name: _rounded(head.profile)
        for name, head in found.heads.items()
        if isinstance(head, ClosedForm) and name not in ridden
    }


def _weights(found: Settled) -> dict[str, list[float]]:
    """Learned layer weights, which are comparable on normalised states only (the pooler's output never is)."""
    return {
        name: _rounded(head.body.weights.detach().softmax(0))
        for name, head in found.heads.items()
        if head.normalised and not head.pooled and isinstance(head.body, LearnedPooling)
    }


def _rounded(values: object) -> list[float]:
    return [round(float(value), 4) for value in values]  # type: ignore[attr-defined]


def ways_of(setting: Prepared, mark: Fraction = Fraction(0)) -> list[str]:
    """How the heads that are polished at a mark, if any, read pairs."""
    if not setting.names or not setting.recipe.polishes(mark):
        return []
    if setting.encoded[TRAIN].alone is None:
        return [JOINT]
    return [JOINT, SEPARATE] if setting.recipe.pairs == "auto" else [setting.recipe.pairs]


def _polished(
    setting: Prepared, way: str, mark: str, made: Answers, folder: Path, watch: Watch, read: Shared | None
) -> dict[str, Head]:
    """Heads trained on the states of the encoder as it is at this mark."""
    recipe, encoder = setting.recipe, setting.encoder
    heads = build(setting.names, setting.shape, recipe.seed, encoder.device)
    targets, ranks, weights = setting.train_targets(), setting.train_ranks(), setting.train_weights()
    started = time.perf_counter()
    with (
        supplied(setting, way, heads, mark, folder, watch.turn(piece(STATES, Fraction(mark), way)))
        if read is None
        else nullcontext(Supply("memory", Memory(read.states[way], recipe.seed)))
    ) as supply:
        made.seconds[f"collect_{way}_train"] = time.perf_counter() - started
        made.modes[way], started = supply.mode, time.perf_counter()
        if supply.rows is not None:
            made.polished_windows = len(supply.rows)
            targets, ranks = targets[supply.rows], ranks[supply.rows] if ranks is not None else None
            weights = None if weights is None else weights[supply.rows]
        lesson = Lesson(supply.source, targets, setting.dataset.kind, ranks, weights)
        with setting.progress.bar(f"mark {mark}: polish ({way})", supply.source.steps(recipe.polish)) as bar:
            polish(heads, lesson, recipe, bar.tick, watch.turn(piece(HEADS, Fraction(mark), way)))
    made.seconds[f"polish_{way}"] = time.perf_counter() - started
    if way == JOINT:
        made.solved = heads
    return {str(ModelName(name, polished=True)): head for name, head in heads.items()}


def _answer(
    setting: Prepared,
    way: str,
    heads: dict[str, Head],
    mark: str,
    made: Answers,
    splits: list[str],
    watch: Watch,
    read: Mapping[str, Shared],
) -> None:
    """Add the answers of the encoder (joint) and of `heads`. If time runs out, those on dev end early."""
    target, found = Target(setting.dataset.kind, setting.scale, setting.shape), Said(heads)
    turn = watch.turn(*(piece(what, Fraction(mark), way) for what in (ANSWERS, DEV)))
    windows = sum(len(setting.encoded[one]) for one in splits)
    with setting.progress.bar(f"mark {mark}: answers ({way})", windows) as bar:
        for split in splits:
            started, encoded = time.perf_counter(), setting.encoded[split]
            limited = watch.limited and split not in read
            batches = Batches(setting, split, way, turn, len(encoded) / windows) if limited else None
            if split in read:
                steps = read[split].steps(way)
            else:
                steps = clean_pass(setting.encoder, encoded, setting.reads, way=way, batches=batches)
            found.outputs[split] = answer(steps, encoded.together, heads, target, bar.tick)
            made.seconds[f"answer_{way}_{split}"] = time.perf_counter() - started
            if batches is not None and batches.size < len(setting.parts[split]):
                made.dev_limit = min(batches.size, made.dev_limit or batches.size)
    made.said[way] = found


def _better(setting: Setting, name: str, found: Outputs, rivals: Outputs) -> bool:
    judge = setting.judges[HELD_OUT]
    if name not in rivals:
        return True
    ours, theirs = (
        goodness(judge, outputs[name], judge.predictions(outputs[name]), setting.metric) for outputs in (found, rivals)
    )
    return ours > theirs
