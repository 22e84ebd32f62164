"""Variants of a head, written after its name: `adapter-64:lr=1e-3/3e-4:seed=0..3:data=10/50/100:layers=0-4`.

`/` separates values. Every combination of values is a variant, with a label that lists its options.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any

import torch

from bertvision.errors import UserError
from bertvision.heads import SETS, heads
from bertvision.heads.base import Head, Shape
from bertvision.heads.dropout import Dropout
from bertvision.randomness import RandomStream
from bertvision.states.hidden import all_views


@dataclass(frozen=True)
class Variant:
    """A head's name and its options; None is the default of the head or the run."""

    name: str
    lr: float | None = None
    seed: int | None = None
    data: float = 1.0  # share of the training examples it learns from
    layers: tuple[int, ...] | None = None
    views: tuple[str, ...] | None = None
    normalised: bool | None = None
    dropout: float | None = None

    @property
    def structure(self) -> "Variant":
        """The same without training settings: heads with equal structure have tensors of equal shape."""
        return replace(self, lr=None, seed=None, data=1.0)


def expand(asked: str, shape: Shape) -> list[str]:
    """`--heads` as a list of labels. Heads of a set that do not fit the task are left out."""
    labels: list[str] = []
    for part in (part.strip() for part in asked.split(",")):
        name, colon, options = part.partition(":")
        if name in ("none", ""):
            continue
        members = [name]
        if name in SETS or name in ("paper", "ours", "all"):
            listed = SETS[name].split(",") if name in SETS else [n for n in heads if name in ("all", heads[n].source)]
            members = [member for member in listed if heads[member].fits(shape)]
        labels += [label for member in members for label in spread(member + colon + options)]
    for label in labels:
        check(label, shape)
    return list(dict.fromkeys(labels))


def spread(text: str) -> list[str]:
    """The labels of all variants that `NAME:option=value/value:...` stands for."""
    name, *options = text.split(":")
    listed = []
    for option in options:
        key, found, values = option.partition("=")
        if key not in OPTIONS or not found:
            raise UserError(f"--heads '{text}': '{option}' should be OPTION=VALUE, of {', '.join(OPTIONS)}.")
        listed.append([f"{key}={value}" for part in values.split("/") for value in _range(key, part)])
    return [":".join((name, *chosen)) for chosen in product(*listed)]


def parse(label: str) -> Variant:
    name, *options = label.split(":")
    given: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        try:
            given[key] = OPTIONS[key](value)
        except (ValueError, KeyError):
            raise UserError(f"--heads '{label}': {key} cannot be '{value}'.") from None
    return Variant(name, **given)


def without(label: str, *options: str) -> str:
    """The label without some of its options, e.g. to group seeds."""
    return ":".join(part for part in label.split(":") if part.partition("=")[0] not in options)


def make(label: str, shape: Shape) -> Head:
    """Build the head that a label stands for."""
    variant = parse(label)
    layers = shape.layers if variant.layers is None else len(variant.layers)
    head = heads[variant.name].build(replace(shape, layers=layers, views=variant.views))
    head.layers = variant.layers
    if variant.normalised is not None:
        head.normalised = variant.normalised
    if variant.dropout is not None:
        for module in head.modules():
            if isinstance(module, Dropout):
                module.p = variant.dropout
    return head


def build(labels: Iterable[str], shape: Shape, seed: int, device: torch.device | str = "cpu") -> dict[str, Head]:
    """Heads by label. Each is initialised from its own random stream, so its start does not depend on the others."""
    built = {}
    for label in labels:
        variant = parse(label)
        with RandomStream("head", variant.name, seed if variant.seed is None else variant.seed).active():
            built[label] = make(label, shape).to(device)
    return built


def check(label: str, shape: Shape) -> None:
    """Raise an error unless there is such a head for this shape, with these options."""
    variant = parse(label)
    entry = heads[variant.name]
    if not entry.fits(shape):
        needs = {"pairs": "two texts per example", "texts": "an answer per text", "tokens": "an answer per token"}
        raise UserError(f"--heads: '{variant.name}' is for tasks with {needs[entry.reads]}, unlike this one.")
    bodiless = entry.build(shape).body is None
    for option, meaningless in (("views", shape.span or bodiless), ("normalised", bodiless)):
        if getattr(variant, option) is not None and meaningless:
            raise UserError(f"--heads '{label}': '{variant.name}' does not support {option} on this task.")
    if variant.layers and max(variant.layers) >= shape.layers:
        raise UserError(f"--heads '{label}': the encoder's layers are 0 (embeddings) to {shape.layers - 1}.")
    known = all_views(shape.paired)
    for view in variant.views or ():
        if view not in known:
            raise UserError(f"--heads '{label}': '{view}' is not one of this task's views: {', '.join(known)}.")


def _range(key: str, text: str) -> Iterable[str]:
    """`0..3` is 0, 1, 2, 3; for data, which is in per cent, steps are ten."""
    first, dots, last = text.partition("..")
    if not dots:
        return [text]
    if not (first.isdigit() and last.isdigit()) or key not in ("seed", "data"):
        raise UserError(f"--heads: {key}={text}: a range is for seed and data, such as seed=0..4 or data=0..100.")
    return map(str, range(int(first), int(last) + 1, 10 if key == "data" else 1))


def _layers(text: str) -> tuple[int, ...]:
    """`0-3+6`: layers 0 to 3, and 6."""
    found: set[int] = set()
    for part in text.split("+"):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    if not found:
        raise ValueError
    return tuple(sorted(found))


def _number(text: str, high: float) -> float:
    value = float(text.removesuffix("%"))
    if not 0 <= value <= high:
        raise ValueError
    return value


def _seed(text: str) -> int:
    if not text.isdigit():
        raise ValueError
    return int(text)


OPTIONS: dict[str, Callable[[str], Any]] = {
    "lr": partial(_number, high=1e3),
    "seed": _seed,
    "data": lambda text: _number(text, 100) / 100,
    "layers": _layers,
    "views": lambda text: tuple(text.split("+")),
    "normalised": lambda text: {"yes": True, "no": False}[text],
    "dropout": partial(_number, high=0.99),
}
assert set(OPTIONS) == {field.name for field in fields(Variant)} - {"name"}
