"""Tasks: where text and answers come from. A task is a function of the options that returns a Dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertvision.options import FitOptions
from bertvision.registry import Registry
from bertvision.types import Dataset, Examples

Columns = dict[str, str | None]  # role (text, pair, label) -> name in the file


@dataclass(frozen=True)
class Task:
    """One line of `bertvision ls tasks`, and the function that reads it."""

    about: str
    metrics: tuple[str, ...]
    load: Callable[[FitOptions], Dataset]
    read: Callable[[Path, Columns, tuple[str, ...]], Examples]  # a further file of the same kind: path, columns, labels


tasks: Registry[Task] = Registry("task", __name__)
