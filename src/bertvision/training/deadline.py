"""A budget is a deadline: the clock of a run, and how long each piece of work may take so that the rest still fits.

Work is planned as pieces with estimated seconds, in order. Some are elastic: states of fewer rows, fewer steps. Others
are not: answers to held-out rows, saving. Speed is watched all the time. If the machine slows down, the rest of the
work takes longer by the same factor, and elastic pieces get what is left.
"""

import math
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction

import psutil

STARTUP = 10.0  # seconds from a process's start to its command, at most; an older process did other things before
RESERVE = 0.04  # share of the budget kept back
LATEST = 0.04  # share of the budget by which a run may be late, before it reports on fewer rows
WINDOWS = (3.0, 15.0)  # seconds over which speed is averaged; the slower average counts, as speed may drop again
FLOOR = 0.8  # of the pace: where one estimate was too high, the next may be too low
SLOWEST = 4.0  # pace at which the end of a run is expected at most: it is short, and has less to compute
SLACK = 1.3  # states and heads may take this many times their share, since later work can take less
STRAINED = 0.5  # share of the elastic work below which folds are left out
SHORT, SHORT_SLACK = 0.25, 3.0  # and this many times, as long as it is not more than this part of what is left
FIRST, LAST = "first", "last"  # marks
STATES, HEADS, ANSWERS, DEV, LEAD, TUNE, RECORD, CLOSING = "states heads answers dev lead tune record closing".split()
WORDS = "words"


def piece(what: str, mark: Fraction, way: str = "") -> str:
    """The name of a piece of work. The last mark has no number: the clock decides where it is."""
    return " ".join(filter(None, (LAST if mark else FIRST, what, way)))


def _is(name: str, *kinds: str) -> bool:
    return bool({*kinds} & set(name.split()))


@dataclass(frozen=True)
class Clock:
    """Seconds since a run began."""

    began: float
    now: Callable[[], float] = time.monotonic

    @classmethod
    def start(cls) -> "Clock":
        return cls(time.monotonic())

    @classmethod
    def of_process(cls) -> "Clock":
        """A command begins when its process does."""
        age = time.time() - psutil.Process().create_time()
        return cls(time.monotonic() - min(max(age, 0.0), STARTUP))

    def elapsed(self) -> float:
        return self.now() - self.began

    def resumed(self, elapsed: float) -> "Clock":
        """The clock of a run that had taken this long before."""
        return replace(self, began=self.began - elapsed)


class Pace:
    """How many times as long as planned work takes now: a ratio of sums in which older work counts less and less."""

    def __init__(self, window: float) -> None:
        self.window, self.planned, self.took = window, window, window

    def note(self, planned: float, took: float) -> None:
        kept = math.exp(-took / self.window)
        self.planned, self.took = kept * self.planned + planned, kept * self.took + took

    def value(self) -> float:
        return self.took / self.planned


