"""What eight heads riding along add to a fine-tuning step: the same batches with and without them, in turn.

python benchmarks/riding.py --data ../shared/data --tasks cola,sts-b --out benchmarks/results/riding.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from speed import EIGHT

from bertvision.options import FitOptions
from bertvision.progress import Progress
from bertvision.training.batches import bucketed, padding_share
from bertvision.training.heads import HeadTrainer, build
from bertvision.training.loop import Loop
from bertvision.training.setting import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="cola,sts-b")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="benchmarks/results/riding.json")
    given = parser.parse_args()
    rows = [measure(task, given.data, given.steps) for task in given.tasks.split(",")]
    Path(given.out).write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def measure(task: str, data: str, steps: int) -> dict[str, object]:
    setting = prepare(FitOptions(task=task, data=data, heads=EIGHT), Progress(quiet=True))
    riders = {
        count: HeadTrainer(build(names, setting.shape, 0), setting.dataset.kind, lr=1e-3, seed=0)
        for count, names in ((0, []), (8, setting.names))
    }
    loop = Loop(setting, riders[0], Accelerator())
    loop.encoder.train()
    lengths = loop.windows.lengths
    batches = bucketed(lengths, loop.options.batch_size, 0, 0)
    seconds = {0: 0.0, 8: 0.0}
    for step, rows in enumerate(batches[: steps + 5]):
        for count in (0, 8) if step % 2 else (8, 0):
            loop.riders = riders[count]
            started = time.perf_counter()
            loop._train_step([rows], 0.5)
            if step >= 5:  # the first steps allocate
                seconds[count] += time.perf_counter() - started
    row = {
        "task": task,
        "steps": steps,
        "seconds_without": round(seconds[0], 2),
        "seconds_with_8_heads": round(seconds[8], 2),
        "added": round(seconds[8] / seconds[0] - 1, 4),
        "padding": round(padding_share(lengths, batches), 4),
        "threads": torch.get_num_threads(),
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
