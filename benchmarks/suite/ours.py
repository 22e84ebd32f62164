"""BERTVision as a user calls it who only says how long it may take: `fit table --train FILE --dev FILE --budget M`."""

from typing import Any

from benchmarks.rivals import OURS, Contestant, Job, Outcome, Variant
from benchmarks.rivals import ours as rival_ours
from benchmarks.suite import BUDGETS, contestants

ROWS = ("train", "dev", "text", "text_pair", "label", "kind", "limit", "dev_limit")


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    return [rival_ours.fitted(job, settings["name"], settings["options"], backbone=str(job.encoder), rows=ROWS)]


def budget(stage: int, minutes: int) -> Variant:
    known = rival_ours.budget(minutes)
    return Variant(known.settings, lambda task: stage, known.seconds)


contestants.add(
    "ours",
    Contestant(
        "BERTVision: `fit --budget`, everything else by default",
        {f"budget-{minutes}": budget(stage, minutes) for stage, minutes in enumerate(BUDGETS, 1)},
        run,
        OURS,
        ("bertvision",),
    ),
)
