"""Backbones: encoders by name. Each file registers where an encoder's files are; anything else is a folder or hub name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertvision.registry import Registry


@dataclass(frozen=True)
class Source:
    """One line of `bertvision ls backbones`: a function that puts a transformers model folder in place, and finds it."""

    about: str
    folder: Callable[[], Path]


backbones: Registry[Source] = Registry("backbone", __name__)
