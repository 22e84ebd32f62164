"""The suite of real tables: jobs come in order and run once, on the same rows for everybody; losses come first."""

import argparse
import csv
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no installed package

from benchmarks.rivals import run as rival_runs
from benchmarks.rivals.run import Key, put, read
from benchmarks.suite import SIZES, TABLES, baselines, check, contestants, tuned
from benchmarks.suite import page as pages
from benchmarks.suite import run as runs
from benchmarks.suite import standings as stand

from bertvision.errors import UserError

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data" / "suite"


def asked(**changed: Any) -> argparse.Namespace:
    default = {"sets": "trec,sick-score", "sizes": "100,1000,10000", "contestants": "all", "seeds": "0,1"}
    return argparse.Namespace(**default | {"backbone": "tiny", "threads": 1} | changed)


def row(name: str, contestant: str, variant: str, score: float, seconds: float, **more: Any) -> dict[str, Any]:
    """A line of a results file with planted numbers; resamples are 0.02 above and below, alike for everybody."""
    ours = contestant == "ours"
    return {
        **Key(name, contestant, variant, 0, "tiny", 100, None, 1).__dict__,
        "kind": "class", "metric": "accuracy", "rows": {"train": 90, "held_out": 10, "dev": 50}, "digest": "d",
        "versions": {"torch": "2"}, "machine": "here", "commit": "abc", "method": "m1", "outcome": variant,
        "scores": {"accuracy": {"value": score}}, "macro_f1": score, "held_out": score if ours else None,
        "draws": list(score + np.linspace(-0.02, 0.02, 21)), "training": 1.0, "ready": seconds / 2 if ours else seconds,
        "whole": seconds if ours else None, "latency": 0.01, "parameters": 10, "disk": 1000, "needs_encoder": False,
        "note": "selected it", "call": None, "peak_memory": 1e9, "job_seconds": 9.0, "calibration": 100.0, **more,
    }  # fmt: skip


def planted() -> list[dict[str, Any]]:
    """trec: ours leads with both budgets. subj: TF-IDF is above ours. scicite: ours is late with three minutes."""
    return [
        row("trec", "majority", "constant", 0.2, 5),
        row("trec", "tfidf", "regression", 0.6, 6),
        row("trec", "trainer", "3", 0.9, 100),
        row("trec", "ours", "budget-1", 0.7, 60),
        row("trec", "ours", "budget-3", 0.95, 180),
        row("subj", "tfidf", "regression", 0.8, 6),
        row("subj", "ours", "budget-1", 0.75, 60),
        row("scicite", "tfidf", "regression", 0.5, 6),
        row("scicite", "ours", "budget-3", 0.505, 199),
    ]


def test_every_contestant_of_the_issue_takes_part_in_its_kinds() -> None:
    assert set(contestants) == {"majority", "tfidf", "sentence", "setfit", "trainer", "ours"}
    jobs = runs.plan(asked(sets=",".join(TABLES)))
    everybody = {name: {job.key.task for job in jobs if job.key.contestant == name} for name in contestants}
    classes = {name for name, table in TABLES.items() if table.kind == "class"}
    assert everybody.pop("setfit") == classes
    assert all(found == set(TABLES) for found in everybody.values())


def test_one_seed_comes_first_and_in_it_the_cheap_then_ours_then_the_costly_then_large_sizes() -> None:
    jobs = runs.plan(asked())
    assert len({job.key for job in jobs}) == len(jobs)
    first = [job.key for job in jobs if job.order[0] == 0]
    assert [job.key for job in jobs][: len(first)] == first
    assert {key.seed for key in first} == {0}
    small = [f"{key.contestant}:{key.variant}" for key in first if key.limit <= 1000]
    assert list(dict.fromkeys(small))[3:] == ["ours:budget-1", "ours:budget-3", "trainer:3", "setfit:64"]
    cheap = {"majority", "tfidf", "sentence"}
    costly = [key.limit for key in first if key.contestant not in cheap]
    assert costly == [*(size for size in costly if size <= 1000), *(size for size in costly if size > 1000)]
    assert {key.contestant for key in first[: 3 * 2 * 3]} == cheap


def test_a_size_that_would_give_the_same_rows_is_left_out() -> None:
    assert TABLES["newsgroups20"].sizes(SIZES) == [100, 1000, 10000]
    assert TABLES["newsgroups20"].sizes((1000, 2000, 5000)) == [1000, 2000]


