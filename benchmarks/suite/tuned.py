"""What fine-tunes the encoder: transformers' Trainer and SetFit, as in benchmarks/rivals, with settings for few rows.

Trainer: three epochs of 100 rows are 21 steps, which learn nothing, so it gets at least 100 steps. Many rows: also one
epoch with a schedule of its own, for the budgets in which three do not end. Scores are standardised, because an output
that starts at 0 would take all its steps to reach 88 points.

SetFit: up to 64 rows per class, fewer if there are many classes: it lists all pairs of rows. Its steps are bounded by
their estimated cost, so that it stays within three minutes.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from benchmarks.rivals import REFERENCE, START, Contestant, Job, Outcome, Task, Variant, targets
from benchmarks.rivals import setfit as rival_setfit
from benchmarks.rivals import trainer as rival_trainer
from benchmarks.rivals.fine_tuning import BATCH
from benchmarks.suite import LARGE, contestants

LEAST_STEPS = 100
SHOTS, MOST_ROWS, MOST_STEPS = 64, 2_000, 200
SETFIT_SECONDS = 100.0  # of contrastive training, as estimated
TRAINER, SETFIT = 3, 4  # stages


def epochs_of(rows: int, wanted: int) -> int:
    """At least so many epochs that there are LEAST_STEPS."""
    return max(wanted, math.ceil(LEAST_STEPS / math.ceil(rows / BATCH)))


def trainer(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    if job.kind == "score":
        y = targets(job.taught)
        job.taught = replace(job.taught, targets=(y - y.mean()) / y.std())  # Pearson's correlation stays the same
    epochs = epochs_of(len(job.taught), settings["epochs"])
    return rival_trainer.run(job, rival_trainer.TUNED_RATE | {"epochs": epochs, "stops": epochs == settings["epochs"]})


def trained(epochs: int) -> Variant:
    def stage(task: Task) -> int | None:
        return TRAINER if epochs == 3 or task.rows > LARGE else None

    def seconds(task: Task) -> float:
        return START + epochs_of(task.rows, epochs) * task.epoch + epochs * task.answers

    return Variant({"epochs": epochs}, stage, seconds)


def setfit(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    words = np.mean([min(len(text.split()), 200) for text in job.taught.texts])
    words *= 1 if job.taught.second_texts is None else 2
    steps = int(
        SETFIT_SECONDS / (2 * BATCH * 1.5 * (0.004 + 0.0006 * words))
    )  # batches of mixed length: half as much more
    shots = max(2, min(SHOTS, MOST_ROWS // job.dataset.outputs))
    name = f"{shots} per class"
    return rival_setfit.run(job, {"name": name, "shots": shots, "steps": max(1, min(MOST_STEPS, steps))})


def setfit_seconds(task: Task) -> float:
    return START + SETFIT_SECONDS + task.answers


contestants.add(
    "trainer",
    Contestant(
        "transformers Trainer, all weights, length grouping on, 1e-4; 3 epochs, but at least 100 steps",
        {"3": trained(3), "1": trained(1)},
        trainer,
        REFERENCE,
        ("transformers", "accelerate"),
    ),
)
contestants.add(
    "setfit",
    Contestant(
        "SetFit, up to 64 rows per class (2,000 in all), at most 200 steps; both texts of a pair joined to one",
        {"64": Variant({}, lambda task: SETFIT if task.kind == "class" else None, setfit_seconds)},
        setfit,
        "SetFit",
        ("setfit", "sentence-transformers", "scikit-learn"),
    ),
)
