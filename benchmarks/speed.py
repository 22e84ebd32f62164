"""Time per epoch against transformers' Trainer, in one run: same encoder, batch size, length limit, rows and epochs.

    python -m benchmarks.speed --data ../shared/data --tasks cola,sts-b --out benchmarks/results/speed.json

Also: Trainer with its own length grouping, our loop with frozen embeddings, and the cost of eight heads riding along.
Every contestant runs in a fresh process, in turn, `--rounds` times; seconds are of training alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONTESTANTS = ("trainer", "trainer-grouped", "ours", "ours-8-heads", "ours-frozen-embeddings")
EIGHT = (
    "last-layer,learned-pooling,average-pooling,adapter-64,adapter-64-skip,"
    "last-layer-views,learned-pooling-views,adapter-64-views"
)
BATCH, RATE, LENGTH = 16, 1e-4, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="cola,sts-b")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", default="benchmarks/results/speed.json")
    parser.add_argument("--one", nargs=3, metavar=("CONTESTANT", "TASK", "SEED"))
    given = parser.parse_args()
    if given.one:
        contestant, task, seed = given.one
        print(json.dumps(contest(contestant, task, int(seed), given.data, given.limit)))
        return
    rows = []
    for task in given.tasks.split(","):
        for seed in range(given.rounds):
            for contestant in CONTESTANTS:
                rows.append(in_process(contestant, task, seed, given))
                print(rows[-1], flush=True)
                Path(given.out).parent.mkdir(parents=True, exist_ok=True)
                Path(given.out).write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def in_process(contestant: str, task: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--data", given.data, "--one", contestant, task, str(seed)]
    if given.limit:
        command += ["--limit", str(given.limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"contestant": contestant, "task": task, "seed": seed} | json.loads(done.stdout.strip().splitlines()[-1])


def contest(contestant: str, task: str, seed: int, data: str, limit: int | None) -> dict[str, Any]:
    if contestant.startswith("trainer"):
        return trainer(task, seed, data, limit, grouped=contestant.endswith("grouped"))
    return ours(
        task,
        seed,
        data,
        limit,
        heads=EIGHT if contestant.endswith("heads") else "none",
        freeze="embeddings" if contestant.endswith("embeddings") else None,
    )


def ours(task: str, seed: int, data: str, limit: int | None, heads: str, freeze: str | None) -> dict[str, Any]:
    import bertvision
    from bertvision.records import ENCODER

    with tempfile.TemporaryDirectory() as folder:
        run = bertvision.fit(
            task, data=data, seed=seed, limit=limit, heads=heads, polish=0, lead="own", freeze=freeze,
            dropout=True, batch_size=BATCH, lr=RATE, max_length=LENGTH, marks="1", out=Path(folder) / "run", quiet=True,
        )  # fmt: skip
        costs, found = run.record.costs, run.results.at("1")
        assert costs is not None
        spent = costs.parts
        score = {name: score.value for name, score in found.scores["dev"][ENCODER].items()}
        outside = 1 - (spent["encoder"] + spent["heads"]) / spent["loop"]
        return {
            "seconds": spent["loop"],
            "heads": spent["heads"],
            "outside": outside,
            "steps": found.step,
            "dev": score,
        }


def trainer(task: str, seed: int, data: str, limit: int | None, grouped: bool) -> dict[str, Any]:
    """transformers' Trainer as its documentation uses it, on the very same rows."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    from bertvision.backbones import backbones
    from bertvision.metrics.intervals import measure
    from bertvision.options import Request
    from bertvision.prepare import parts_of
    from bertvision.tasks import tasks

    options = Request(task=task, data=data, limit=limit)
    dataset = tasks[task].load(options)
    parts = parts_of(dataset, options)
    folder = backbones["minilm-l6"].folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, num_labels=dataset.outputs)

    def rows(name: str) -> list[dict[str, Any]]:
        part = parts[name]
        texts = (part.texts, part.second_texts) if part.second_texts is not None else (part.texts,)
        encoded = tokenizer(*texts, truncation=True, max_length=LENGTH)
        assert part.targets is not None
        labels = part.targets.tolist()
        return [{key: encoded[key][i] for key in encoded} | {"label": labels[i]} for i in range(len(part))]

    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out, num_train_epochs=1, per_device_train_batch_size=BATCH, learning_rate=RATE, warmup_steps=0.1,
            per_device_eval_batch_size=32, seed=seed, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_strategy="no", use_cpu=not torch.cuda.is_available(),
            **({"train_sampling_strategy": "group_by_length"} if grouped else {}),
        )  # fmt: skip
        runner = Trainer(
            model, arguments, train_dataset=rows("train"), data_collator=DataCollatorWithPadding(tokenizer)
        )
        started = time.perf_counter()
        runner.train()
        seconds = time.perf_counter() - started
        said = runner.predict(rows("dev"))
    # Its own targets: grouping by length, it answers in another order than it was asked.
    outputs, targets = said.predictions.reshape(len(said.predictions), -1), said.label_ids
    score = {name: measure(outputs, targets, name, dataset.kind) for name in dataset.metrics}
    return {"seconds": seconds, "steps": runner.state.global_step, "dev": score}


if __name__ == "__main__":
    main()
