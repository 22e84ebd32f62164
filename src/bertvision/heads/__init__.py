"""Heads: small models on the hidden states of every layer. `build` makes them by name, for one shape of input."""

from collections.abc import Callable
from dataclasses import dataclass

from bertvision.errors import UserError
from bertvision.heads.base import Head, Shape
from bertvision.registry import Registry


@dataclass(frozen=True)
class Recipe:
    """One line of `bertvision ls heads`: how to build a head, and where it comes from."""

    build: Callable[[Shape], Head]
    source: str  # "paper" or "ours"
    about: str
    pairs_only: bool = False


heads: Registry[Recipe] = Registry("head", __name__)

SETS = {
    "default": (
        "last-layer,learned-pooling,adapter-64-skip,last-layer-views,learned-pooling-views,adapter-64-views,cosines"
    ),
}


def register(
    name: str, source: str, about: str, *, pairs_only: bool = False
) -> Callable[[Callable[[Shape], Head]], Callable[[Shape], Head]]:
    """Decorator: the function below builds the head called `name`."""

    def add(build: Callable[[Shape], Head]) -> Callable[[Shape], Head]:
        heads.add(name, Recipe(build, source, about, pairs_only))
        return build

    return add


def expand(asked: str, pairs: bool) -> list[str]:
    """`--heads` as a list of names. A set leaves out what the data cannot feed; a name insists."""
    names: list[str] = []
    for part in (part.strip() for part in asked.split(",")):
        if part in ("none", ""):
            continue
        if part in SETS or part in ("paper", "ours", "all"):
            members = SETS[part].split(",") if part in SETS else [n for n in heads if part in ("all", heads[n].source)]
            names += [name for name in members if pairs or not heads[name].pairs_only]
        elif heads[part].pairs_only and not pairs:
            raise UserError(f"--heads: '{part}' compares two texts, but this task has one text per example.")
        else:
            names.append(part)
    return list(dict.fromkeys(names))