class Watch:
    """What is left of the time and of the work. Without a budget there is no end and nothing is limited."""

    def __init__(
        self,
        clock: Clock,
        minutes: float | None = None,
        work: Mapping[str, float] | None = None,
        adapt: Callable[[], None] = lambda: None,
    ) -> None:
        """`adapt` is called again and again during work: it may adapt to a machine that others use too."""
        seconds = math.inf if minutes is None else 60 * minutes
        self.clock, self.limited = clock, minutes is not None
        self.end, self.latest = (1 - RESERVE) * seconds, (1 + LATEST) * seconds
        self.work, self.paces, self.prefix = dict(work or {}), [Pace(window) for window in WINDOWS], ""
        self.adapt = adapt

    def of_fold(self, number: int) -> "Watch":
        """The same watch for the work of one fold."""
        view = copy(self)  # which shares the pace
        view.prefix = fold(number)
        return view

    def read_again(self) -> None:
        """States that the first fold reads for all are read once more, since it ended too early or in another
        process."""
        first = fold(0)
        for name in [name for name in self.work if name.startswith(first + FIRST) and _is(name, STATES)]:
            final = name.removeprefix(first)
            self.work[final] = max(self.work[final], self.work[name])

    @property
    def of_a_fold(self) -> bool:
        return self.prefix != ""

    @property
    def pace(self) -> float:
        return max(FLOOR, *(pace.value() for pace in self.paces))

    def turn(self, *names: str, began: float | None = None) -> "Turn":
        """Begin a piece of work, or several at once, or go on with what began earlier."""
        if self.limited:
            self.adapt()
        return Turn(self, [self.prefix + name for name in names], began)

    def after(self, name: str, mark: str = "") -> tuple[float, float]:
        """Planned seconds of the elastic and of the other pieces that come after this one, or only of those at the
        same mark and of closing. Fine-tuning ends before dev rows are left out."""
        names, kinds = list(self.work), (STATES, HEADS, TUNE, *(() if _is(name, TUNE) else (DEV,)))
        rest = names[names.index(name) + 1 :] if name in self.work else []
        rest = [one for one in rest if one.startswith(mark) or one == CLOSING]
        elastic = sum(self.work[one] for one in rest if _is(one, *kinds))
        return elastic, sum(self.work[one] for one in rest) - elastic

    def strained(self, name: str) -> bool:
        """Would this piece of work and all that follow get less than half of the time that they need?"""
        elastic, fixed = self.after(name)
        room = self.end - self.clock.elapsed() - self.pace * fixed
        return self.limited and room < STRAINED * self.pace * (elastic + self.work.get(name, 0.0))

    def fits(self, seconds: float) -> bool:
        """Can this much be done before the run has to close?"""
        closing = min(self.pace, SLOWEST) * self.work.get(CLOSING, 0.0)
        return self.clock.elapsed() + seconds + closing <= self.latest


class Turn:
    """A piece of work in progress."""

    def __init__(self, watch: Watch, names: list[str], began: float | None = None) -> None:
        self.watch, self.name = watch, names[-1]
        self.noted = watch.clock.elapsed()
        self.began = self.noted if began is None else began
        self.planned = sum(watch.work.get(name, 0.0) for name in names)
        self.unit = 0.0  # planned seconds of what was done last

    def restart(self) -> None:
        """Measure from now on: what was done before is not what follows."""
        self.began = self.noted = self.watch.clock.elapsed()

    def done(self, share: float) -> None:
        """Another share of it is done: how fast was that?"""
        now, self.unit = self.watch.clock.elapsed(), share * self.planned
        if self.unit:
            for pace in self.watch.paces:
                pace.note(self.unit, now - self.noted)
        self.noted = now

    def seconds(self) -> float:
        """How long it may take from its beginning, at the pace of the moment."""
        watch = self.watch
        # If there will be no time to fine-tune, mark 0 may use what is left.
        alone = self.name.startswith(FIRST) and watch.strained(self.name)
        elastic, fixed = watch.after(self.name, FIRST if alone else "")
        room = watch.end - watch.pace * fixed - self.began
        own = self.planned or 1.0
        fair = room * own / (own + elastic)
        if room <= 0 or _is(self.name, TUNE):
            return max(0.0, fair)
        return min(room, max(SLACK * fair, min(SHORT_SLACK * fair, SHORT * room)))

    def over(self) -> float:
        """The share of its time that will be over when as much again is done as was done last; from 1 on, stop."""
        if not self.watch.limited:
            return 0.0
        self.watch.adapt()
        seconds = self.seconds()
        return (self.watch.clock.elapsed() - self.began + self.watch.pace * self.unit) / seconds if seconds else 1.0

    def reach(self) -> float:
        """How many times the planned work fits into its time."""
        return self.seconds() / (self.watch.pace * self.planned) if self.watch.limited and self.planned else math.inf


def fold(number: int) -> str:
    """What the names of a fold's work begin with."""
    return f"fold {number + 1} "
