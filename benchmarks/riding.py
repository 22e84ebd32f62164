"""What heads that are trained along add to fine-tuning: eight heads on texts, six on tokens.

Time: the same batches with and without the heads, in turn. Memory: the peak of a process that trains with the heads,
against one that trains without.

    python -m benchmarks.riding --data ../shared/data --tasks cola,sts-b
    python -m benchmarks.riding --tasks squad2 --steps 40 --out benchmarks/results/riding-spans.json
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from benchmarks.speed import EIGHT

from bertvision.heads.variants import build
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.states.batches import bucketed, padding_share
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.loop import Loop
from bertvision_paper.plan import PLAIN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default="cola,sts-b")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="benchmarks/results/riding.json")
    parser.add_argument("--peak", help="only train with these heads and print the peak memory in bytes")
    given = parser.parse_args()
    if given.peak:
        print(peak(request_of(given.tasks, given.data, given.backbone, given.peak), given.steps))
        return
    rows = [measure(task, given.data, given.backbone, given.steps) for task in given.tasks.split(",")]
    Path(given.out).write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def request_of(task: str, data: str, backbone: str, heads: str) -> Request:
    limit = 4000 if task.startswith("squad") else None
    return Request(task=task, data=data, backbone=backbone, heads=heads, limit=limit, dev_limit=100, **PLAIN)


def heads_of(task: str) -> str:
    return "default" if task.startswith("squad") else EIGHT


def measure(task: str, data: str, backbone: str, steps: int) -> dict[str, object]:
    setting = prepare(request_of(task, data, backbone, heads_of(task)), Progress(quiet=True))
    many = len(setting.names)
    riders = {
        count: HeadTrainer(build(names, setting.shape, 0), setting.dataset.kind, lr=1e-3, seed=0)
        for count, names in ((0, []), (many, setting.names))
    }
    loop = Loop(setting, riders[0], Accelerator())
    loop.encoder.train()
    lengths = loop.windows.lengths
    batches = bucketed(lengths, loop.batch_size, 0, 0)
    seconds = {0: 0.0, many: 0.0}
    for step, rows in enumerate(batches[: steps + 5]):
        for count in (0, many) if step % 2 else (many, 0):
            loop.riders = riders[count]
            started = time.perf_counter()
            loop._train_step([rows], 0.5)
            if step >= 5:  # the first steps allocate
                seconds[count] += time.perf_counter() - started
    row = {
        "task": task,
        "steps": steps,
        "seconds_without": round(seconds[0], 2),
        "heads": many,
        "seconds_with_heads": round(seconds[many], 2),
        "added": round(seconds[many] / seconds[0] - 1, 4),
        "padding": round(padding_share(lengths, batches), 4),
        "threads": torch.get_num_threads(),
    }
    command = [sys.executable, "-m", "benchmarks.riding", "--data", data, "--tasks", task, "--backbone", backbone]
    command += ["--steps", "15", "--peak"]
    peaks = {
        heads: int(subprocess.run([*command, heads], capture_output=True, text=True, check=True).stdout)
        for heads in ("none", heads_of(task))
    }
    row |= {"peak_without": peaks["none"], "peak_added": round(peaks[heads_of(task)] / peaks["none"] - 1, 4)}
    print(row, flush=True)
    return row


def peak(request: Request, steps: int) -> int:
    """Peak memory in bytes of a process that trains on the longest batches."""
    setting = prepare(request, Progress(quiet=True))
    riders = HeadTrainer(build(setting.names, setting.shape, 0), setting.dataset.kind, lr=1e-3, seed=0)
    loop = Loop(setting, riders, Accelerator())
    loop.encoder.train()
    order, size = np.argsort(-loop.windows.lengths), loop.batch_size
    for first in range(0, steps * size, size):
        loop._train_step([order[first : first + size]], 0.5)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
