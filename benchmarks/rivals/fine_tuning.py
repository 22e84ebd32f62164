"""What transformers' Trainer and PEFT have in common: rows for Trainer, a training with stops, and dev answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.rivals import Job, Outcome, targets
from benchmarks.rivals.measuring import asked, size_of

from bertvision.types import Examples

BATCH, ANSWER_BATCH = 16, 32

Predict = Callable[[Examples], np.ndarray]


def loaded(job: Job, **config: Any) -> tuple[Any, Any]:
    """(model with a new output layer, tokenizer); `config`: what is to differ from the encoder's own"""
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)
    # The file may carry truncation and padding of its own (MiniLM's says 128 tokens): the limit is the job's.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    torch.manual_seed(job.seed)
    kind = AutoModelForQuestionAnswering if job.kind == "span" else AutoModelForSequenceClassification
    # One output means regression to transformers: mean squared error on the scores as they are.
    model = kind.from_pretrained(job.encoder, dtype=torch.float32, num_labels=job.dataset.outputs, **config)
    return model, tokenizer


def rows(job: Job, tokenizer: Any) -> list[dict[str, Any]]:
    """Train rows as Trainer takes them. Questions come in our windows, so that only the training differs."""
    if job.kind == "span":
        return _windows(job, tokenizer)
    encoded = tokenizer(*_texts(job.taught), truncation=True, max_length=job.max_length)
    labels = targets(job.taught).tolist()
    return [{key: encoded[key][i] for key in encoded} | {"label": labels[i]} for i in range(len(labels))]


def _windows(job: Job, tokenizer: Any) -> list[dict[str, Any]]:
    from bertvision.backbones.tokenise import labelled, windowed

    windows, _ = labelled(windowed(tokenizer, job.train, job.max_length, job.options.stride), job.train)
    assert windows.answers is not None
    made = []
    for i, (first, last) in enumerate(windows.answers.tolist()):
        here = slice(windows.offsets[i], windows.offsets[i + 1])
        made.append(
            {
                "input_ids": windows.tokens[here].tolist(),
                "token_type_ids": windows.types[here].tolist(),
                "attention_mask": [1] * int(windows.lengths[i]),
                "start_positions": first,
                "end_positions": last,
            }
        )
    return made


