"""Tasks: sources of texts and labels. A task is a function of the options that returns a Dataset."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertvision.errors import UserError
from bertvision.options import WINDOWS, Request, flag
from bertvision.registry import Registry
from bertvision.types import Dataset, Examples

Roles = dict[str, str | None]  # text, pair, label -> name of the column
DATA_OPTIONS = ("data", "train", "dev", "text", "text_pair", "label", "kind", "weight")
QUESTION_OPTIONS = ("strict", "stride", "answer_length", "null_threshold", "null_share", "decoding")


@dataclass(frozen=True)
class Task:
    """One line of `bertvision ls tasks`, and the functions that read its data."""

    about: str
    metrics: tuple[str, ...]
    load: Callable[[Request], Dataset]
    read: Callable[[Path, Roles, tuple[str, ...]], Examples]  # a further file of the same kind: path, roles, labels
    options: tuple[str, ...] = ()  # which of DATA_OPTIONS and QUESTION_OPTIONS it takes


tasks: Registry[Task] = Registry("task", __name__)


def load(options: Request) -> Dataset:
    """The data of `options.task`. An option that the task does not take is an error."""
    task = tasks[options.task]
    windows = ("stride",) if options.long == WINDOWS else ()
    for name in DATA_OPTIONS + QUESTION_OPTIONS:
        asked = getattr(options, name) != Request.__dataclass_fields__[name].default
        if asked and name not in task.options + windows:
            taken = ", ".join(flag(name) for name in task.options) or "no data options"
            raise UserError(f"Task '{options.task}' does not take {flag(name)} (it takes {taken}).")
    return task.load(options)
