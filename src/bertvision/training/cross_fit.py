"""Cross-fitting: train everything once per fold, and let it answer the rows that it was not trained on.

A tenth of a few hundred rows is too few to choose on. With folds, every row is judged by models that have not seen it,
and the models that ship are trained on all rows.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from safetensors.numpy import load_file, save_file

from bertvision.backbones.tokenise import JOINT
from bertvision.heads.variants import build
from bertvision.inference.answer import Outputs
from bertvision.options import folds_of
from bertvision.prepare import Prepared
from bertvision.tasks.sampling import folds
from bertvision.training import lead, marks, shared
from bertvision.training.deadline import STATES, TUNE, Watch, piece
from bertvision.training.loop import Loop, loop_of
from bertvision.training.reported import windows_of
from bertvision.training.shared import Shared
from bertvision.types import HELD_OUT, TRAIN

FILE = "said.safetensors"
BETWEEN = "\x1f"  # between the parts of a name in that file


@dataclass
class LeftOut:
    """What models said about rows they were left out of, for every mark in order: way -> model -> (N, C)."""

    marks: list[dict[str, Outputs]]

    def save(self, folder: Path) -> None:
        flat = {
            BETWEEN.join((str(number), way, f"{place:06}", name)): np.ascontiguousarray(values)
            for number, ways in enumerate(self.marks)
            for way, outputs in ways.items()
            for place, (name, values) in enumerate(outputs.items())
        }
        folder.mkdir(exist_ok=True)
        save_file(flat, folder / f"{FILE}.tmp")
        (folder / f"{FILE}.tmp").rename(folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> "LeftOut | None":
        """What an interrupted run had found, if it got that far."""
        if not (folder / FILE).exists():
            return None
        found: dict[int, dict[str, Outputs]] = {}
        for key, values in sorted(load_file(folder / FILE).items()):  # the order of models breaks ties
            number, way, _, name = key.split(BETWEEN)
            found.setdefault(int(number), {}).setdefault(way, {})[name] = values
        return cls([found[number] for number in sorted(found)])


@dataclass(frozen=True)
class CrossFitted:
    """What comes of it: the answers, the setting they belong to, and the states that all fits at mark 0 read."""

    left_out: LeftOut
    setting: Prepared
    read: Shared | None


def cross_fit(setting: Prepared, accelerator: Accelerator, folder: Path, watch: Watch) -> CrossFitted:
    """Train on all folds but one, for each fold in turn. The encoder is as before when this ends. If time becomes
    short, the last folds are left out: the setting then has fewer held-out rows."""
    used, count = folds_of(setting.recipe.folds)
    fold = folds(setting.parts[TRAIN], count)
    places = np.flatnonzero(fold < used)  # the rows of HELD_OUT
    initial = {name: value.clone() for name, value in setting.encoder.model.state_dict().items()}
    found: list[dict[str, Outputs]] = [{} for _ in setting.recipe.fractions()]
    shutil.rmtree(folder, ignore_errors=True)  # states of one fold, from before an interruption
    read = _read(setting, watch.of_fold(0))
    for number in range(used):
        part, rows = _without(setting, fold == number), np.flatnonzero(fold[places] == number)
        setting.progress.say(f"fold {number + 1} of {used}: {len(part.parts[TRAIN])} train, {len(rows)} left out")
        own = _split(setting, fold == number, read)
        by_mark = [*_answers(part, own, accelerator, folder, watch.of_fold(number), number > 0)]
        setting.encoder.model.load_state_dict(initial)
        if len(by_mark) < len(found):
            setting.progress.say(f"budget: in the time, {number} of {used} folds")
            found = [_of(ways, fold[places] < number) for ways in found]
            return CrossFitted(LeftOut(found), using(setting, number), read)
        for here_by_way, made in zip(found, by_mark, strict=True):
            for way, said in made.said.items():
                here = here_by_way.setdefault(way, {})
                for name, values in said.outputs[HELD_OUT].items():
                    here.setdefault(name, np.empty((len(places), values.shape[1])))[rows] = values
    return CrossFitted(LeftOut(found), setting, read)


def _read(setting: Prepared, watch: Watch) -> Shared | None:
    """The states of mark 0, where folds have them in common."""
    ways = list(dict.fromkeys([JOINT, *marks.ways_of(setting)]))
    if not shared.fits(setting):
        return None
    return shared.read(setting, ways, watch.turn(*(piece(STATES, Fraction(0), way) for way in ways)))


def _split(setting: Prepared, left_out: np.ndarray, read: Shared | None) -> dict[str, Shared]:
    """What the parts of one fold have of them."""
    if read is None:
        return {}
    rows = {TRAIN: np.flatnonzero(~left_out), HELD_OUT: np.flatnonzero(left_out)}
    return {name: read.of(windows_of(setting.encoded[TRAIN], some)) for name, some in rows.items()}


def _of(ways: dict[str, Outputs], rows: np.ndarray) -> dict[str, Outputs]:
    return {way: {name: values[rows] for name, values in outputs.items()} for way, outputs in ways.items()}


def using(setting: Prepared, used: int) -> Prepared:
    """The setting in which only the rows of the first folds are held-out rows."""
    count = folds_of(setting.recipe.folds)[1]
    rows = np.flatnonzero(folds(setting.parts[TRAIN], count) < used)
    encoded = setting.encoded | {HELD_OUT: setting.encoded[TRAIN].take(rows)}
    return replace(
        setting,
        recipe=replace(setting.recipe, folds=f"{used}/{count}"),
        parts=setting.parts | {HELD_OUT: setting.parts[TRAIN].take(rows)},
        encoded=encoded,
        windows={name: one.together for name, one in encoded.items()},
    )


def _without(setting: Prepared, left_out: np.ndarray) -> Prepared:
    """The setting of one fold: the rows that are left out are its held-out rows."""
    rows = {TRAIN: np.flatnonzero(~left_out), HELD_OUT: np.flatnonzero(left_out)}
    encoded = {name: setting.encoded[TRAIN].take(some) for name, some in rows.items()}
    return replace(
        setting,
        words=None,  # it has seen the rows that are left out
        parts={name: setting.parts[TRAIN].take(some) for name, some in rows.items()},
        encoded=encoded,
        windows={name: one.together for name, one in encoded.items()},
    ).with_words()


def _answers(
    setting: Prepared, read: dict[str, Shared], accelerator: Accelerator, folder: Path, watch: Watch, optional: bool
) -> Iterator[marks.Answers]:
    """Train as a run does, and answer the held-out rows at every mark. An `optional` fold ends if time is short.
    `read`: the states of its parts at mark 0, if they were read."""
    recipe = setting.recipe
    loop = loop_of(setting, build(setting.names, setting.shape, recipe.seed, accelerator.device), accelerator)
    total = loop.step_of(Fraction(recipe.epochs))
    for mark in recipe.fractions():
        begin = piece(TUNE, mark) if mark else piece(STATES, mark, (marks.ways_of(setting) or [JOINT])[0])
        if optional and watch.strained(watch.prefix + begin):
            return
        _advance(loop, setting, mark, total, watch)
        made = marks.answers_at(setting, loop.ridden, str(mark), folder, [HELD_OUT], watch, {} if mark else read)
        loop.start_from(made.solved)
        yield made


def _advance(loop: Loop, setting: Prepared, mark: Fraction, total: int, watch: Watch) -> None:
    until, first = loop.step_of(mark), loop.step
    if until <= loop.step:
        return
    if loop.lead is not None and not loop.led:
        lead.start(loop.lead, setting)
        loop.led = True
    turn = watch.turn(piece(TUNE, mark))
    with setting.progress.bar(f"fine-tune to {mark}", until, loop.step) as bar:

        def after_step(loss: float) -> None:
            bar.tick(1)
            turn.done(1 / (until - first))

        # At least a step, so that every fold has the same models.
        loop.advance(until, total, after_step, lambda: turn.over() if loop.step else 0.0)