def test_a_wrong_name_of_a_data_set_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match="no data set called 'trek'"):
        runs.plan(asked(sets="trek"))


@pytest.mark.skipif(not DATA.is_dir(), reason="the suite's data is not here")
def test_the_tables_are_as_their_files_are() -> None:
    for table in TABLES.values():
        for part, expected in (("train", table.rows), ("test", table.dev)):
            with (DATA / table.folder / f"{part}.csv").open(newline="", encoding="utf-8") as file:
                rows = csv.DictReader(file)
                assert {table.text, table.label, *filter(None, [table.pair])} <= set(rows.fieldnames or ())
                assert sum(1 for _ in rows) == expected, table.name


def test_finished_jobs_stay_and_those_of_another_version_of_ours_are_stale() -> None:
    rows = [row("trec", "ours", "budget-1", 0.7, 60, method="old"), row("trec", "tfidf", "regression", 0.6, 6)]
    own, other = map(Key.of, rows)
    assert runs.done(rows, False, None) == runs.done(rows, False, "old") == {own, other}
    assert runs.done(rows, False, "new") == {other}
    assert runs.done(rows, True, None) == set()


def test_a_failed_job_does_not_stop_the_rest_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the child process, which fails once."""
    calls: list[str] = []

    def child(key: Key, data: str, patience: float, module: str) -> tuple[list[dict[str, Any]], int, str]:
        assert module == "benchmarks.suite.run"
        calls.append(key.contestant)
        if calls == ["majority"]:
            return [], 0, "out of memory"
        return [row(key.task, key.contestant, key.variant, 0.5, 10) | vars(key)], 10**9, ""

    monkeypatch.setattr(rival_runs, "in_process", child)
    monkeypatch.setattr(rival_runs, "calibrate", lambda threads: 100.0)
    out = tmp_path / "suite.jsonl"
    words = ["run", "--sets", "trec", "--sizes", "100", "--contestants", "majority,tfidf", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    for code in (1, 0, 0):
        with pytest.raises(SystemExit) as end:
            runs.main()
        assert end.value.code == code
    assert calls == ["majority", "tfidf", "majority"]
    assert len(read(out)) == 2
    assert "trec 100 rows majority:constant seed 0: FAILED\nout of memory" in capsys.readouterr().out


def test_within_a_budget_the_best_that_is_in_time_counts() -> None:
    of = stand.cells(planted())
    trec = of["trec", 100]
    assert [getattr(stand.best_rival(trec, minutes), "score", None) for minutes in (1, 3)] == [0.6, 0.9]
    one, two = stand.duels(of, 1)
    assert (one.verdict, two.verdict) == (stand.AHEAD, stand.BEHIND)
    assert [duel.verdict for duel in stand.duels(of, 3)] == [stand.AHEAD, stand.LATE]
    assert [duel.cell[0] for duel in stand.below_floor(of, 1)] == ["subj"]
    assert stand.below_floor(of, 3) == []


def test_an_interval_around_zero_is_level() -> None:
    noisy = row("trec", "ours", "budget-1", 0.605, 60, draws=list(0.605 + np.linspace(0.02, -0.02, 21)))
    (duel,) = stand.duels(stand.cells([row("trec", "tfidf", "regression", 0.6, 6), noisy]), 1)
    assert duel.verdict == stand.LEVEL
    assert stand.close_cells([row("trec", "tfidf", "regression", 0.6, 6), noisy]) == {("trec", 100)}


def test_rows_on_other_examples_cannot_stand_in_one_table() -> None:
    with pytest.raises(UserError, match="'trec, 100 rows' differ"):
        stand.cells([planted()[0], planted()[1] | {"digest": "other"}])


def test_the_page_is_made_from_a_results_file_alone_with_losses_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "suite.jsonl"
    put(results, [row("sms_spam", "ours", "budget-1", 0.1, 60, method="old"), *planted()])
    monkeypatch.setattr(sys, "argv", ["page", "--results", str(results), "--docs", str(tmp_path)])
    pages.main()
    text = (tmp_path / "suite.md").read_text()
    lost = "- subj, 100 rows: 0.750, TF-IDF + scikit-learn 0.800: -0.050 [-0.050, -0.050]"
    assert text.count(lost) == 2  # below TF-IDF, and behind the best
    assert "`--budget 3`, late: scicite, 100 rows (199 s)." in text
    assert "`--budget 3`, no result (failed, or not run yet): subj, 100 rows." in text
    assert text.index("Where ours loses") < text.index("Average rank") < text.index("All scores")
    assert "| 1 min | all | 1 | 0 | 1 | 0 |" in text
    assert "| 3 min | all | 1 | 0 | 0 | 1 |" in text
    assert "| BERTVision | 1.50 (2) | 1.50 (2) |" in text
    assert "| Trainer | 4.00 (1) | 2.00 (1) |" in text
    assert "Our version: `m1`" in text
    assert "1 results of other versions are left out" in text
    assert "sms_spam" not in text
    picture = (tmp_path / "figures" / "suite.svg").read_text()
    pages.main()
    assert (tmp_path / "suite.md").read_text() == text
    assert (tmp_path / "figures" / "suite.svg").read_text() == picture


def test_folds_deal_out_every_class_evenly_even_with_fewer_rows_than_folds() -> None:
    y = np.array([0] * 10 + [1] * 7 + [2] * 2 + [3])
    folds = baselines.folded(y, 5, np.random.default_rng(0))
    assert np.bincount(folds).tolist() == [4] * 5
    for label in range(4):
        counts = np.bincount(folds[y == label], minlength=5)
        assert counts.max() - counts.min() <= 1


def test_trainer_gets_at_least_a_hundred_steps() -> None:
    assert [tuned.epochs_of(rows, 3) for rows in (100, 1000, 10_000)] == [15, 3, 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite in small: a word gives class or score away. Class 'rare' is in the table but not in every sample."""
    folder, draw = tmp_path_factory.mktemp("suite"), random.Random(0)
    for name in ("trec", "sick"):
        (folder / name).mkdir()
        for part, count in (("train", 80), ("test", 30)):
            rows = []
            for i in range(count):
                good = i % 2
                text = f"a {'good' if good else 'bad'} {draw.choice(['film', 'story'])} {part} {i}"
                label = "rare" if i in (5, 7) and part == "train" else ("bad", "good")[good]
                score = 4 * good + draw.random()
                rows.append({"text": text, "text_a": text, "text_b": f"it is {text}", "label": label, "score": score})
            with (folder / name / f"{part}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return folder


@pytest.mark.filterwarnings("ignore")  # of the rivals' libraries
@pytest.mark.parametrize(
    ("name", "contestant", "variant", "outcomes"),
    [
        ("trec", "majority", "constant", ["majority class"]),
        ("sick-score", "majority", "constant", ["mean score"]),
        ("trec", "tfidf", "regression", ["logistic regression"]),
        ("sick-score", "tfidf", "regression", ["ridge regression"]),
        ("sick-score", "sentence", "regression", ["cosine", "ridge regression"]),
        ("trec", "setfit", "64", ["64 per class"]),
        ("sick-score", "trainer", "3", ["20 epochs"]),
        ("trec", "ours", "budget-1", ["--budget 1"]),
    ],
)
def test_contestants_keep_the_contract(
    name: str, contestant: str, variant: str, outcomes: list[str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if contestant == "setfit":
        pytest.importorskip("setfit")
        monkeypatch.setattr(tuned, "MOST_STEPS", 3)
    made = runs.one(Key(name, contestant, variant, 0, "tiny", 80, None, 1), str(data))
    assert [found["outcome"] for found in made] == outcomes
    for found in made:
        json.dumps(found)
        assert sum(found["rows"][part] for part in ("train", "held_out")) == 80
        assert len(found["draws"]) == rival_runs.DRAWS
        assert 0 <= found["training"] <= found["ready"]
        assert (found["whole"] is not None) == (contestant == "ours")
        assert ("macro_f1" in found) == (name == "trec")
        assert len(found["digest"]) == 17
    if contestant == "tfidf":
        assert made[0]["scores"][made[0]["metric"]]["value"] > 0.9
        assert made[0]["held_out"] > 0.8


@pytest.mark.parametrize("name", ["run", "page", "check"])
def test_every_command_of_the_suite_starts(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        {"run": runs, "page": pages, "check": check}[name].main()
    assert end.value.code == 0
    assert f"python -m benchmarks.suite.{name}" in capsys.readouterr().out


def test_listing_contestants_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "setfit")
    code = "import sys; from benchmarks.suite import contestants; list(contestants);"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
