"""Analyses of a finished run. Each is a function from `Evidence` to tables of plain values; one file per topic.

>>> tables = bertvision.analyse("runs/squad2")
>>> tables["overlap"][0].rows
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertvision.registry import Registry

if TYPE_CHECKING:
    from bertvision.analysis.evidence import Evidence

KINDS = ("class", "score", "span")


@dataclass(frozen=True)
class Table:
    """Rows of plain values with the same keys, for a terminal, a page, JSON or a data frame."""

    title: str
    note: str  # how to read it
    rows: list[dict[str, Any]]


Finder = Callable[["Evidence"], list[Table]]


@dataclass(frozen=True)
class Analysis:
    """One line of `bertvision ls analyses`."""

    find: Finder
    about: str
    kinds: tuple[str, ...]
    deep: bool  # whether it runs the encoder (minutes) or only reads what the run has saved (seconds)


analyses: Registry[Analysis] = Registry("analysis", __name__, "analyses")


def register(name: str, about: str, *, kinds: Sequence[str] = KINDS, deep: bool = False) -> Callable[[Finder], Finder]:
    """Decorator for a function that makes the tables of the analysis `name`; it may return none."""

    def add(find: Finder) -> Finder:
        analyses.add(name, Analysis(find, about, tuple(kinds), deep))
        return find

    return add
