"""Rivals: what a user would take instead of BERTVision, behind one interface and on the same rows.

    python -m benchmarks.rivals.run --data ../shared/data --dry-run    # the jobs, and what they will take
    python -m benchmarks.rivals.run --data ../shared/data              # run them; what is done already is kept
    python -m benchmarks.rivals.page                                   # docs/rivals.md and its picture

A contestant is one file of this folder that adds itself to `contestants`: variants by name, and a function that trains
on a job's rows and answers its dev rows. All get the same encoder weights, token limit, rows, held-out rows, seed and
number of threads. Whatever a contestant chooses, it chooses on held-out rows; dev is only answered.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.rivals.measuring import Clock

from bertvision.recipe import Recipe
from bertvision.registry import Registry
from bertvision.types import HELD_OUT, TRAIN, Dataset, Examples

START = 9.0  # seconds in which a job imports its libraries, reads its rows and loads the encoder


@dataclass(frozen=True)
class Task:
    """A task, how much of it is used, and measured seconds (minilm-l6, two cores) from which jobs are estimated."""

    name: str
    kind: str
    pairs: bool
    rows: int  # to train on, held-out rows taken off
    dev: int
    epoch: float  # an epoch of full fine-tuning, batches of 16 of similar length
    mark: float  # our heads at a mark: passes over train, polish, answers of held-out rows
    limit: int | None = None
    dev_limit: int | None = None

    @property
    def clean(self) -> float:
        """A pass over train without gradients."""
        return self.epoch / 3

    @property
    def answers(self) -> float:
        """Held-out and dev rows answered."""
        return self.clean * (self.dev + 0.1 * self.rows) / self.rows

    @property
    def large(self) -> bool:
        return self.epoch > 150

    def cut(self, limit: int | None, dev_limit: int | None) -> "Task":
        """The same with fewer rows, for trials."""
        share = min(1.0, 0.9 * limit / self.rows) if limit else 1.0
        return replace(
            self,
            rows=max(1, round(self.rows * share)),
            dev=min(self.dev, dev_limit or self.dev),
            epoch=self.epoch * share,
            mark=self.mark * share,
            limit=limit or self.limit,
            dev_limit=dev_limit or self.dev_limit,
        )


# Seconds from docs/lab-notes; QNLI's are reckoned from MRPC's by the number of words.
TASKS = {
    task.name: task
    for task in (
        Task("cola", "class", False, 7_696, 1_043, 71, 26),
        Task("sts-b", "score", True, 5_174, 1_500, 88, 70),
        Task("rte", "class", True, 2_241, 277, 97, 63),
        Task("mrpc", "class", True, 3_301, 408, 97, 69),
        Task("qnli", "class", True, 9_000, 2_000, 218, 185, limit=10_000, dev_limit=2_000),
        Task("sst-2", "class", False, 19_000, 872, 243, 105, limit=20_000),
        Task("squad2", "span", True, 7_200, 2_000, 1_034, 430, limit=8_000, dev_limit=2_000),
    )
}


@dataclass(frozen=True)
class Variant:
    """One way to use a contestant. It takes part in a task at stage 1 (first of all), 2 (given more hours), or not."""

    settings: dict[str, Any]
    stage: Callable[[Task], int | None]
    seconds: Callable[[Task], float]  # estimated


@dataclass(frozen=True)
class Outcome:
    """One model that a job ended with, or passed on its way."""

    name: str
    dev: np.ndarray  # (N, C), as bertvision.metrics.intervals.score takes them
    held_out: np.ndarray | float | None  # or a score (other rows held out, cross-validation); None: trained on them
    training: float  # seconds of everything that is done with training rows
    ready: float  # seconds from the start of the process until the first dev example was answered
    parameters: int  # that were trained
    disk: int  # bytes of what has to be kept
    latency: float  # seconds for one example by itself, from text to answer
    needs_encoder: bool = False  # is the unchanged encoder needed besides what is kept?
    note: str = ""  # what was chosen on held-out rows
    call: float | None = None  # seconds of `fit` by itself, dev answers included: what --budget promises
    whole: float | None = None  # seconds from the start of the process until `fit` returns


@dataclass
class Job:
    """Rows to train on, rows to choose on, rows to answer; and what must be the same for everybody."""

    task: str
    seed: int
    encoder: Path  # a transformers folder
    options: Recipe  # which rows, how many tokens
    folder: Path  # to write in; removed with the job
    whole: bool = False  # may contestants that choose nothing on held-out rows train on them?
    clock: Clock = field(default_factory=Clock)

    @property
    def max_length(self) -> int:
        return self.options.max_length

    @cached_property
    def dataset(self) -> Dataset:
        """Read when first asked for: ours reads its rows itself, and should not pay twice."""
        from bertvision.tasks import load

        return load(self.options)

    @cached_property
    def parts(self) -> dict[str, Examples]:
        from bertvision.prepare import parts_of

        return parts_of(self.dataset, self.options)

    @property
    def train(self) -> Examples:
        return self.parts[TRAIN]

    @property
    def held_out(self) -> Examples:
        return self.parts[HELD_OUT]

    @cached_property
    def taught(self) -> Examples:
        """What contestants train on that choose nothing on held-out rows."""
        return together(self.train, self.held_out) if self.whole else self.train

    def held_back(self, predict: Callable[[Examples], np.ndarray]) -> np.ndarray | None:
        """Their answers to held-out rows, unless they were trained on them."""
        return None if self.whole else predict(self.held_out)

    @property
    def dev(self) -> Examples:
        return self.parts["dev"]

    @property
    def kind(self) -> str:
        return self.dataset.kind

    @property
    def metric(self) -> str:
        return self.dataset.metrics[0]


@dataclass(frozen=True)
class Contestant:
    """What stands behind a name: a line about it, its variants, and how it is trained and asked."""

    about: str
    variants: dict[str, Variant]
    run: Callable[[Job, dict[str, Any]], list[Outcome]]
    group: str  # under which it is ranked
    packages: tuple[str, ...]  # whose versions are kept with the results
    seeded: bool = True  # does a seed change anything? if not, one is enough

    @property
    def ours(self) -> bool:
        return self.group == OURS


OURS, REFERENCE = "BERTVision", "Trainer"
contestants: Registry[Contestant] = Registry("contestant", __name__)


def targets(examples: Examples) -> np.ndarray:
    assert examples.targets is not None
    return examples.targets


def together(one: Examples, other: Examples) -> Examples:
    """The rows of both; not for questions."""
    pairs = None
    if one.second_texts is not None and other.second_texts is not None:
        pairs = one.second_texts + other.second_texts
    return Examples(one.texts + other.texts, pairs, np.concatenate([targets(one), targets(other)]))


def everywhere(stage: int) -> Callable[[Task], int | None]:
    """Takes part in every task whose answer is a class or a score."""
    return lambda task: None if task.kind == "span" else stage
