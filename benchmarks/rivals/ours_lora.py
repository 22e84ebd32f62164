"""Our heads on an encoder that LoRA has tuned: PEFT trains, the adapters are merged, BERTVision takes the folder.

Merging: https://huggingface.co/docs/peft/package_reference/lora, `merge_and_unload`.
"""

from dataclasses import replace
from typing import Any

from benchmarks.rivals import OURS, START, Contestant, Job, Outcome, Task, Variant, contestants
from benchmarks.rivals.fine_tuning import contest
from benchmarks.rivals.lora import SHARE, TRAINING, adapted
from benchmarks.rivals.ours import fitted


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    model, tokenizer = adapted(job, settings["rank"])
    tuned = contest(job, model, tokenizer, epochs=settings["epochs"], **TRAINING)[-1]
    folder = job.folder / "merged"
    model.merge_and_unload().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    made = fitted(job, settings["name"], {"epochs": "0"}, backbone=str(folder), before=tuned.training)
    return [replace(made, parameters=made.parameters + tuned.parameters)]


def seconds(task: Task) -> float:
    return 1.5 * START + SHARE * task.epoch + task.mark + 2 * task.answers


contestants.add(
    "ours-lora",
    Contestant(
        "LoRA-tuned encoder (rank 8, as PEFT's; its own output layer is left behind), then BERTVision's heads on it",
        {
            "8x1": Variant(
                {"name": "LoRA 1 epoch + heads", "rank": 8, "epochs": 1},
                lambda task: 1 if task.name in ("cola", "mrpc") else 2,
                seconds,
            )
        },
        run,
        OURS,
        ("bertvision", "peft"),
    ),
)
