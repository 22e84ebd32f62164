"""`fit --budget`: how much work fits into a time, by what `measuring` finds. The plan is a list of pieces of work;
`deadline` watches that they end in time."""

import math
import time
from dataclasses import replace
from fractions import Fraction

from bertvision.backbones.tokenise import JOINT
from bertvision.errors import UserError
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.variants import build
from bertvision.options import ALL_MARKS, OWN, folds_of
from bertvision.prepare import Prepared, prepare
from bertvision.recipe import Recipe
from bertvision.records import BudgetPlan
from bertvision.tasks.sampling import HELD_OUT_SHARE
from bertvision.training import deadline, lead, measuring, threads
from bertvision.training.cross_fit import using
from bertvision.training.deadline import LATEST, RESERVE, Clock, piece
from bertvision.training.measuring import MarkSeconds, Measured, most_epochs, worth

JUDGING, EXIT, SAVED = 0.3, 0.3, 2e9  # seconds to score a mark and to end the process; bytes saved in a second
MOST_STRETCHED = 4.0  # times as long as on an idle machine: what takes longer waits for a disk, or is a wrong measure
ENOUGH = Fraction(2)  # epochs: folds that leave fewer are given up for more of them
FEWER = (3, 2, 1)  # folds to try one after the other, before there are none
CHOOSING = 50  # held-out rows: on fewer, what is chosen without folds is chance
HUNDREDTH = Fraction(1, 100)
LOOK = 0.55  # largest share of the time that heads at mark 0 may take
AGAIN = 0.15  # a second preparation takes this share of the first, in which libraries and weights are loaded
FEW = 500  # examples that decide which way to read pairs is better
FEWEST_SHARE, FEWEST = 0.05, 50  # of the examples, whichever is less: on fewer, heads learn too little


def check(budget: float, clock: Clock) -> None:
    """Refuse at once what would be over before anything is trained."""
    needed = clock.elapsed() + _stretch(clock.elapsed(), time.process_time()) * (JUDGING + EXIT)
    if (1 + LATEST) * 60 * budget < needed:
        raise UserError(
            f"--budget {budget:g}: starting and saving alone take about {needed:.0f} s. Allow more minutes."
        )


def within(setting: Prepared, clock: Clock, words: float = 0.0) -> tuple[Prepared, BudgetPlan]:
    """The setting with the epochs, marks, folds, reading of pairs and number of examples that the budget allows, and
    the plan of the work. `words`: seconds that this model took, which every fold takes again."""
    recipe, budget, preparing = setting.recipe, setting.recipe.budget, clock.elapsed()
    assert budget is not None
    threads.settle()
    before = time.thread_time()
    measured = replace(measuring.measured(setting, 60 * budget * (1 - RESERVE), clock), words=words)
    size = sum(p.numel() * p.element_size() for p in setting.encoder.parameters())
    ending = JUDGING + EXIT + 4 * size / SAVED  # a checkpoint, and a state with weights and two moments
    closing = _stretch(clock.elapsed() - preparing, time.thread_time() - before) * ending

    def rest() -> float:
        return 60 * budget * (1 - RESERVE) - closing - clock.elapsed()

    chosen = within_time(recipe, rest(), measured)
    if recipe.folds != "0" and setting.request.folds is None:
        recipe, measured, chosen = _folded(recipe, measured, rest(), AGAIN * preparing)
    if chosen.limit != recipe.limit and len(measured.mark) > 1:  # not enough for both ways to read all pairs
        way = better_way(setting, list(measured.mark))
        recipe, measured = replace(recipe, pairs=way), replace(measured, mark={way: measured.mark[way]})
        chosen = within_time(recipe, rest(), measured)
    if chosen.limit != recipe.limit:  # which are prepared once more
        left = rest() - AGAIN * preparing
        chosen = within_time(recipe, left, measured)
        if _fewer(chosen) < (fewest := math.ceil(min(FEWEST_SHARE * measured.rows, FEWEST))):
            if _fewer(within_time(recipe, left + (RESERVE + LATEST) * 60 * budget, measured)) < fewest:
                raise _too_short(budget, left, measured)
            chosen = replace(chosen, limit=fewest)
        share = _fewer(chosen) / measured.rows
        dev = measured.dev_seconds(left) / measured.ways.dev if measured.ways.dev else 1.0
        measured = replace(measured.times(share, share, dev), dev_share=min(1.0, measured.dev_share / dev))
    setting.progress.say(_summary(setting, chosen, measured))
    tuned_by = rest() + clock.elapsed() - _closing(chosen, Fraction(chosen.epochs), measured)
    plan = BudgetPlan(chosen.epochs, tuned_by, work=pieces(chosen, measured, closing))
    if chosen.limit != setting.recipe.limit or "0" == chosen.folds != setting.recipe.folds:
        again = prepare(chosen, setting.progress, encoder=setting.encoder, dataset=setting.dataset)
        return replace(again, request=setting.request), plan
    if chosen.folds != setting.recipe.folds:
        setting = using(setting, folds_of(chosen.folds)[0])
    return replace(setting, recipe=chosen), plan


