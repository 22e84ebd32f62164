"""Backbones: encoders by name. A file registers the location of one; any other name is a folder or on the hub."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertvision.registry import Registry


@dataclass(frozen=True)
class Backbone:
    """One line of `bertvision ls backbones`, and a function that returns its transformers folder."""

    about: str
    folder: Callable[[], Path]


backbones: Registry[Backbone] = Registry("backbone", __name__)


def licence(name: str) -> str | None:
    """The licence in the encoder's model card, if that is beside the weights."""
    card = (backbones[name].folder() if name in backbones else Path(name)) / "README.md"
    found = re.search(r"^license:\s*(\S+)", card.read_text(encoding="utf-8"), re.M) if card.is_file() else None
    return found.group(1) if found else None
