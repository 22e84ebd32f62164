"""Backbones: encoders by name. A file registers where an encoder lies; any other name is a folder or on the hub."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertvision.registry import Registry


@dataclass(frozen=True)
class Source:
    """One line of `bertvision ls backbones`, and a function that finds (or makes) its transformers folder."""

    about: str
    folder: Callable[[], Path]


backbones: Registry[Source] = Registry("backbone", __name__)
