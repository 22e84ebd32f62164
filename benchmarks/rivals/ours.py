"""BERTVision itself, by its Python call and with its defaults; each way in a process of its own.

Seconds are of the whole call and of loading the run again, less the answers to dev rows. Trainable parameters are of
everything that was trained, not of the model that was selected. By default heads of an epoch only ride along (spans:
are polished at its end, but for `ridden` and within a budget); `polished` shows what a polish adds.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from benchmarks.rivals import OURS, START, Contestant, Job, Outcome, Task, Variant, contestants, everywhere
from benchmarks.rivals.measuring import asked, size_of

from bertvision.types import HELD_OUT, Examples


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    return [fitted(job, settings["name"], settings["options"], backbone=str(job.encoder))]


ROWS = ("data", "limit", "dev_limit", "max_length")  # what `fit` is told of the job


def fitted(
    job: Job, name: str, options: dict[str, Any], *, backbone: str, before: float = 0.0, rows: tuple[str, ...] = ROWS
) -> Outcome:
    """One run; `before` are seconds of training that its encoder has had already."""
    import bertvision
    from bertvision.records import ENCODER

    given: dict[str, Any] = {key: getattr(job.options, key) for key in rows} | options
    made = bertvision.fit(
        job.options.task, backbone=backbone, seed=job.seed, out=job.folder / "run", quiet=True, **given
    )
    whole = job.clock.now()
    # Of several marks the one that was chosen is shipped, but all of them were paid for.
    record, results = made.record, made.results
    assert record.costs is not None
    found, mark = results.shipped, results.shipped.mark
    costs = results.last.costs | _summed(one.costs for one in results.marks)
    # Dev answers are part of `fit`, but no user waits for them before asking.
    job.clock.leave_out(sum(spent for part, spent in costs.items() if part.endswith("_dev")))
    with job.clock.paused():
        _ = job.parts  # read by `fit` for itself already; here they are only to be asked about
    heads = sum(spent for part, spent in costs.items() if part.startswith(("collect_", "polish_")))
    training = before + costs["fine_tune_start"] + costs["fine_tune_loop"] + heads
    said = made.predictions(mark)
    trained = sum(count for part, count in record.parameters.items() if part != ENCODER)
    trained += (record.encoder_trained or 0) if results.last.step else 0
    # What loading needs: the checkpoint, and two files that say what it is.
    disk = sum(map(size_of, (made.mark_folder(mark), made.path / "run.json", made.path / "scores.json")))

    loaded = bertvision.load(f"{made.path}@{mark}")

    def predict(examples: Examples) -> object:
        return loaded.predict(examples.texts, examples.second_texts)

    ready, latency = asked(job, predict)
    dev, held_out = (np.asarray(said[part].outputs[found.selected]) for part in ("dev", HELD_OUT))
    if len(dev) < len(job.dev):  # time ran out while it answered; here everybody answers all
        with job.clock.paused():
            dev = loaded.outputs(job.dev)[found.selected]
    recipe, taken = record.recipe, record.recipe.limit == job.options.limit
    same = taken and recipe.folds == "0"  # are its held-out rows those of everybody?
    own = found.score(found.selected, results.metric, HELD_OUT).value
    note = f"selected {found.selected} at {mark}; {recipe.epochs} epochs"
    note += "" if taken else f", {recipe.limit:,} rows"
    note += "" if recipe.folds == "0" else f", {recipe.folds} folds"
    note += "" if job.parts["dev"].second_texts is None else f", pairs {recipe.pairs}"
    held = held_out if same and not job.whole else own
    cost = {"call": record.costs.seconds, "whole": whole}
    return Outcome(name, dev, held, training, ready, trained, disk, latency, note=note, **cost)


def _summed(costs: Iterable[dict[str, float]]) -> dict[str, float]:
    """Seconds of what is done at each mark anew; fine-tuning is counted on from mark to mark already."""
    total: Counter[str] = Counter()
    for one in costs:
        total.update({part: spent for part, spent in one.items() if not part.startswith("fine_tune_")})
    return dict(total)


def variant(name: str, share: float, stage: Any, **options: Any) -> Variant:
    def seconds(task: Task) -> float:
        start = 0.0 if task.kind == "span" else task.clean * min(1, 5000 / task.rows) + 5
        polished = task.mark if options.get("polish") != 0 and (task.kind == "span" or not share) else 0.0
        return START + share * task.epoch + (start if share else 5) + polished + task.answers

    return Variant({"name": name, "options": options}, stage, seconds)


def first(task: Task) -> int:
    return 1


def first_of_spans(task: Task) -> int:
    return 1 if task.kind == "span" else 2


def first_but_spans(task: Task) -> int:
    return 2 if task.kind == "span" else 1


def budget(minutes: int) -> Variant:
    """What a user gets who only says how long it may take. Questions cannot be read in less than minutes."""
    settings = {"name": f"--budget {minutes}", "options": {"budget": minutes}}

    def seconds(task: Task) -> float:
        return min(60.0 * minutes, START + 3 * task.epoch + 2 * task.mark) + task.answers

    return Variant(settings, lambda task: None if task.kind == "span" and minutes < 10 else 1, seconds)


contestants.add(
    "ours",
    Contestant(
        "BERTVision: `fit` as it is, with one mark (0 epochs: frozen; or 1), or with `--budget`; else by default",
        {
            "default": variant("as it is: marks at 0 and 1 epoch", 1.7, first_but_spans),
            "frozen": variant("frozen + heads", 0, first, epochs="0"),
            "fraction": variant("3/10 epoch + heads", 0.3, first_of_spans, epochs="3/10", marks="3/10"),
            "epoch": variant("1 epoch + heads", 1, first_but_spans, epochs="1", marks="1"),
            "ridden": variant("1 epoch, heads ride along", 1, first_of_spans, epochs="1", marks="1", polish=0),
            "polished": variant("1 epoch + heads polished", 1.4, everywhere(2), epochs="1", marks="1", polish=8),
            **{f"budget-{minutes}": budget(minutes) for minutes in (1, 3, 10)},
        },
        run,
        OURS,
        ("bertvision",),
    ),
)
