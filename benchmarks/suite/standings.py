"""What the results say: contestants per data set and size, who is in time, how far ours is from the best of the others.

Pure functions of the rows of a results file; `Point` is that of benchmarks/rivals.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.rivals.standings import Point, Row, points
from benchmarks.suite import BUDGETS, GRACE, TABLES, contestants

Cell = tuple[str, int]  # data set, size
Cells = dict[Cell, list[Point]]
CLOSE = 0.01
FLOORS = ("majority", "tfidf")  # below these, ours is of no use
AHEAD, LEVEL, BEHIND, LATE = "clearly ahead", "level", "clearly behind", "late"


def cells(rows: Iterable[Row]) -> Cells:
    """Data set and size -> its points, in the order of the tables."""
    groups = {name: contestants[name].group for name in contestants}
    known: dict[str, Cell] = {}
    named = []
    for row in rows:
        title = f"{row['task']}, {row['limit']:,} rows"
        known[title] = row["task"], row["limit"]
        named.append(row | {"task": title})
    found = {known[title]: of for title, of in points(named, groups).items()}
    places = list(TABLES)
    return {cell: found[cell] for cell in sorted(found, key=lambda cell: (places.index(cell[0]), cell[1]))}


def seconds(point: Point) -> float:
    """Until the first prediction, of the slowest seed; of ours the whole process until `fit` returns."""
    return max(row["whole"] or row["ready"] for row in point.rows)


def mine(of: list[Point], minutes: int) -> Point | None:
    """Our run with this budget, in time or not."""
    return next((point for point in of if point.ours and point.variant == f"budget-{minutes}"), None)


def budgets(of: Cells) -> list[int]:
    """Minutes with which ours was run at all."""
    return [minutes for minutes in BUDGETS if any(mine(found, minutes) for found in of.values())]


def entry(of: list[Point], minutes: int, group: str) -> Point | None:
    """What a group has to show in this time. Of several outcomes the best on test, which favours the others."""
    own = mine(of, minutes)
    ready = [p for p in of if p.group == group and seconds(p) <= 60 * minutes * GRACE and (p is own or not p.ours)]
    return max(ready, key=lambda point: point.score, default=None)


def best_rival(of: list[Point], minutes: int) -> Point | None:
    groups = dict.fromkeys(point.group for point in of if not point.ours)
    ready = [found for group in groups if (found := entry(of, minutes, group))]
    return max(ready, key=lambda point: point.score, default=None)


@dataclass(frozen=True)
class Duel:
    """Ours with a budget against the best of the others in that time."""

    cell: Cell
    minutes: int
    ours: Point
    other: Point

    @property
    def gain(self) -> tuple[float, float, float]:
        return self.ours.above(self.other)

    @property
    def verdict(self) -> str:
        if seconds(self.ours) > 60 * self.minutes * GRACE:
            return LATE
        return verdict(self.gain)


def verdict(gain: tuple[float, float, float]) -> str:
    _, low, high = gain
    return AHEAD if low > 0 else BEHIND if high < 0 else LEVEL


def duels(of: Cells, minutes: int) -> list[Duel]:
    """Wherever ours and another were run."""
    made = []
    for cell, found in of.items():
        own, other = mine(found, minutes), best_rival(found, minutes)
        if own and other:
            made.append(Duel(cell, minutes, own, other))
    return made


def below_floor(of: Cells, minutes: int) -> list[Duel]:
    """Where ours is below the majority class or TF-IDF, beyond noise."""
    made = []
    for cell, found in of.items():
        own = mine(found, minutes)
        floors = [point for point in found if point.contestant in FLOORS]
        made += [Duel(cell, minutes, own, floor) for floor in floors if own and verdict(own.above(floor)) == BEHIND]
    return made


def close_cells(rows: Iterable[Row]) -> set[Cell]:
    """Where more seeds could change who leads."""
    of = cells(rows)
    return {duel.cell for minutes in BUDGETS for duel in duels(of, minutes) if abs(duel.gain[0]) <= CLOSE}
