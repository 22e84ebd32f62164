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
    reads: str = "any"  # "texts", "pairs" (texts that come in pairs) or "tokens": what it cannot do without

    @property
    def kinds(self) -> tuple[str, ...]:
        return {"any": ("class", "score", "span"), "tokens": ("span",)}.get(self.reads, ("class", "score"))

    def fits(self, shape: Shape) -> bool:
        return {"any": True, "texts": not shape.span, "pairs": shape.pairs and not shape.span, "tokens": shape.span}[
            self.reads
        ]


heads: Registry[Recipe] = Registry("head", __name__)

SETS = {
    "default": (
        "last-layer,learned-pooling,adapter-64-skip,last-layer-views,learned-pooling-views,adapter-64-views,cosines,"
        "learned-pooling-normalised,adapter-64-normalised,adapter-64-ngram"
    ),
}


def register(
    name: str, source: str, about: str, *, reads: str = "any"
) -> Callable[[Callable[[Shape], Head]], Callable[[Shape], Head]]:
    """Decorator: the function below builds the head called `name`."""

    def add(build: Callable[[Shape], Head]) -> Callable[[Shape], Head]:
        heads.add(name, Recipe(build, source, about, reads))
        return build

    return add


def expand(asked: str, shape: Shape) -> list[str]:
    """`--heads` as a list of names. A set leaves out what the task cannot feed; a name insists."""
    names: list[str] = []
    for part in (part.strip() for part in asked.split(",")):
        if part in ("none", ""):
            continue
        if part in SETS or part in ("paper", "ours", "all"):
            members = SETS[part].split(",") if part in SETS else [n for n in heads if part in ("all", heads[n].source)]
            names += [name for name in members if heads[name].fits(shape)]
        elif not heads[part].fits(shape):
            needs = {"pairs": "two texts per example", "texts": "an answer per text", "tokens": "an answer per token"}
            raise UserError(f"--heads: '{part}' is for tasks with {needs[heads[part].reads]}, which this one is not.")
        else:
            names.append(part)
    return list(dict.fromkeys(names))
