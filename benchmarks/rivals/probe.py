"""Last-layer linear probe: a regression on the last hidden states of the frozen encoder, pairs read together.

Linear probes as in Alain and Bengio, https://arxiv.org/abs/1610.01644; the states are what
https://huggingface.co/docs/transformers/main_classes/output calls `last_hidden_state`. [CLS] or the mean over all
tokens: held-out rows choose.
"""

from typing import Any

import numpy as np
from benchmarks.rivals import START, Contestant, Job, Outcome, Task, Variant, contestants, everywhere
from benchmarks.rivals.fine_tuning import ANSWER_BATCH
from benchmarks.rivals.regression import regressions

from bertvision.types import Examples


def run(job: Job, settings: dict[str, Any]) -> list[Outcome]:
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    model = AutoModel.from_pretrained(job.encoder, dtype=torch.float32).eval()
    kept: dict[int, tuple[Examples, np.ndarray]] = {}

    @torch.inference_mode()
    def states(examples: Examples) -> np.ndarray:
        """(N, 2, D): [CLS] and the mean. Both come from one pass, so what is asked twice is kept."""
        if id(examples) in kept:
            return kept[id(examples)][1]
        texts = (examples.texts,) if examples.second_texts is None else (examples.texts, examples.second_texts)
        encoded = tokenizer(*texts, truncation=True, max_length=job.max_length)
        order = np.argsort([-len(ids) for ids in encoded["input_ids"]], kind="stable")
        found = np.empty((len(order), 2, model.config.hidden_size), np.float32)
        for first in range(0, len(order), ANSWER_BATCH):
            some = order[first : first + ANSWER_BATCH]
            batch = tokenizer.pad({key: [encoded[key][i] for i in some] for key in encoded}, return_tensors="pt")
            last = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            found[some] = torch.stack([last[:, 0], (last * mask).sum(1) / mask.sum(1)], 1).numpy()
        if len(examples) > 1:
            kept[id(examples)] = examples, found  # with the examples, so that the number stays theirs
        return found

    ways = {"mean": lambda examples: states(examples)[:, 1], "cls": lambda examples: states(examples)[:, 0]}
    return regressions(job, ways)


def seconds(task: Task) -> float:
    return START + task.clean + task.answers + task.rows * 0.002


contestants.add(
    "probe",
    Contestant(
        "linear probe on the last layer of the frozen encoder",
        {"regression": Variant({}, everywhere(1), seconds)},
        run,
        "linear probe",
        ("transformers", "scikit-learn"),
        seeded=False,
    ),
)