def contest(
    job: Job,
    model: Any,
    tokenizer: Any,
    *,
    epochs: int,
    rate: float,
    warmup: float,
    weight_decay: float = 0.01,
    grouped: bool = True,
    needs_encoder: bool = False,
    note: str = "",
    stops: bool = True,
) -> list[Outcome]:
    """Train for `epochs` with a linear schedule; an outcome after each of them or, without `stops`, after the last.

    Those before the last come in the middle of the schedule, at a rate that is still high: a user who stops there gets
    just this, one who plans for fewer epochs gets somewhat more, which is what variants of fewer epochs are for.
    """
    import torch
    from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments

    outcomes: list[Outcome] = []

    def reached(epoch: int) -> None:
        entered = job.clock.now()
        training = entered - started
        model.eval()
        predict, single = predictors(job, model, tokenizer)
        ready, latency = asked(job, single)
        with job.clock.paused():
            kept = job.folder / f"epoch-{epoch}"
            model.save_pretrained(kept)
            if not needs_encoder:
                tokenizer.save_pretrained(kept)
            outcomes.append(
                Outcome(
                    f"{epoch} of {epochs} epochs" if epoch < epochs else f"{epochs} epoch{'s' * (epochs > 1)}",
                    predict(job.dev),
                    job.held_back(predict),
                    training,
                    ready,
                    sum(p.numel() for p in model.parameters() if p.requires_grad),
                    size_of(kept),
                    latency,
                    needs_encoder,
                    note,
                )
            )
        model.train()
        job.clock.leave_out(job.clock.now() - entered)  # what is done at a stop is not part of the way to the next

    class Stops(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if stops and round(state.epoch) < epochs:
                reached(round(state.epoch))

    arguments = TrainingArguments(
        output_dir=str(job.folder / "trainer"),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        learning_rate=rate,
        weight_decay=weight_decay,
        # A number below one is a share of all steps since transformers 5 (warmup_ratio is gone).
        warmup_steps=warmup,
        # Trainer's length grouping, which was called group_by_length=True before transformers 5.
        # https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
        train_sampling_strategy="group_by_length" if grouped else "random",
        seed=job.seed,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    collate = DataCollatorWithPadding(tokenizer)
    runner = Trainer(model, arguments, train_dataset=rows(job, tokenizer), data_collator=collate, callbacks=[Stops()])
    started = job.clock.now()
    runner.train()
    reached(epochs)
    return outcomes


def predictors(job: Job, model: Any, tokenizer: Any) -> tuple[Predict, Callable[[Examples], object]]:
    """(answers to score, the same answers as a user wants them). Trainer.predict is not used: with length grouping, it
    returns predictions in the order of its sampler, not of the rows."""
    if job.kind == "span":
        return _span_predictors(job, model, tokenizer)

    def predict(examples: Examples) -> np.ndarray:
        return _answered(model, tokenizer, examples, job.max_length, job.kind)

    return predict, predict


def _answered(model: Any, tokenizer: Any, examples: Examples, max_length: int, kind: str) -> np.ndarray:
    import torch

    encoded = tokenizer(*_texts(examples), truncation=True, max_length=max_length)
    order = np.argsort([-len(ids) for ids in encoded["input_ids"]], kind="stable")
    found: dict[int, Any] = {}
    with torch.inference_mode():
        for first in range(0, len(order), ANSWER_BATCH):
            some = order[first : first + ANSWER_BATCH]
            batch = tokenizer.pad({key: [encoded[key][i] for i in some] for key in encoded}, return_tensors="pt")
            logits = model(**batch.to(model.device)).logits.double()
            found |= zip(some.tolist(), logits.softmax(-1) if kind == "class" else logits, strict=True)
    return torch.stack([found[i] for i in range(len(order))]).cpu().numpy()


def _span_predictors(job: Job, model: Any, tokenizer: Any) -> tuple[Predict, Callable[[Examples], object]]:
    """Our windows, decoding and judges; the null threshold is tuned on held-out questions, as for our own models."""
    from bertvision.backbones.encoder import Encoder
    from bertvision.backbones.tokenise import tokenise
    from bertvision.heads.base import Shape
    from bertvision.inference.answer import Target, answer
    from bertvision.kinds import RAW_THRESHOLD, Scale
    from bertvision.kinds.spans import SpanJudge, best_spans
    from bertvision.records import ENCODER
    from bertvision.states.passes import Reads, clean_pass

    encoder = Encoder(model, tokenizer, pooled=False)
    shape = Shape(encoder.layers, encoder.features, 2, paired=True, pooled=False, span=True)
    target = Target("span", Scale(), shape)

    def outputs(examples: Examples) -> tuple[Any, np.ndarray]:
        encoded = tokenise(encoder, examples, job.options, split_contexts=True)
        steps = clean_pass(encoder, encoded, Reads(paired=True, tokens=True))
        return encoded.together, answer(steps, encoded.together, {}, target)[ENCODER]

    windows, said = outputs(job.held_out)
    threshold = SpanJudge(job.held_out, windows, job.options).predictions(said).threshold

    def predict(examples: Examples) -> np.ndarray:
        windows, said = outputs(examples)
        return SpanJudge(examples, windows, job.options).predictions(said, threshold).values

    def single(examples: Examples) -> list[str]:
        asked = Examples(examples.texts, examples.second_texts, None)
        windows, said = outputs(asked)
        found = best_spans(said, windows, job.options.answer_length)
        nulls = found.null_probabilities > (RAW_THRESHOLD if threshold is None else threshold)
        return ["" if null else text for null, text in zip(nulls, found.texts(asked), strict=True)]

    return predict, single


def _texts(examples: Examples) -> tuple[list[str], ...]:
    return (examples.texts,) if examples.second_texts is None else (examples.texts, examples.second_texts)
