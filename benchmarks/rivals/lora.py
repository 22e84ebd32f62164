"""PEFT's LoRA, trained by transformers' Trainer as PEFT's quick tour does.

https://huggingface.co/docs/peft/quicktour: rank 8, alpha 32, dropout 0.1, learning rate 1e-3, weight decay 0.01.
https://huggingface.co/docs/peft/package_reference/lora: rank 16 with alpha 16 on query and value, which are also the
layers PEFT takes for BERT by itself; `target_modules="all-linear"` "can provide performance equal to a fully finetuned
model". Warm-up: 0.06 of all steps, as in PEFT's examples/sequence_classification/LoRA.ipynb (MRPC; 3e-4 there, but for
20 epochs). Batches of 16 as everybody else here, where the quick tour has 32: more steps, which few epochs need.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.rivals import START, Contestant, Job, Outcome, Task, Variant, contestants
from benchmarks.rivals.fine_tuning import contest, loaded

SHARE = 0.75  # of the seconds of full fine-tuning: no gradients of frozen matrices, but two more products per layer
ALPHAS = {8: 32, 16: 16}
TRAINING: dict[str, Any] = {"rate": 1e-3, "warmup": 0.06, "needs_encoder": True}


def adapted(job: Job, rank: int, layers: Any = ("query", "value")) -> tuple[Any, Any]:
    """(model with adapters and a new output layer, tokenizer)"""
    from peft import LoraConfig, TaskType, get_peft_model

    model, tokenizer = loaded(job)
    kind = TaskType.QUESTION_ANS if job.kind == "span" else TaskType.SEQ_CLS  # this also trains the output layer
    config = LoraConfig(
        task_type=kind,
        r=rank,
        lora_alpha=ALPHAS[rank],
        lora_dropout=0.1,
        target_modules=layers if isinstance(layers, str) else list(layers),
    )
    return get_peft_model(model, config), tokenizer


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    rank, layers = settings["rank"], settings.get("layers", ("query", "value"))
    model, tokenizer = adapted(job, rank, layers)
    where = "all linear layers" if layers == "all-linear" else "query and value"
    return contest(job, model, tokenizer, epochs=settings["epochs"], note=f"rank {rank}, {where}", **TRAINING)


def variant(rank: int, epochs: int, stage: Callable[[Task], int | None], **more: Any) -> Variant:
    def seconds(task: Task) -> float:
        slower = 1.3 if more else 1.0  # adapters on three times as many layers
        return START + epochs * (slower * SHARE * task.epoch + task.answers)

    return Variant({"rank": rank, "epochs": epochs} | more, stage, seconds)


def on(small: int | None, large: int | None, spans: int | None) -> Callable[[Task], int | None]:
    """At which stage, by the size of the task: on SQuAD five epochs would take an hour."""
    return lambda task: spans if task.kind == "span" else large if task.large else small


contestants.add(
    "lora",
    Contestant(
        "PEFT LoRA by Trainer, query and value, 1e-3, length grouping on",
        {
            "8x1": variant(8, 1, on(None, 1, 1)),
            "8x3": variant(8, 3, on(1, 2, 2)),
            "8x5": variant(8, 5, on(2, None, None)),
            "16x3": variant(16, 3, on(None, 2, None)),
            "16x5": variant(16, 5, on(2, None, None)),
            "16x3-all-linear": variant(16, 3, on(2, None, None), layers="all-linear"),
        },
        run,
        "LoRA",
        ("peft", "transformers", "accelerate"),
    ),
)
