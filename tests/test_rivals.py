"""Benchmarks start and turn runs into tables; rivals run once on the same rows, and their results are read rightly."""

import argparse
import importlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is no installed package

from benchmarks import league, squad, zoo
from benchmarks.rivals import OURS, TASKS, contestants
from benchmarks.rivals import page as pages
from benchmarks.rivals import run as runs
from benchmarks.rivals.measuring import Clock
from benchmarks.rivals.standings import (
    Point,
    average_ranks,
    best_within,
    chosen,
    duel,
    first_to_reach,
    front,
    losses,
    points,
    standing,
)

import bertvision
from bertvision.errors import UserError
from bertvision_paper.plan import PLAIN

ROOT = Path(__file__).parents[1]
GROUPS = {"trainer": "Trainer", "lora": "LoRA", "ours": OURS, "sentence": "sentence-transformers + scikit-learn"}


def row(task: str, contestant: str, outcome: str, score: float, ready: float, **more: Any) -> dict[str, Any]:
    """A line of a results file with planted numbers."""
    key = {"task": task, "contestant": contestant, "variant": outcome, "seed": 0, "backbone": "tiny", "limit": None}
    measured = {"peak_memory": 1e9, "job_seconds": ready + 5, "calibration": 100.0, "load": 0.1}
    return {
        **key, **measured, "dev_limit": None, "threads": 2, "kind": "class", "metric": "accuracy",
        "rows": {"train": 90, "held_out": 10, "dev": 50}, "digest": "d", "versions": {"torch": "2"}, "machine": "here",
        "outcome": outcome, "commit": "", "call": None,
        "scores": {"accuracy": {"value": score, "low": score - 0.1, "high": score + 0.1}},
        "held_out": score, "draws": list(np.linspace(score - 0.1, score + 0.1, 21)), "training": ready - 1,
        "ready": ready, "latency": 0.01, "parameters": 10, "disk": 1000, "needs_encoder": False, "note": "", **more,
    }  # fmt: skip


def planted() -> list[dict[str, Any]]:
    """RTE: ours is fast, Trainer highest. CoLA: ours is slower and lower than LoRA."""
    return [
        row("rte", "trainer", "3 epochs", 0.60, 290, variant="3"),
        row("rte", "trainer", "1 of 3 epochs", 0.50, 110),
        row("rte", "lora", "3 epochs", 0.55, 220),
        row("rte", "ours", "frozen + heads", 0.57, 50),
        row("rte", "ours", "1 epoch + heads", 0.57, 170),
        row("cola", "trainer", "3 epochs", 0.30, 210, variant="3"),
        row("cola", "lora", "3 epochs", 0.35, 150),
        row("cola", "ours", "1 epoch + heads", 0.20, 160),
        row("cola", "sentence", "logistic regression", 0.10, 30),
    ]


def tasks() -> dict[str, list[Point]]:
    return points(planted(), GROUPS)


def test_every_contestant_of_the_issue_is_listed_with_variants_for_its_tasks() -> None:
    assert set(contestants) == {"trainer", "lora", "sentence", "setfit", "probe", "ours", "ours-lora"}
    taking_part = {
        name: {task.name for task in TASKS.values() for v in contestants[name].variants.values() if v.stage(task)}
        for name in contestants
    }
    classes = {task.name for task in TASKS.values() if task.kind == "class"}
    assert taking_part["setfit"] == classes
    assert taking_part["sentence"] == taking_part["probe"] == classes | {"sts-b"}
    for name in ("trainer", "lora", "ours", "ours-lora"):
        assert taking_part[name] == set(TASKS), name


def test_listing_contestants_loads_nothing_heavy() -> None:
    """A child's peak memory begins with that of the process that starts it."""
    heavy = ("torch", "transformers", "sklearn", "scipy", "plotly", "peft", "setfit")
    code = "import sys; from benchmarks.rivals import contestants; list(contestants);"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def asked(**changed: Any) -> argparse.Namespace:
    default = {"tasks": ",".join(TASKS), "contestants": "all", "seeds": "0,1", "backbone": "tiny", "threads": 1}
    return argparse.Namespace(**{**default, "limit": None, "dev_limit": None} | changed)


