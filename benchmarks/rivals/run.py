"""Run contestants, one job at a time, each in a fresh process; results as JSON lines, and what is there stays.

    python -m benchmarks.rivals.run --data ../shared/data --dry-run
    python -m benchmarks.rivals.run --data ../shared/data --tasks rte,mrpc --contestants trainer,ours:frozen --seeds 0,1
    python -m benchmarks.rivals.run --data ../shared/data --limit 64 --dev-limit 40 --out trial.jsonl

Jobs come in the order of what they tell for their price: one seed of each contestant on every task, a second seed where
an epoch is short, then further variants and seeds. `--hours` ends the list where its estimated seconds are spent; the
same command again goes on from there. `--again` takes what is done once more, after a change to ours, say.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.rivals import OURS, REFERENCE, TASKS, Contestant, Job, Outcome, Variant, contestants, targets
from benchmarks.rivals.measuring import BEGAN, calibrate

from bertvision.errors import UserError
from bertvision.locks import lock
from bertvision.registry import Registry, unknown

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "rivals.jsonl"
DRAWS = 200  # resampled dev scores that are kept, for paired intervals
MAX_LENGTH, WINDOW = 256, 386  # BERTVision's defaults, for everybody
MODULE = "benchmarks.rivals.run"
PATIENCE = 4  # times what a job was reckoned to take
More = Callable[[Job, Outcome], dict[str, Any]]


@dataclass(frozen=True)
class Key:
    """What makes a job the same job: it is run once."""

    task: str
    contestant: str
    variant: str
    seed: int
    backbone: str
    limit: int | None
    dev_limit: int | None
    threads: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Key":
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})

    @property
    def label(self) -> str:
        rows = f" {self.limit:,} rows" if self.limit else ""
        return f"{self.task}{rows} {self.contestant}:{self.variant} seed {self.seed}"


@dataclass(frozen=True)
class Planned:
    key: Key
    order: tuple[float, ...]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--contestants", default="all", help="names, each with or without :VARIANT")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--hours", type=float, default=3.0, help="estimated, of what is not done yet")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=int, help="train rows of every task, for trials")
    parser.add_argument("--dev-limit", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="also what is done; new results take the old ones' place")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("KEY", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        Path(given.one[1]).write_text(json.dumps(one(Key(**json.loads(given.one[0])), given.data)))
        return
    try:
        jobs = plan(given)
    except UserError as error:
        sys.exit(str(error))
    done = set() if given.again else {Key.of(row) for row in read(given.out)}
    chosen, later = within([job for job in jobs if job.key not in done], given.hours * 3600)
    if given.dry_run:
        print("\n".join(listing(chosen, later, len(jobs) - len(chosen) - len(later))))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(
        f"{len(chosen)} jobs, about {sum(job.seconds for job in chosen):.0f} s; {len(later)} for more hours", flush=True
    )
    sys.exit(run_all(chosen, given.data, given.out))


def plan(given: argparse.Namespace) -> list[Planned]:
    """All jobs that were asked for, in their order."""
    seeds, made = [int(seed) for seed in given.seeds.split(",")], []
    for name in given.tasks.split(","):
        if name not in TASKS:
            raise unknown("task", name, list(TASKS))
        task = TASKS[name].cut(given.limit, given.dev_limit)
        for label, contestant, title, variant in asked_for(given.contestants):
            stage = variant.stage(TASKS[name])
            for number, seed in enumerate(seeds if contestant.seeded else seeds[:1]):
                if stage is None:
                    continue
                key = Key(name, label, title, seed, given.backbone, task.limit, task.dev_limit, given.threads)
                # Ours and what it is held against come first, should the hours not suffice for all.
                later = contestant.group not in (OURS, REFERENCE)
                order = (priority(stage, number == 0, TASKS[name].large), task.epoch, later)
                made.append(Planned(key, order, variant.seconds(task)))
    return sorted(made, key=lambda job: job.order)


def priority(stage: int, first_seed: bool, large: bool) -> int:
    if first_seed:
        return 0 if stage == 1 else 2
    return (3 if large else 1) if stage == 1 else 4


def asked_for(
    names: str, contestants: Registry[Contestant] = contestants
) -> Iterator[tuple[str, Contestant, str, Variant]]:
    """(contestant's name, contestant, variant's name, variant) of `all`, or of `lora,ours:frozen`."""
    for part in list(contestants) if names == "all" else names.split(","):
        name, _, wanted = part.partition(":")
        if name not in contestants:
            raise unknown("contestant", name, list(contestants))
        contestant = contestants[name]
        if wanted and wanted not in contestant.variants:
            raise unknown(f"variant of {name}", wanted, list(contestant.variants))
        for title, variant in contestant.variants.items():
            if wanted in ("", title):
                yield name, contestant, title, variant


def within(jobs: list[Planned], seconds: float) -> tuple[list[Planned], list[Planned]]:
    """(those that fit into the seconds one after the other, the rest). None is passed over for its length."""
    count, spent = 0, 0.0
    while count < len(jobs) and spent + jobs[count].seconds <= seconds:
        spent, count = spent + jobs[count].seconds, count + 1
    return jobs[:count], jobs[count:]


def listing(chosen: list[Planned], later: list[Planned], done: int) -> list[str]:
    lines = [f"{job.seconds:7.0f} s  {job.key.label}" for job in chosen]
    for title, jobs in ((f"{len(chosen)} jobs to run", chosen), (f"{len(later)} more, given more --hours", later)):
        lines.append(f"{sum(job.seconds for job in jobs):7.0f} s  {title}")
    return [*lines, f"{done} jobs are done. Seconds are estimated for two cores."]


def read(file: Path) -> list[dict[str, Any]]:
    """Rows of a results file; a line that a crash cut short counts for nothing."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def put(file: Path, rows: list[dict[str, Any]]) -> None:
    """All rows of a job at once, so that a job is there wholly or not at all; in the place of what it had before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = {Key.of(row) for row in rows}
    kept = [*(row for row in read(file) if Key.of(row) not in keys), *rows]
    aside = file.with_name(file.name + ".tmp")
    aside.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept), encoding="utf-8")
    os.replace(aside, file)


def run_all(jobs: list[Planned], data: str, out: Path, module: str = MODULE) -> int:
    """Exit code: 1 if a job failed. A failed job leaves nothing in the file, so the next call tries it again."""
    with alone(out):
        return _run_all(jobs, data, out, module)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Two at once would disturb each other, and count their seeds twice."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(lock(out.with_name(out.name + ".lock"), out, "Wait for it."))
        except UserError as error:
            sys.exit(str(error))
        yield


def _run_all(jobs: list[Planned], data: str, out: Path, module: str) -> int:
    failed, left = [], sum(job.seconds for job in jobs)
    for number, job in enumerate(jobs, 1):
        before = calibrate(job.key.threads)
        started = time.time()
        rows, memory, error = in_process(job.key, data, PATIENCE * job.seconds + 600, module)
        spent, left = time.time() - started, left - job.seconds
        if error:
            failed.append(job.key.label)
            print(f"[{number}/{len(jobs)}] {job.key.label}: FAILED\n{error}", flush=True)
            continue
        speed = min(before, calibrate(job.key.threads))
        measured = {"peak_memory": memory, "job_seconds": round(spent, 1), "calibration": round(speed, 1)}
        put(out, [row | measured for row in rows])
        found = "; ".join(f"{r['outcome']} {r['scores'][r['metric']]['value']:.3f} in {r['ready']:.0f} s" for r in rows)
        print(f"[{number}/{len(jobs)}] {job.key.label}: {found} ({spent:.0f} s, {left:.0f} s to go)", flush=True)
    if failed:
        print(f"{len(failed)} jobs failed: {'; '.join(failed)}", flush=True)
    return int(bool(failed))


def in_process(key: Key, data: str, patience: float, module: str) -> tuple[list[dict[str, Any]], int, str]:
    """(rows, peak memory in bytes, the end of what it said if it failed) of a job in a process of its own, which is
    ended after `patience` seconds. `module` takes `--data FOLDER --one KEY FILE`."""
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        result, log = Path(folder) / "rows.json", Path(folder) / "log"
        command = [sys.executable, "-m", module, "--data", str(Path(data).absolute())]
        command += ["--one", json.dumps(asdict(key)), str(result)]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(key.threads),
            "MKL_NUM_THREADS": str(key.threads),
            "RAYON_NUM_THREADS": str(key.threads),  # of the tokenizers
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": folder,
            "XDG_CACHE_HOME": folder,  # nobody finds the windows that another has cut
            BEGAN: str(time.time()),
        }
        code, memory = watched(command, log, environment, patience)
        if code or not result.exists():
            return [], memory, log.read_text(errors="replace")[-2000:]
        return json.loads(result.read_text()), memory, ""


def watched(command: list[str], log: Path, environment: dict[str, str], patience: float) -> tuple[int, int]:
    """(exit code, peak memory in bytes) of a process, which is ended after `patience` seconds."""
    with log.open("wb") as said:
        child = subprocess.Popen(command, stdout=said, stderr=said, cwd=ROOT, env=environment)
        watch = threading.Timer(patience, child.kill)
        watch.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:  # Ctrl-C, or a signal to end: a job left alone would disturb the next
            child.terminate()
            child.wait()
            raise
        finally:
            watch.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def one(key: Key, data: str) -> list[dict[str, Any]]:
    """A job, in this process: a row for each of its outcomes."""
    with tempfile.TemporaryDirectory(prefix="rival-") as folder:
        return results(key, contestants[key.contestant], prepared(key, data, Path(folder)))


def results(key: Key, contestant: Contestant, job: Job, more: More = lambda job, outcome: {}) -> list[dict[str, Any]]:
    """`more` adds columns to a row."""
    outcomes = contestant.run(job, contestant.variants[key.variant].settings)
    known = asdict(key) | {
        "kind": job.kind,
        "metric": job.metric,
        "rows": {name: len(part) for name, part in job.parts.items()},
        "digest": job.dev.digest()[:16],
        "versions": {name: importlib.metadata.version(name) for name in ("torch", *contestant.packages)},
        "commit": commit(),
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
    }
    return [known | scored(job, outcome, contestant) | more(job, outcome) for outcome in outcomes]


def commit() -> str:
    """Of this repository, with a plus where it was changed since; or nothing."""
    command = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def prepared(key: Key, data: str, folder: Path) -> Job:
    from bertvision.recipe import Recipe

    encoder, longest = encoder_of(key)
    options = Recipe(
        task=key.task,
        data=data,
        limit=key.limit,
        dev_limit=key.dev_limit,
        seed=key.seed,
        max_length=min(longest, WINDOW if TASKS[key.task].kind == "span" else MAX_LENGTH),
    )
    return Job(key.task, key.seed, encoder, options, folder)


def encoder_of(key: Key) -> tuple[Path, int]:
    """(folder, the most tokens it can read)"""
    from bertvision.backbones import backbones

    encoder = backbones[key.backbone].folder() if key.backbone in backbones else Path(key.backbone)
    return encoder, json.loads((encoder / "config.json").read_text())["max_position_embeddings"]


def scored(job: Job, outcome: Outcome, contestant: Contestant) -> dict[str, Any]:
    """A row of the results, less what the parent process knows."""
    from bertvision.metrics.intervals import measure, resampled, score
    from bertvision.metrics.squad import defined

    truth = targets(job.dev)
    metrics = [name for name in job.dataset.metrics if job.kind != "span" or defined(name, truth)]
    scores = {name: score(outcome.dev, truth, name, job.kind).as_dict() for name in metrics}
    row = {
        "outcome": outcome.name,
        "scores": {name: {part: round(value, 5) for part, value in found.items()} for name, found in scores.items()},
        "held_out": held_out_score(job, outcome),
        "draws": [round(float(v), 4) for v in resampled(outcome.dev, truth, job.metric, job.kind)[:DRAWS]],
        "training": round(outcome.training, 2),
        "ready": round(outcome.ready, 2),
        "latency": round(outcome.latency, 5),
    }
    chosen = isinstance(outcome.held_out, np.ndarray)
    if chosen and not contestant.ours and job.kind == "class" and job.dataset.outputs == 2:
        row["matched"] = round(measure(matched(job, outcome), truth, job.metric), 5)
    return row | {name: getattr(outcome, name) for name in ("parameters", "disk", "needs_encoder", "note", "call")}


def matched(job: Job, outcome: Outcome) -> np.ndarray:
    """The dev answers with a threshold tuned as for our ensemble-matched; rivals leave it at one half."""
    from bertvision.inference.select import combined, matching_shift
    from bertvision.records import ENCODER, Ensemble

    assert isinstance(outcome.held_out, np.ndarray)
    shift = matching_shift(outcome.held_out[:, 1], float(np.mean(targets(job.held_out))))
    return combined(Ensemble("mean", {ENCODER: 1.0}, shift), {ENCODER: outcome.dev}, job.kind)


def held_out_score(job: Job, outcome: Outcome) -> float | None:
    from bertvision.metrics.intervals import measure

    if outcome.held_out is None:
        return None
    if isinstance(outcome.held_out, float):
        return round(outcome.held_out, 5)
    return round(measure(outcome.held_out, targets(job.held_out), job.metric, job.kind), 5)


if __name__ == "__main__":
    main()