def _folded(recipe: Recipe, measured: Measured, rest: float, again: float) -> tuple[Recipe, Measured, Recipe]:
    """With as many folds as leave time for enough epochs; without, if a tenth of the rows is enough to choose on.
    `again`: seconds to prepare a run without folds. Returns what to plan with, and the plan."""
    once, single = replace(recipe, folds="0"), measured.without_folds()
    plain, count = within_time(once, rest - again, single), folds_of(recipe.folds)[1]
    few = HELD_OUT_SHARE * measured.rows < CHOOSING
    for enough in (ENOUGH, worth(recipe), Fraction(0)) if few else (ENOUGH,):
        for used in sorted({count, *FEWER} & set(range(1, count + 1)), reverse=True):
            some = recipe if used == count else replace(recipe, folds=f"{used}/{count}")
            chosen = within_time(some, rest, measured)
            if chosen.limit == recipe.limit and Fraction(chosen.epochs) >= min(enough, Fraction(plain.epochs)):
                return some, measured, chosen
    return once, single, plain


def _fewer(chosen: Recipe) -> int:
    assert chosen.limit is not None
    return chosen.limit


def _stretch(wall: float, processor: float) -> float:
    """Seconds that pass in one of our own on a processor, which others use too."""
    return min(max(1.0, wall / max(processor, 1e-9)), MOST_STRETCHED)


def _summary(setting: Prepared, chosen: Recipe, measured: Measured) -> str:
    asked = setting.recipe
    tuning = f"an epoch of fine-tuning takes {measured.epoch:.0f} s, " if measured.epoch < math.inf else ""
    return (
        f"budget {chosen.budget:g} min: {tuning}heads at a mark {sum(measured.ways):.0f} s;"
        f" so {chosen.epochs} epochs, marks at {chosen.marks}"
        + (f", pairs read {chosen.pairs}" if chosen.pairs != asked.pairs else "")
        + (f", folds {chosen.folds}" if chosen.folds != asked.folds else "")
        + (f", {chosen.limit:,} examples" if chosen.limit != asked.limit else "")
    )


def within_time(recipe: Recipe, rest: float, measured: Measured) -> Recipe:
    """The recipe that fits into the `rest` seconds.

    If possible: heads at mark 0, then as much fine-tuning as fits. Without mark 0 if that takes too much of the time.
    Only mark 0 if less than half an epoch fits, which does more harm than good. Fewer examples if not even all of them
    can be read.
    """
    every, first, led = measured.of_all(recipe.folds), _first(recipe, measured).ways, recipe.lead != OWN
    rest -= folds_of(recipe.folds)[0] * measured.words
    whole = _whole(recipe, first)

    def epochs(left: float) -> Fraction:
        found = _epochs(left - every.mark.get(JOINT, every.ways).asked, every)
        return _epochs(left - _closing(recipe, found, every), every)

    for look in (True, False) if led and whole <= LOOK * rest else (False,):
        share = epochs(rest - (whole if look else 0.0) - (every.start if not (look and measured.led) else 0.0))
        if recipe.freeze != "all" and share >= worth(recipe):
            return replace(recipe, epochs=str(share), marks=f"0,{share}" if look else str(share))
    if whole <= rest:
        return replace(recipe, epochs="0", marks="0")
    part = (rest - every.dev_seconds(rest)) / (whole - first.dev)
    if part >= 1:  # there is time for all examples, but not for all of dev, on a sample of which the run then reports
        return replace(recipe, epochs="0", marks="0")
    return replace(recipe, epochs="0", marks="0", limit=max(1, int(part * measured.rows)))


def _first(recipe: Recipe, measured: Measured) -> Measured:
    """All fits at mark 0."""
    used, count = folds_of(recipe.folds)
    return measured.at_first(1.0, 1 + used - used / count, used / count) if count else measured


