"""What the results say: points of score and seconds per task, the front of the best, who is first at which budget.

Pure functions of the rows of a results file.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from benchmarks.rivals import OURS, REFERENCE

from bertvision.errors import UserError

Row = dict[str, Any]
REFERENCE_VARIANT, REFERENCE_OUTCOME = "3", "3 epochs"
SAME = ("backbone", "limit", "dev_limit", "threads", "digest", "metric")  # within a task, or nothing can be compared


@dataclass(frozen=True)
class Point:
    """One outcome of one contestant on one task, averaged over seeds."""

    group: str
    contestant: str
    variant: str
    outcome: str
    rows: tuple[Row, ...]  # one per seed

    @property
    def name(self) -> str:
        """Unique within a group and task: of Trainer and LoRA, several variants have outcomes of the same name."""
        note = self.rows[0]["note"]
        return f"{self.outcome}, {note}" if note and self.contestant in ("trainer", "lora") else self.outcome

    @property
    def ours(self) -> bool:
        return self.group == OURS

    @property
    def metric(self) -> str:
        return self.rows[0]["metric"]

    @property
    def score(self) -> float:
        return float(np.mean([row["scores"][self.metric]["value"] for row in self.rows]))

    @property
    def held_out(self) -> float:
        return self.mean("held_out")

    @property
    def seconds(self) -> float:
        """Until the first prediction: what a user waits."""
        return self.mean("ready")

    @property
    def slowest(self) -> float:
        return max(row["ready"] for row in self.rows)

    @property
    def interval(self) -> tuple[float, float]:
        """95%, a bootstrap over dev examples, averaged over seeds."""
        return _interval(np.mean([row["draws"] for row in self.rows], 0))

    @property
    def seeds(self) -> list[int]:
        return sorted(row["seed"] for row in self.rows)

    def mean(self, column: str) -> float:
        return float(np.mean([row[column] for row in self.rows]))

    def above(self, other: "Point") -> tuple[float, float, float]:
        """How much this scores above the other: difference, and its 95% interval, paired on the same dev examples and,
        where both have them, on the same seeds."""
        common = set(self.seeds) & set(other.seeds)
        one, two = (
            replace(point, rows=tuple(row for row in point.rows if row["seed"] in common) or point.rows)
            for point in (self, other)
        )
        draws = np.mean([row["draws"] for row in one.rows], 0) - np.mean([row["draws"] for row in two.rows], 0)
        return one.score - two.score, *_interval(draws)


Pick = Callable[[list[Point], int, str], Point | None]


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def points(rows: Iterable[Row], groups: dict[str, str]) -> dict[str, list[Point]]:
    """task -> its points. `groups`: contestant -> the name it is ranked under."""
    found: dict[str, dict[tuple[str, str, str], list[Row]]] = {}
    settings: dict[str, tuple[Any, ...]] = {}
    for row in rows:
        task, setting = row["task"], tuple(row[name] for name in SAME)
        if settings.setdefault(task, setting) != setting:
            raise UserError(f"The rows of '{task}' differ in {' or '.join(SAME)}: they cannot stand in one table.")
        key = (row["contestant"], row["variant"], row["outcome"])
        found.setdefault(task, {}).setdefault(key, []).append(row)
    return {
        task: [Point(groups[key[0]], *key, tuple(of)) for key, of in by_key.items()] for task, by_key in found.items()
    }


def front(of: list[Point]) -> list[Point]:
    """The points that no other equals in score in less or equal time, by seconds."""
    best: list[Point] = []
    for point in sorted(of, key=lambda point: (point.seconds, -point.score)):
        if not best or point.score > best[-1].score:
            best.append(point)
    return best


def reference(of: list[Point]) -> Point | None:
    """Three epochs of full fine-tuning by Trainer, length grouping on, at the rate that is best on held-out rows."""
    wanted = (REFERENCE, REFERENCE_VARIANT, REFERENCE_OUTCOME)
    return next((point for point in of if (point.group, point.variant, point.outcome) == wanted), None)


def first_to_reach(of: list[Point], group: str, score: float) -> Point | None:
    """The fastest point of a group with at least this score."""
    reached = [point for point in of if point.group == group and point.score >= score]
    return min(reached, key=lambda point: point.seconds, default=None)


def best_within(of: list[Point], group: str, seconds: float, by: str) -> Point | None:
    """A group's best point of those ready in time with every seed, `by` "score" (on dev) or "held_out" rows."""
    ready = [point for point in of if point.group == group and point.slowest <= seconds]
    return max(ready, key=lambda point: getattr(point, by), default=None)


def standing(of: list[Point], minutes: int, group: str) -> Point | None:
    """What a group has to show for its minutes: ours what `--budget` makes of them; of others the
    variant that held-out rows choose. A second too late is too late."""
    if group == OURS:
        of = [point for point in of if point.variant == f"budget-{minutes}"]
    return best_within(of, group, 60 * minutes, "held_out")


def chosen(of: list[Point], minutes: int, group: str) -> Point | None:
    """The variant that held-out rows choose, for all alike."""
    return best_within(of, group, 60 * minutes, "held_out")


def average_ranks(
    tasks: dict[str, list[Point]], pick: Pick, minutes: int, needed: str = REFERENCE
) -> dict[str, tuple[float, int]]:
    """group -> (mean rank by dev score, over how many tasks), among those who took part in a task; 1 is best.

    Who is not ready in time shares the last places. Equal scores share a rank. Tasks on which nobody is ready, or which
    the one who is `needed` has not run, say nothing.
    """
    from scipy.stats import rankdata

    found: dict[str, list[float]] = {}
    for of in tasks.values():
        groups = list(dict.fromkeys(point.group for point in of))
        best = [pick(of, minutes, group) for group in groups]
        if not any(best) or needed not in groups:
            continue
        ranks = rankdata([-point.score if point else np.inf for point in best], method="average")
        for group, rank in zip(groups, ranks, strict=True):
            found.setdefault(group, []).append(float(rank))
    return {group: (float(np.mean(ranks)), len(ranks)) for group, ranks in found.items()}


def duel(of: list[Point], minutes: int) -> tuple[Point | None, Point | None]:
    """(ours, the best of the others) within so many minutes."""
    others = [standing(of, minutes, group) for group in dict.fromkeys(p.group for p in of) if group != OURS]
    ready = [point for point in others if point is not None]
    return standing(of, minutes, OURS), max(ready, key=lambda point: point.score, default=None)


def losses(tasks: dict[str, list[Point]]) -> dict[str, tuple[list[Point], list[Point]]]:
    """task -> (ours on the front, others on the front), where ours is nowhere on it or not its upper end."""
    found = {}
    for task, of in tasks.items():
        best = front(of)
        if not best[-1].ours:
            found[task] = ([p for p in best if p.ours], [p for p in best if not p.ours])
    return found
