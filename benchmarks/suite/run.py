"""Run contestants on the suite, one job at a time, each in a fresh process; results as JSON lines, finished jobs stay.

    python -m benchmarks.suite.run --data ../shared/data/suite --dry-run
    python -m benchmarks.suite.run --data ../shared/data/suite --sets trec,subj --sizes 100 --contestants tfidf,ours
    python -m benchmarks.suite.run --data ../shared/data/suite --seeds 0,1,2 --close

Order: one seed first; of it, what takes seconds on everything, then ours with one minute, ours with three, Trainer and
SetFit; sizes above 1,000 rows after that. `--hours` ends the list where its estimated seconds are spent; the same
command again continues. After a change to `src/bertvision`, `--stale` runs ours again where another version did.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.rivals import Job, Outcome, targets
from benchmarks.rivals.run import (
    MAX_LENGTH,
    ROOT,
    Key,
    Planned,
    asked_for,
    encoder_of,
    listing,
    read,
    results,
    run_all,
    within,
)
from benchmarks.suite import LARGE, SIZES, TABLES, contestants
from benchmarks.suite.standings import close_cells

from bertvision.errors import UserError
from bertvision.registry import unknown

RESULTS = ROOT / "benchmarks" / "results" / "suite.jsonl"
MODULE = "benchmarks.suite.run"
OURS = "src/bertvision"  # the code whose version rows carry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="../shared/data/suite")
    default = ",".join(name for name, table in TABLES.items() if not table.optional)
    parser.add_argument("--sets", default=default, help=f"of: {', '.join(TABLES)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="training rows; 10000 means all up to that")
    parser.add_argument("--contestants", default="all", help="names, each with or without :VARIANT")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--hours", type=float, default=8.0, help="estimated, of what is not done yet")
    parser.add_argument("--close", action="store_true", help="only where ours and the best rival are within a point")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="also what is done; new results take the old ones' place")
    parser.add_argument("--stale", action="store_true", help="also ours, where it was run by another version")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("KEY", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        Path(given.one[1]).write_text(json.dumps(one(Key(**json.loads(given.one[0])), given.data)))
        return
    try:
        rows = read(given.out)
        jobs = plan(given)
        if given.close:
            near = close_cells(rows)
            jobs = [job for job in jobs if (job.key.task, job.key.limit) in near]
    except UserError as error:
        sys.exit(str(error))
    stays = done(rows, given.again, method() if given.stale else None)
    chosen, later = within([job for job in jobs if job.key not in stays], given.hours * 3600)
    if given.dry_run:
        print("\n".join(listing(chosen, later, len(jobs) - len(chosen) - len(later))))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(f"{len(chosen)} jobs, about {sum(job.seconds for job in chosen):.0f} s; {len(later)} left out", flush=True)
    sys.exit(run_all(chosen, given.data, given.out, MODULE))


def plan(given: argparse.Namespace) -> list[Planned]:
    """All jobs that were asked for, in their order."""
    seeds, sizes = ([int(part) for part in text.split(",")] for text in (given.seeds, given.sizes))
    made = []
    for place, name in enumerate(given.sets.split(",")):
        if name not in TABLES:
            raise unknown("data set", name, list(TABLES))
        for size in TABLES[name].sizes(tuple(sizes)):
            task = TABLES[name].at(size)
            for label, contestant, title, variant in asked_for(given.contestants, contestants):
                stage = variant.stage(task)
                for number, seed in enumerate(seeds if contestant.seeded else seeds[:1]):
                    if stage is not None:
                        key = Key(name, label, title, seed, given.backbone, size, task.dev_limit, given.threads)
                        order = (number, stage > 0 and size > LARGE, stage, size, place)
                        made.append(Planned(key, order, variant.seconds(task)))
    return sorted(made, key=lambda job: job.order)


def done(rows: list[dict[str, Any]], again: bool, current: str | None) -> set[Key]:
    """What need not be run. `current`: the version of ours that counts, if only one does."""
    if again:
        return set()
    return {Key.of(row) for row in rows if current in (None, row["method"]) or not contestants[row["contestant"]].ours}


def method() -> str:
    """The version of our code, whatever else was committed since; with a plus where files were changed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT).stdout.strip()

    return git("rev-parse", f"HEAD:{OURS}")[:8] + "+" * bool(git("status", "--porcelain", OURS))


def one(key: Key, data: str) -> list[dict[str, Any]]:
    """A job, in this process: a row for each of its outcomes."""
    with tempfile.TemporaryDirectory(prefix="suite-") as folder:
        job = prepared(key, Path(data), Path(folder))
        version = method()
        made = results(key, contestants[key.contestant], job, columns)
        # Which rows were given matters as much as which are answered; their split is ours alone.
        given = sorted(job.taught.digests())
        return [row | {"digest": f"{row['digest'][:8]}-{digest_of(given)}", "method": version} for row in made]


def digest_of(parts: list[bytes]) -> str:
    import hashlib

    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]


def columns(job: Job, outcome: Outcome) -> dict[str, Any]:
    """What rows have here and not in benchmarks/rivals."""
    from sklearn.metrics import f1_score

    found: dict[str, Any] = {"whole": None if outcome.whole is None else round(outcome.whole, 2)}
    if job.kind == "class":
        score = f1_score(targets(job.dev), outcome.dev.argmax(1), average="macro", zero_division=0.0)
        found["macro_f1"] = round(float(score), 5)
    return found


def prepared(key: Key, data: Path, folder: Path) -> Job:
    from bertvision.recipe import Recipe

    table, (encoder, longest) = TABLES[key.task], encoder_of(key)
    options = Recipe(
        task="table",
        train=str(data / table.folder / "train.csv"),
        dev=str(data / table.folder / "test.csv"),
        text=table.text,
        text_pair=table.pair,
        label=table.label,
        kind=table.kind,
        limit=key.limit,
        dev_limit=key.dev_limit,
        seed=key.seed,
        max_length=min(longest, MAX_LENGTH),
    )
    return Job(key.task, key.seed, encoder, options, folder, whole=True)


if __name__ == "__main__":
    main()
