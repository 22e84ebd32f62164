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

from bertvision.types import Examples


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    return [fitted(job, settings["name"], settings["options"], backbone=str(job.encoder))]


def fitted(job: Job, name: str, options: dict[str, Any], *, backbone: str, before: float = 0.0) -> Outcome:
    """One run; `before` are seconds of training that its encoder has had already."""
    import bertvision

    rows = {key: getattr(job.options, key) for key in ("data", "limit", "dev_limit", "max_length")}
    made = bertvision.fit(
        job.task, backbone=backbone, seed=job.seed, out=job.folder / "run", quiet=True, **rows, **options
    )
    # Of several marks the one that was chosen is shipped, but all of them were paid for.
    mark = made.scores["selected"]["mark"]
    entries = made.scores["marks"]
    entry, last = next(found for found in entries if found["epoch"] == mark), entries[-1]
    costs = last["costs"] | _summed(found["costs"] for found in entries)
    # Dev answers are part of `fit`, but no user waits for them before asking.
    job.clock.leave_out(sum(spent for part, spent in costs.items() if part.endswith("_dev")))
    with job.clock.paused():
        _ = job.parts  # read by `fit` for itself already; here they are only to be asked about
    heads = sum(spent for part, spent in costs.items() if part.startswith(("collect_", "polish_")))
    training = before + costs["fine_tune_start"] + costs["fine_tune_loop"] + heads
    said = made.predictions(mark)
    trained = sum(count for part, count in made.info["parameters"].items() if part != "encoder")
    trained += made.info["encoder_trained"] if last["step"] else 0
    # What loading needs: the checkpoint, and two files that say what it is.
    disk = sum(map(size_of, (made.mark_folder(mark), made.path / "run.json", made.path / "scores.json")))

    loaded = bertvision.load(f"{made.path}@{mark}")

    def predict(examples: Examples) -> object:
        return loaded.predict(examples.texts, examples.second_texts)

    ready, latency = asked(job, predict)
    dev, held_out = (np.asarray(said[part]["outputs"][entry["selected"]]) for part in ("dev", "held_out"))
    taken = made.info["data"]["train"]["examples"] == len(job.train)
    own = float(entry["held_out"][entry["selected"]][made.scores["metric"]]["value"])
    note = f"selected {entry['selected']} at {mark}; {made.info['options']['epochs']} epochs"
    note += "" if taken else f", {made.info['options']['limit']:,} rows"
    note += "" if job.parts["dev"].second_texts is None else f", pairs {made.info['options']['pairs']}"
    call = made.info["costs"]["seconds"]
    return Outcome(name, dev, held_out if taken else own, training, ready, trained, disk, latency, note=note, call=call)


def _summed(costs: Iterable[dict[str, float]]) -> dict[str, float]:
    """Seconds of what is done at each mark anew; fine-tuning is counted on from mark to mark already."""
    total: Counter[str] = Counter()
    for found in costs:
        total.update({part: spent for part, spent in found.items() if not part.startswith("fine_tune_")})
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