def test_jobs_come_with_one_seed_of_everything_first_and_unseeded_ones_once() -> None:
    jobs = runs.plan(asked())
    assert len({job.key for job in jobs}) == len(jobs)
    first = [job for job in jobs if job.order[0] == 0]
    assert jobs[: len(first)] == first
    assert {job.key.seed for job in first} == {0}
    assert {job.key.task for job in first} == set(TASKS)
    assert {job.key.contestant for job in first} == set(contestants)
    assert {job.key.seed for job in jobs if job.key.contestant == "probe"} == {0}


def test_hours_bound_the_estimated_seconds() -> None:
    jobs = runs.plan(asked())
    chosen, later = runs.within(jobs, 3 * 3600)
    assert sum(job.seconds for job in chosen) <= 3 * 3600
    assert len(chosen) + len(later) == len(jobs)
    assert chosen == jobs[: len(chosen)]


def test_a_trial_costs_a_share_of_the_whole() -> None:
    small, whole = (sum(job.seconds for job in runs.plan(asked(limit=limit))) for limit in (64, None))
    assert small < whole / 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"contestants": "lorra"}, "no contestant called 'lorra'. Did you mean 'lora'"),
        ({"contestants": "ours:frosen"}, "Did you mean 'frozen'"),
        ({"tasks": "rta"}, "no task called 'rta'. Did you mean 'rte'"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        runs.plan(asked(**changed))


def test_results_are_resumed_after_a_line_that_a_crash_cut(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.jsonl"
    assert runs.read(file) == []
    runs.put(file, planted()[:2])
    with file.open("a") as opened:
        opened.write('{"task": "rte", "conte')
    runs.put(file, planted()[2:3])
    assert [found["outcome"] for found in runs.read(file)] == ["3 epochs", "1 of 3 epochs", "3 epochs"]


def test_a_job_that_is_run_again_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    runs.put(file, planted()[:3])
    runs.put(file, [planted()[0] | {"ready": 1.0}])
    assert sorted(found["ready"] for found in runs.read(file)) == [1.0, 110, 220]


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    with runs.alone(tmp_path / "results.jsonl"):
        with (
            pytest.raises(SystemExit, match="being written by another process"),
            runs.alone(tmp_path / "results.jsonl"),
        ):
            pass
        with runs.alone(tmp_path / "others.jsonl"):
            pass


def test_what_is_done_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A stand-in for the child process, which fails once: its job, and no other, is run by the second call."""
    calls: list[str] = []

    def child(key: runs.Key, data: str, patience: float, module: str) -> tuple[list[dict[str, Any]], int, str]:
        calls.append(key.contestant)
        if calls == ["ours"]:
            return [], 0, "out of memory"
        return [row(key.task, key.contestant, "made", 0.5, 10) | vars(key)], 10**9, ""

    monkeypatch.setattr(runs, "in_process", child)
    monkeypatch.setattr(runs, "calibrate", lambda threads: 100.0)
    out = tmp_path / "results.jsonl"
    arguments = ["run", "--tasks", "rte", "--contestants", "ours:frozen,trainer:3", "--seeds", "0", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    for code in (1, 0, 0):
        with pytest.raises(SystemExit) as end:
            runs.main()
        assert end.value.code == code
    assert sorted(calls) == ["ours", "ours", "trainer"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--again"])
    with pytest.raises(SystemExit):
        runs.main()
    assert sorted(calls) == ["ours", "ours", "ours", "trainer", "trainer"]
    assert len(runs.read(out)) == 2
    assert "out of memory" in capsys.readouterr().out
    assert {found["peak_memory"] for found in runs.read(out)} == {10**9}


def test_the_front_has_those_that_none_beats_in_less_time() -> None:
    of = tasks()
    assert [point.name for point in front(of["rte"])] == ["frozen + heads", "3 epochs"]
    assert [point.group for point in front(of["cola"])] == ["sentence-transformers + scikit-learn", "LoRA"]


def test_of_equals_the_faster_is_on_the_front() -> None:
    of = points([row("rte", "ours", "a", 0.5, 20), row("rte", "ours", "b", 0.5, 10)], GROUPS)["rte"]
    assert [point.name for point in front(of)] == ["b"]


def test_average_ranks_at_budgets() -> None:
    of = tasks()
    # In three minutes: RTE ours .57, Trainer .50, LoRA not ready; CoLA LoRA .35, ours .20, sentence .10, Trainer not.
    # Who is not ready is last; who takes no part is not counted.
    found = average_ranks(of, chosen, 3)
    assert found["LoRA"] == ((3 + 1) / 2, 2)
    assert found[OURS] == (1.5, 2)
    assert found["Trainer"] == ((2 + 4) / 2, 2)
    assert found["sentence-transformers + scikit-learn"] == (3.0, 1)
    # Where nobody is ready, or Trainer was not run, that says nothing of anybody.
    slow = {task: [replace(p, rows=tuple(r | {"ready": 9e9} for r in p.rows)) for p in of[task]] for task in of}
    assert average_ranks(slow, chosen, 3) == {}
    without = {"rte": [point for point in of["rte"] if point.group != "Trainer"]}
    assert average_ranks(without, chosen, 3) == {}


def test_of_ours_a_budget_is_held_against_the_others_of_its_minutes() -> None:
    rows = [*planted(), row("cola", "ours", "--budget 3", 0.15, 180, variant="budget-3")]
    of = points(rows, GROUPS)["cola"]
    assert [getattr(standing(of, minutes, OURS), "score", None) for minutes in (1, 3, 10)] == [None, 0.15, None]
    mine, other = duel(of, 3)
    assert (getattr(mine, "score", 0), getattr(other, "group", "")) == (0.15, "LoRA")
    assert duel(of, 10)[0] is None
    late = points([*planted(), row("cola", "ours", "--budget 3", 0.15, 181, variant="budget-3")], GROUPS)["cola"]
    assert duel(late, 3)[0] is None
    assert "another leads on cola (LoRA; ours is late)." in "\n".join(pages.loss_list({"cola": late}))
    assert average_ranks({"cola": of}, standing, 3)[OURS] == (2.0, 1)


def test_a_variant_is_chosen_on_held_out_rows_or_on_dev() -> None:
    rows = [row("rte", "ours", "lucky", 0.7, 10, held_out=0.4), row("rte", "ours", "sound", 0.6, 10, held_out=0.5)]
    of = points(rows, GROUPS)["rte"]
    names = [getattr(best_within(of, OURS, 60, by), "name", None) for by in ("score", "held_out")]
    assert names == ["lucky", "sound"]


def test_seconds_until_a_score_are_those_of_the_fastest_variant_that_has_it() -> None:
    of = tasks()["rte"]
    reached = first_to_reach(of, OURS, 0.57)
    assert reached is not None
    assert reached.seconds == 50
    assert first_to_reach(of, OURS, 0.6) is None


def test_losses_are_tasks_where_another_has_the_upper_end() -> None:
    found = losses(tasks())
    assert [point.name for point in found["rte"][0]] == ["frozen + heads"]
    assert found["cola"][0] == []


def test_seeds_are_averaged_and_mixed_settings_refused() -> None:
    rows = [row("rte", "ours", "a", 0.5, 10), row("rte", "ours", "a", 0.7, 30) | {"seed": 1}]
    (point,) = points(rows, GROUPS)["rte"]
    assert (point.score, point.seconds, point.seeds) == (pytest.approx(0.6), 20, [0, 1])
    assert point.interval == pytest.approx((0.505, 0.695))
    with pytest.raises(UserError, match="'rte' differ"):
        points([rows[0], rows[1] | {"digest": "other"}], GROUPS)


def test_the_page_is_made_from_a_results_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    results = tmp_path / "results.jsonl"
    fixed = row("cola", "ours", "1 epoch + heads, seed 1", 0.32, 190, variant="epoch", commit="abc")
    slow = row("cola", "ours", "slow day", 0.1, 400, calibration=50.0)
    runs.put(
        results, [*planted(), fixed, slow, row("rte", "ours", "--budget 3", 0.57, 170, variant="budget-3", call=170)]
    )
    monkeypatch.setattr(sys, "argv", ["page", "--results", str(results), "--docs", str(tmp_path)])
    pages.main()
    text, picture = (tmp_path / "rivals.md").read_text(), (tmp_path / "rivals.html").read_text()
    assert "| rte | 0.600 | 290 | - | not reached | not reached | - | 290 |" in text
    assert "| cola | 0.300 | 210 | 190 (0.90; 1 epoch + heads, seed 1: +0.020 [+0.020, +0.020]) |" in text
    assert "| rte | not run | 0.570, Trainer 0.500: +0.070 [" in text
    assert "150 (0.71; 3 epochs: +0.050" in text
    assert "- cola: ours is not on the front; the highest is LoRA, 3 epochs: 0.350 in 150 s" in text
    assert "- rte: ours is on the front, but not at its upper end" in text
    assert "Not within 15% of the median" in text
    assert ": cola ours:slow day seed 0 (0.50)." in text
    assert "**BERTVision: frozen + heads**" in text
    assert all(task in picture for task in ("rte (accuracy", "cola (accuracy"))
    pages.main()
    assert (tmp_path / "rivals.md").read_text() == text
    assert (tmp_path / "rivals.html").read_text() == picture


def test_a_paused_clock_stands_still() -> None:
    clock = Clock(began=0.0)
    before = clock.now()
    with clock.paused():
        clock_paused = clock.now()
    clock.leave_out(1000.0)
    assert clock_paused >= before
    assert clock.now() < before - 900


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CoLA with 60 sentences, RTE with as many pairs (a word gives the class away), SQuAD with 30 questions."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    for name in ("CoLA", "RTE", "SQuAD2"):
        (folder / name).mkdir()
    for part, count in (("train", 60), ("dev", 20)):
        texts = [f"a {'good' if i % 2 else 'bad'} {draw.choice(['film', 'story'])} {part} {i}" for i in range(count)]
        single = [f"x\t{i % 2}\t\t{text}" for i, text in enumerate(texts)]
        labels = ("not_entailment", "entailment")
        pairs = [f"{i}\t{text}\tit is {text}\t{labels[i % 2]}" for i, text in enumerate(texts)]
        (folder / "CoLA" / f"{part}.tsv").write_text("\n".join(single) + "\n")
        (folder / "RTE" / f"{part}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *pairs]) + "\n")
        articles = [article(f"{part} {i}") for i in range(15)]
        (folder / "SQuAD2" / f"{part}-v2.0.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
    return folder


def article(name: str) -> dict[str, Any]:
    """Two questions on a sentence, one of which it does not answer."""
    context = f"the cat of {name} is in the big red house by the river"
    answer = [{"text": "red house", "answer_start": context.index("red house")}]
    asked = [("where is the cat", answer, False), ("where is the dog", [], True)]
    rows = [
        {"id": f"{name} {question}", "question": question, "answers": answers, "is_impossible": impossible}
        for question, answers, impossible in asked
    ]
    return {"title": name, "paragraphs": [{"context": context, "qas": rows}]}


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_every_benchmark_starts(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"benchmarks.{name}").main()
    assert end.value.code == 0
    assert f"python -m benchmarks.{name}" in capsys.readouterr().out


def test_committed_results_still_become_tables() -> None:
    assert "| sts-b (pearson), minilm-l6 |" in league.table()
    assert "| adapter-64 | paper |" in zoo.table()
    assert "### squad2-minilm-l6-8000" in squad.table()


def test_a_run_becomes_rows_of_the_league(data: Path, tmp_path: Path) -> None:
    run = bertvision.fit(
        "cola", data=data, backbone="tiny", heads="learned-pooling,ladder", marks="0,1", out=tmp_path / "run",
        quiet=True, **PLAIN,
    )  # fmt: skip
    kept = json.loads(json.dumps(league.summary(run)))
    header, _, *rows = league.score_rows({("tiny", "cola", "heads"): [kept]})
    assert [row.split(" | ")[2] for row in rows] == ["0", "1"]
    encoder = run.results.at("1").score("encoder", "matthews", "dev").value
    cells = dict(zip(header.split(" | "), rows[1].split(" | "), strict=True))
    assert cells["encoder"] == f"{encoder:.3f}"
    found = zoo.league_of([run], "1")
    assert set(found["heads"]) == {"learned-pooling", "ladder"}
    assert found["best_paper_head"] == "learned-pooling"
    assert len(found["heads"]["ladder"]["each"]) == 2  # trained along with the encoder, and polished


def test_a_run_on_questions_is_compared_and_rescored(data: Path, tmp_path: Path) -> None:
    run = bertvision.fit(
        "squad2", data=data / "SQuAD2", backbone="tiny", heads="learned-pooling", marks="1/2,1", out=tmp_path / "run",
        quiet=True, **PLAIN,
    )  # fmt: skip
    kept = json.loads(json.dumps(squad.summary(run)))
    assert [mark["epoch"] for mark in kept["marks"]] == ["1/2", "1"]
    assert {"best_head - encoder", "ensemble-max - best_head"} <= set(kept["marks"][0]["differences"])
    assert set(kept["transfer"]["heads"]) == set(run.results.at("1/2").ways)
    before = run.results
    squad.rescore(run)
    assert run.results.selected == before.selected
    for old, new in zip(before.marks, run.results.marks, strict=True):
        assert new.score("encoder", "f1").value == pytest.approx(old.score("encoder", "f1").value)
        assert new.ways == old.ways


@pytest.mark.filterwarnings("ignore")  # of the rivals' libraries
@pytest.mark.parametrize(
    ("task", "contestant", "variant", "outcomes"),
    [
        ("cola", "probe", "regression", ["logistic regression", "logistic regression chosen of several"]),
        ("cola", "trainer", "2", ["1 of 2 epochs", "2 epochs"]),
        ("rte", "trainer", "3-no-dropout", ["1 of 3 epochs", "2 of 3 epochs", "3 epochs"]),
        ("cola", "lora", "16x3-all-linear", ["1 of 3 epochs", "2 of 3 epochs", "3 epochs"]),
        ("cola", "ours", "epoch", ["1 epoch + heads"]),
        ("rte", "sentence", "regression", ["logistic regression", "logistic regression chosen of several"]),
        ("rte", "setfit", "8", ["8 per class"]),
        ("rte", "ours-lora", "8x1", ["LoRA 1 epoch + heads"]),
        ("squad2", "trainer", "1", ["1 epoch"]),
        ("squad2", "lora", "8x1", ["1 epoch"]),
        ("squad2", "ours", "fraction", ["3/10 epoch + heads"]),
    ],
)
def test_contestants_keep_the_contract(
    task: str, contestant: str, variant: str, outcomes: list[str], data: Path
) -> None:
    for library in {"lora": ["peft"], "ours-lora": ["peft"], "setfit": ["setfit"]}.get(contestant, []):
        pytest.importorskip(library)
    made = runs.one(runs.Key(task, contestant, variant, 0, "tiny", None, None, 1), str(data))
    assert [found["outcome"] for found in made] == outcomes
    for found in made:
        json.dumps(found)
        assert sum(found["rows"].values()) == (60 if task == "squad2" else 80)
        primary = found["scores"][found["metric"]]
        assert -1 <= primary["low"] <= primary["high"] <= 1
        assert len(found["draws"]) == runs.DRAWS
        assert 0 < found["training"] < found["ready"]
        assert found["latency"] > 0
        assert found["parameters"] > 0
        assert found["disk"] > 0
        assert (found["call"] is not None) == contestant.startswith("ours")
        assert ("matched" in found) == (task != "squad2" and not contestant.startswith("ours"))
    # What a job passes on its way is ready sooner than what it ends with.
    assert [found["ready"] for found in made] == sorted(found["ready"] for found in made)
