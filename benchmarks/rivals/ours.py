"""BERTVision itself, by its Python call and with its defaults; each way in a process of its own.

Seconds are of the whole call and of loading the run again, less the answers to dev rows. `riding`, the best of the
heads that only rode along (and the encoder), comes out of the run of one epoch: its seconds leave out the passes and
the polish of the others. Trainable parameters are of everything that was trained, not of the model that was selected.
"""

from typing import Any

import numpy as np
from benchmarks.rivals import OURS, START, Contestant, Job, Outcome, Task, Variant, contestants
from benchmarks.rivals.measuring import asked, size_of

from bertvision.types import Examples

POLISHED, ENSEMBLE = "+polish", "ensemble-"


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    return fitted(job, settings["name"], settings["options"], backbone=str(job.encoder), riding=settings["riding"])


def fitted(
    job: Job, name: str, options: dict[str, Any], *, backbone: str, riding: bool = False, before: float = 0.0
) -> list[Outcome]:
    """One run; `before` are seconds of training that its encoder has had already."""
    import bertvision

    rows = {key: getattr(job.options, key) for key in ("data", "limit", "dev_limit", "max_length")}
    made = bertvision.fit(
        job.task, backbone=backbone, seed=job.seed, out=job.folder / "run", quiet=True, **rows, **options
    )
    entry = made.scores["marks"][-1]
    mark, costs = entry["epoch"], entry["costs"]
    # Dev answers are part of `fit`, but no user waits for them before asking.
    job.clock.leave_out(sum(spent for part, spent in costs.items() if part.endswith("_dev")))
    with job.clock.paused():
        _ = job.parts  # read by `fit` for itself already; here they are only to be asked about
    heads = sum(spent for part, spent in costs.items() if part.startswith(("collect_", "polish_")))
    training = before + costs["fine_tune_loop"] + heads
    said = made.predictions(mark)
    parameters = made.info["parameters"]
    trained = sum(count for part, count in parameters.items() if part != "encoder" or entry["step"])
    # What loading needs: the checkpoint, and two files that say what it is.
    disk = sum(map(size_of, (made.mark_folder(mark), made.path / "run.json", made.path / "scores.json")))

    def outcome(label: str, model: str, training: float, spared: float = 0.0) -> Outcome:
        entered = job.clock.now()
        loaded = bertvision.load(f"{made.path}@{mark}", model)

        def predict(examples: Examples) -> object:
            return loaded.predict(examples.texts, examples.pairs)

        ready, latency = asked(job, predict)
        job.clock.leave_out(job.clock.now() - entered)
        dev, held_out = (np.asarray(said[part]["outputs"][model]) for part in ("dev", "held_out"))
        return Outcome(label, dev, held_out, training, ready - spared, trained, disk, latency, note=f"selected {model}")

    outcomes = [outcome(name, entry["selected"], training)]
    if riding:
        metric = made.scores["metric"]
        ridden = [model for model in entry["held_out"] if not (model.endswith(POLISHED) or model.startswith(ENSEMBLE))]
        best = max(ridden, key=lambda model: entry["held_out"][model][metric]["value"])
        others = sum(spent for part, spent in costs.items() if part.startswith("answer_separate_held_out"))
        outcomes.append(outcome("riding along only", best, training - heads, spared=heads + others))
    return outcomes


def variant(name: str, share: float, stage: Any, riding: bool = False, **options: Any) -> Variant:
    def seconds(task: Task) -> float:
        return START + share * task.epoch + task.mark + task.answers

    return Variant({"name": name, "options": options, "riding": riding}, stage, seconds)


def first(task: Task) -> int:
    return 1


def first_but_spans(task: Task) -> int:
    return 2 if task.kind == "span" else 1


def budget(minutes: int) -> Variant:
    """What a user gets who only says how long it may take. Questions cannot be read in less than minutes."""
    settings = {"name": f"--budget {minutes}", "options": {"budget": minutes}, "riding": False}

    def seconds(task: Task) -> float:
        return min(60.0 * minutes, START + 3 * task.epoch + 2 * task.mark) + task.answers

    return Variant(settings, lambda task: None if task.kind == "span" and minutes < 10 else 1, seconds)


contestants.add(
    "ours",
    Contestant(
        "BERTVision with its defaults",
        {
            "frozen": variant("frozen + heads", 0, first, epochs="0"),
            "fraction": variant("3/10 epoch + heads", 0.3, lambda task: 1 if task.kind == "span" else 2, epochs="3/10"),
            "epoch": variant("1 epoch + heads", 1, first_but_spans, riding=True, epochs="1", marks="1"),
            **{f"budget-{minutes}": budget(minutes) for minutes in (1, 3, 10)},
        },
        run,
        OURS,
        ("bertvision",),
    ),
)
