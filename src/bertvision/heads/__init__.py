"""Heads: small models on the hidden states of every layer. `register` names them; `variants.make` builds one."""

from collections.abc import Callable
from dataclasses import dataclass

from bertvision.heads.base import Head, Shape
from bertvision.registry import Registry


@dataclass(frozen=True)
class HeadEntry:
    """One line of `bertvision ls heads`: how to build a head, and where it comes from."""

    build: Callable[[Shape], Head]
    source: str  # "paper", "ours" or "user"
    about: str
    reads: str = "any"  # "texts", "pairs" (texts that come in pairs) or "tokens": what it cannot do without
    layers: int = 1  # how many there must be at least
    solved: bool = False  # in closed form: can it lead?

    @property
    def kinds(self) -> tuple[str, ...]:
        return {"any": ("class", "score", "span"), "tokens": ("span",)}.get(self.reads, ("class", "score"))

    def fits(self, shape: Shape) -> bool:
        fed = {"any": True, "texts": not shape.span, "pairs": shape.paired and not shape.span, "tokens": shape.span}
        return fed[self.reads] and shape.layers >= self.layers


heads: Registry[HeadEntry] = Registry("head", __name__)

SETS = {
    "default": (
        "last-layer,learned-pooling,adapter-64-skip,last-layer-views,learned-pooling-views,adapter-64-views,cosines,"
        "learned-pooling-normalised,adapter-64-normalised,adapter-64-ngram,closed-form"
    )
}


def register_head(
    name: str, *, about: str = "", reads: str = "any", layers: int = 1
) -> Callable[[Callable[[Shape], Head]], Callable[[Shape], Head]]:
    """Register a head that is defined in your own code.

    Args:
        name: What `heads=` and `--heads` call it.
        about: One line for `bertvision ls heads`.
        reads: What it needs: `any`, `texts` (an answer per text), `pairs` (two texts) or `tokens` (an answer per
            token).
        layers: The least number of hidden-state layers it needs.

    Returns:
        A decorator for a function that builds the head for a `Shape`.

    Example:
        >>> class Average(bertvision.Body):
        ...     def __init__(self, features):
        ...         super().__init__()
        ...         self.width = features
        ...
        ...     def forward(self, layers):  # (B, L, V, D) -> (B, V, D)
        ...         return layers.mean(1)
        >>> @bertvision.register_head("average", about="linear layer on the mean of all layers")
        ... def average(shape):
        ...     return bertvision.Head(shape, Average(shape.features))
        >>> run = bertvision.fit("reviews.csv", heads="average", epochs=0)
    """

    def add(build: Callable[[Shape], Head]) -> Callable[[Shape], Head]:
        heads.add(name, HeadEntry(build, "user", about, reads, layers), replace=True)  # a notebook cell runs twice
        return build

    return add


def register(
    name: str, source: str, about: str, *, reads: str = "any", layers: int = 1, solved: bool = False
) -> Callable[[Callable[[Shape], Head]], Callable[[Shape], Head]]:
    """Decorator: the function below builds the head called `name`."""

    def add(build: Callable[[Shape], Head]) -> Callable[[Shape], Head]:
        heads.add(name, HeadEntry(build, source, about, reads, layers, solved))
        return build

    return add
