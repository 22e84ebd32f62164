"""Analyses: what a finished run teaches. Each is a function from `Evidence` to plain tables; one file per theme.

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
    """What was found: rows of plain values with the same keys, for a terminal, a page, JSON or a data frame."""

    title: str
    note: str  # how to read it
    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Analysis:
    """One line of `bertvision ls analyses`."""

    find: Callable[["Evidence"], list[Table]]
    about: str
    kinds: tuple[str, ...]
    deep: bool  # does it need the encoder (minutes), or only what the run has kept (an instant)?


analyses: Registry[Analysis] = Registry("analysis", __name__, "analyses")

Finder = Callable[["Evidence"], list[Table]]


def register(name: str, about: str, *, kinds: Sequence[str] = KINDS, deep: bool = False) -> Callable[[Finder], Finder]:
    """Decorator: the function below makes the tables of the analysis `name`; none where it has nothing to say."""

    def add(find: Finder) -> Finder:
        analyses.add(name, Analysis(find, about, tuple(kinds), deep))
        return find

    return add
