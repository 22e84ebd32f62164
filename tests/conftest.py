"""Shared by all tests: no network, one thread (tests must not depend on the number of cores), small real files."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import csv
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bertvision
from bertvision import cli
from bertvision.runs.directory import Run

GOOD = ["a great film", "the story is very good", "happy music", "good people and a big day", "great fast car movie"]
BAD = ["a bad film", "the story is very poor", "sad music", "poor people and a small day", "bad slow car movie"]
WORDS = "the red blue green big small fast slow happy sad cat dog house car city river music book".split()


def tiny_fit(data: Any, out: Path, *arguments: Any, **options: Any) -> Run:
    """A quick run of the random `tiny` encoder on a table."""
    settings = {"backbone": "tiny", "polish": 1, "folds": 0, "quiet": True, "out": out} | options
    return bertvision.fit(data, *arguments, **settings)


def scores_of(run: Run | Path) -> dict[str, Any]:
    """scores.json as it is on disk."""
    return json.loads((getattr(run, "path", run) / "scores.json").read_text())


def info_of(run: Run | Path) -> dict[str, Any]:
    """run.json as it is on disk."""
    return json.loads((getattr(run, "path", run) / "run.json").read_text())


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct sentences whose class a few words give away."""
    draw = random.Random(seed)
    rows = []
    for i in range(count):
        label = "pos" if i % 2 else "neg"
        words = [draw.choice(GOOD if label == "pos" else BAD), draw.choice(["red", "blue", "green", "old", "new"])]
        rows.append((f"{' '.join(words)} {'the ' * draw.randrange(4)}{seed} {i}", label))
    return rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV of 120 sentences with classes `pos` and `neg`."""
    path = tmp_path / "reviews.csv"
    write_csv(path, ("text", "label"), sentences(120))
    return path


@pytest.fixture
def pair_table(tmp_path: Path) -> Path:
    """A TSV of 100 pairs with scores: 5 for equal texts, less the more words differ."""
    draw = random.Random(1)
    rows = ["one\ttwo\tscore"]
    for _ in range(100):
        first = draw.sample(WORDS, 6)
        changed = draw.randrange(6)
        second = first[changed:] + draw.sample(WORDS, changed)
        rows.append(f"{' '.join(first)}\t{' '.join(second)}\t{5 - 0.8 * changed:.1f}")
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def write_csv(path: Path, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line, in this process: arguments -> (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["bertvision", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        caught = capsys.readouterr()
        return code, caught.out, caught.err

    return run
