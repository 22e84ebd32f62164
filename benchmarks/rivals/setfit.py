"""SetFit: contrastive tuning of the encoder on pairs of training texts, logistic regression on its embeddings.

https://huggingface.co/docs/setfit/reference/trainer: batches of 16 pairs, one epoch over all pairs, rate 2e-5, warm-up
0.1, pairs oversampled: all defaults. Few-shot rows by `sample_dataset`, 8 per class, as in
https://huggingface.co/docs/setfit/quickstart.

Pairs grow with the square of the rows, so the number of steps is capped (`max_steps`), which the quick start allows for
("don't be afraid to train for less than 1 epoch if you have a lot of data"; 500 in its how-to on distillation): 64 per
class make 520 steps an epoch, of which `64` takes 100 and `64-epoch` all. The logistic regression sees all rows.
With all of a task's rows SetFit first lists all pairs in memory, which 19,000 rows (SST-2) make 180 million: not there.

SetFit takes one text per example, so both texts of a pair are joined, as its maintainers advise
(https://github.com/huggingface/setfit/issues/344), here with the tokenizer's own separator.
"""

from typing import Any

import numpy as np
from benchmarks.rivals import START, Contestant, Job, Outcome, Task, Variant, contestants, targets
from benchmarks.rivals.measuring import asked, size_of
from benchmarks.rivals.regression import spread

from bertvision.types import Examples

BATCH = 16
MOST_ROWS = 10_000


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    import torch
    from datasets import Dataset, disable_progress_bars
    from setfit import SetFitModel, Trainer, TrainingArguments, sample_dataset

    disable_progress_bars()
    torch.manual_seed(job.seed)
    model = SetFitModel.from_pretrained(str(job.encoder), device="cpu")
    model.model_body.max_seq_length = job.max_length
    separator = f" {model.model_body.tokenizer.sep_token} "

    def texts(examples: Examples) -> list[str]:
        if examples.second_texts is None:
            return examples.texts
        return [separator.join(both) for both in zip(examples.texts, examples.second_texts, strict=True)]

    def predict(examples: Examples) -> np.ndarray:
        found = model.predict_proba(texts(examples), as_numpy=True, show_progress_bar=False)
        return spread(found, model.model_head.classes_, job.dataset.outputs)

    rows = Dataset.from_dict({"text": texts(job.taught), "label": targets(job.taught).tolist()})
    started = job.clock.now()
    if settings["shots"]:
        rows = sample_dataset(rows, label_column="label", num_samples=settings["shots"], seed=job.seed)
    arguments = TrainingArguments(
        output_dir=str(job.folder / "setfit"),
        batch_size=BATCH,
        max_steps=settings["steps"],
        max_length=job.max_length,
        seed=job.seed,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        show_progress_bar=False,
    )
    runner = Trainer(model=model, args=arguments, train_dataset=rows)
    runner.train()
    training = job.clock.now() - started
    ready, latency = asked(job, predict)
    with job.clock.paused():
        model.save_pretrained(job.folder / "kept")
        body = sum(parameter.numel() for parameter in model.model_body.parameters())
        return [
            Outcome(
                settings["name"],
                predict(job.dev),
                job.held_back(predict),
                training,
                ready,
                body + int(model.model_head.coef_.size + np.size(model.model_head.intercept_)),
                size_of(job.folder / "kept"),
                latency,
                note=f"{len(rows)} rows, {runner.st_trainer.state.global_step} steps",
            )
        ]


def variant(name: str, shots: int | None, steps: int, stage: int) -> Variant:
    """`steps` -1: an epoch over all pairs."""

    def takes_part(task: Task) -> int | None:
        feasible = shots is not None or task.rows <= MOST_ROWS
        if task.kind != "class" or not feasible:
            return None
        # More than a few steps on joined pairs, which SetFit is not made for, can wait.
        return max(stage, 2) if task.pairs and shots != 8 else stage

    def seconds(task: Task) -> float:
        made = steps if steps > 0 else 2 * ((shots or 0) ** 2 + (shots or 0)) / BATCH  # of two classes
        encoding = 0 if shots else task.clean
        return START + made * 2 * BATCH * task.epoch / task.rows + encoding + task.answers

    return Variant({"name": name, "shots": shots, "steps": steps}, takes_part, seconds)


contestants.add(
    "setfit",
    Contestant(
        "SetFit; both texts of a pair joined to one",
        {
            "8": variant("8 per class", 8, -1, 1),
            "64": variant("64 per class, 100 steps", 64, 100, 1),
            "64-epoch": variant("64 per class", 64, -1, 2),
            "all": variant("all rows, 500 steps", None, 500, 2),
        },
        run,
        "SetFit",
        ("setfit", "sentence-transformers", "scikit-learn"),
    ),
)
