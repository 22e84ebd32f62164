"""transformers' Trainer: full fine-tuning as its guides do it, with its own length grouping.

https://huggingface.co/docs/transformers/tasks/sequence_classification: batches of 16, weight decay 0.01, learning rate
2e-5, linear schedule; https://huggingface.co/docs/transformers/tasks/question_answering: the same, 3 epochs.

One setting is better than the guides': their 2e-5 is meant for encoders twice as wide. On held-out rows this one learns
best at 1e-4 (docs/lab-notes/defaults.md), so that is what the rival gets, with the warm-up it was found with; the
guides' own rate is the variant `3-documented`. `3-random` is without length grouping, which is Trainer's default.
`3-no-dropout` leaves dropout out, as ours does: no guide says so, but it shows what of our lead is due to it.
"""

from typing import Any

from benchmarks.rivals import REFERENCE, START, Contestant, Job, Outcome, Task, Variant, contestants
from benchmarks.rivals.fine_tuning import contest, loaded

TUNED_RATE = {"rate": 1e-4, "warmup": 0.1}
DOCUMENTED_RATE = {"rate": 2e-5, "warmup": 0.0}  # the guides set no warm-up
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    model, tokenizer = loaded(job, **settings.get("config", {}))
    return contest(job, model, tokenizer, **{name: value for name, value in settings.items() if name != "config"})


def variant(epochs: int, glue: int, spans: int | None, slower: float = 1.0, **more: Any) -> Variant:
    """`glue`, `spans`: at which stage it takes part in tasks of these kinds."""

    def seconds(task: Task) -> float:
        return START + epochs * (slower * task.epoch + task.answers)

    return Variant(TUNED_RATE | {"epochs": epochs} | more, lambda task: spans if task.kind == "span" else glue, seconds)


contestants.add(
    "trainer",
    Contestant(
        "transformers Trainer, all weights, length grouping on, 1e-4",
        {
            # On SQuAD three epochs take most of an hour, so the first hours see one.
            "3": variant(3, 1, 2),
            "1": variant(1, 1, 1),
            "2": variant(2, 2, None),
            "3-documented": variant(3, 2, None, **DOCUMENTED_RATE, note="2e-5, no warm-up"),
            "3-no-dropout": variant(3, 2, 2, slower=0.7, config=NO_DROPOUT, note="no dropout"),
            "3-random": variant(3, 2, None, slower=1.7, grouped=False, note="no length grouping"),
        },
        run,
        REFERENCE,
        ("transformers", "accelerate"),
    ),
)
