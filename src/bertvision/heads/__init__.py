"""Heads: small models on the hidden states of every layer. `register` names them; `variants.make` builds one."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from bertvision.errors import UserError
from bertvision.heads.base import Body, Head, Shape
from bertvision.registry import Registry
from bertvision.states.hidden import TOKENS, all_views

Build = Callable[[Shape], Head]
BuildBody = Callable[[int, int], Body]  # from the numbers of layers and features


@dataclass(frozen=True)
class HeadEntry:
    """One line of `bertvision ls heads`: how to build a head, and where it comes from."""

    build: Build
    source: str  # "paper", "ours" or "user"
    about: str
    reads: str = "any"  # what it needs: "any", "texts", "pairs" (of texts) or "tokens"
    solved: bool = False  # in closed form, so it can be the lead

    @property
    def kinds(self) -> tuple[str, ...]:
        return {"any": ("class", "score", "span"), "tokens": ("span",)}.get(self.reads, ("class", "score"))

    def fits(self, shape: Shape) -> bool:
        fed = {"any": True, "texts": not shape.span, "pairs": shape.paired and not shape.span, "tokens": shape.span}
        return fed[self.reads]


RESERVED = ("encoder", "split", "row", "target")  # columns of the predictions' table
heads: Registry[HeadEntry] = Registry("head", __name__)

SETS = {
    "default": (
        "last-layer,learned-pooling,adapter-64-skip,last-layer-views,learned-pooling-views,adapter-64-views,cosines,"
        "learned-pooling-normalised,adapter-64-normalised,adapter-64-ngram,closed-form,embedding"
    )
}


def register(
    name: str, source: str, about: str, *, reads: str = "any", solved: bool = False
) -> Callable[[Build], Build]:
    """Decorator: the function below builds the head called `name`."""

    def add(build: Build) -> Build:
        if source == "user" and (not re.fullmatch(r"[\w.-]+", name) or name in RESERVED):
            raise UserError(f"A head cannot be called '{name}': use letters, digits, dots and dashes; not {RESERVED}.")
        if source == "user" and name in heads and heads[name].source != source:
            raise UserError(f"There is already a head called '{name}' in the library. Choose another name.")
        # A notebook cell can run twice, so a user may register the same name again.
        heads.add(name, HeadEntry(build, source, about, reads, solved), replace=source == "user")
        return build

    return add


def register_head(name: str, *, about: str = "", reads: str = "any") -> Callable[[Build], Build]:
    """Register a head that is defined in your own code.

    Args:
        name: The name for `heads=` and `--heads`.
        about: One line for `bertvision ls heads`.
        reads: What it needs: `any`, `texts` (an answer per text), `pairs` (two texts) or `tokens` (an answer per
            token).

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
    return register(name, "user", about, reads=reads)


def raw_head(name: str, about: str, body: BuildBody, *, reads: str = "any", source: str = "paper") -> None:
    """Register a body on raw states, as in the paper: a trained pooler's output is one more layer, the last one."""

    @register(name, source, about, reads=reads)
    def build(shape: Shape) -> Head:
        return Head(shape, body(shape.layers + shape.pooled, shape.features), pooled=shape.pooled)


def normalised_head(
    name: str, about: str, body: BuildBody, *, reads: str = "any", cosines: bool = False, dropout: float = 0.1
) -> None:
    """Register a body on every view, or every token, of normalised states. `cosines` are added for pairs only."""

    @register(name, "ours", about, reads=reads)
    def build(shape: Shape) -> Head:
        views, made = TOKENS if shape.span else all_views(shape.paired), body(shape.layers, shape.features)
        return Head(shape, made, views=views, normalised=True, cosines=cosines and shape.paired, dropout=dropout)