def pieces(recipe: Recipe, measured: Measured, closing: float) -> dict[str, float]:
    """The seconds of every piece of work of a run, in order."""
    used, count = folds_of(recipe.folds)
    work: dict[str, float] = {}
    for number in range(used):
        share = 1 - 1 / count
        work[deadline.fold(number) + deadline.WORDS] = measured.words
        part, first = measured.times(share, 1 / count, 0.0), measured.at_first(number == 0, share, 1 / count, 0.0)
        work |= {deadline.fold(number) + name: seconds for name, seconds in _pieces(recipe, part, first).items()}
    final = measured.times(held_out=0.0), measured.at_first(0.0, 1.0, 0.0)
    last = _pieces(recipe, *(final if used else (measured, measured)))
    del last[piece(deadline.RECORD, recipe.fractions()[-1])]  # which is a part of closing
    return work | last | {deadline.CLOSING: closing}


def _pieces(recipe: Recipe, later: Measured, first: Measured) -> dict[str, float]:
    work: dict[str, float] = {}
    for mark in recipe.fractions():
        measured = later if mark else first
        if mark:
            again = recipe.lead != OWN and not (work and measured.led)
            work |= {piece(deadline.LEAD, mark): measured.start} if again else {}
            work[piece(deadline.TUNE, mark)] = float(mark) * measured.epoch
        polished = [*measured.mark] if recipe.polishes(mark) else []
        for way in dict.fromkeys([JOINT, *polished]):
            seconds = measured.mark.get(way, measured.ways)
            if way in polished:
                work |= {
                    piece(deadline.STATES, mark, way): seconds.states,
                    piece(deadline.HEADS, mark, way): seconds.heads,
                }
            work[piece(deadline.ANSWERS, mark, way)] = seconds.held_out + measured.dev_share * seconds.dev
            work[piece(deadline.DEV, mark, way)] = (1 - measured.dev_share) * seconds.dev
        work[piece(deadline.RECORD, mark)] = JUDGING
    return work


def _whole(recipe: Recipe, ways: MarkSeconds) -> float:
    return sum(ways) if recipe.polish != 0 else ways.asked


def _closing(recipe: Recipe, epochs: Fraction, measured: Measured) -> float:
    """Seconds at a mark after so much fine-tuning: heads are polished there, or only ride along."""
    polished = recipe.polishes(epochs) or not recipe.polish
    return _whole(recipe, measured.ways) if polished else measured.mark.get(JOINT, measured.ways).asked


def worth_tuning(recipe: Recipe, epochs: float) -> bool:
    """Is it worth to begin, at a mark where time has become short? The held-out rows decide later what ships."""
    return epochs >= worth(recipe) / 2


def ending_at(recipe: Recipe, mark: Fraction) -> Recipe:
    """The recipe of a run that has been fine-tuned up to this mark, where the clock stopped it."""
    polished, planned = recipe.polishes(mark), recipe.polishes(Fraction(recipe.epochs))
    marks = ",".join(map(str, sorted({*recipe.fractions()[:-1], mark})))
    # Only if it was planned is there time to polish.
    return replace(
        recipe, epochs=str(mark), marks=marks, polish_until="0" if polished > planned else recipe.polish_until
    )


def last_mark(recipe: Recipe, steps_per_epoch: int) -> Fraction:
    """How far fine-tuning may go if there is time. It must not cross the limit of polishing, for which time is set
    aside; and with folds all fits go equally far."""
    planned = Fraction(recipe.epochs)
    if recipe.folds != "0" or not planned:
        return planned
    most = max(planned, most_epochs(steps_per_epoch))
    polished = recipe.polish_until != ALL_MARKS and recipe.polishes(planned)
    return min(most, Fraction(recipe.polish_until)) if polished else most


def _too_short(budget: float, rest: float, measured: Measured) -> UserError:
    ways = measured.ways
    few = min(FEWEST_SHARE, FEWEST / measured.rows) * (sum(ways) - ways.dev)
    needed = 60 * budget - rest + few + measured.dev_seconds(2 * few)
    return UserError(
        f"--budget {budget:g}: even with few examples this takes about {needed / 60:.1f} minutes here."
        " Allow more minutes, or set a smaller --dev-limit."
    )


def _epochs(seconds: float, measured: Measured) -> Fraction:
    return min(measured.most, max(Fraction(0), HUNDREDTH * int(100 * seconds / measured.epoch)))


def better_way(setting: Prepared, ways: list[str]) -> str:
    """The way to read pairs in which the states of a few examples say more about their answers, left out one by one."""
    found = {}
    for way in ways:
        head = build(["closed-form"], setting.shape, 0, setting.encoder.device)["closed-form"]
        assert isinstance(head, ClosedForm)
        lead.solve(head, setting, way, FEW, f"pairs read {way}")
        found[way] = float(head.profile.max())
    return max(found, key=lambda way: found[way])
