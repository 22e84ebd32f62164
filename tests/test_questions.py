"""Question answering through the whole program: fit, resume, evaluate, score, predict, on invented paragraphs."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from conftest import Command, scores_of
from safetensors.torch import load_file

import bertvision
from bertvision.errors import UserError
from bertvision.inference.model import Model
from bertvision.runs.directory import Run
from bertvision.tasks.invented import write

HEADS = "last-layer,adapter-64-ngram"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    write(folder, train=16, dev=6)
    return folder


def fitted(data: Path, out: Path, task: str = "squad2", **options: Any) -> Run:
    settings = {"backbone": "tiny", "heads": HEADS, "polish": 1, "epochs": 1, "marks": "0,1/2,1"} | options
    return bertvision.fit(task, quiet=True, data=data, out=out, **settings)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fitted(data, tmp_path_factory.mktemp("runs") / "run")


def test_every_model_is_scored_by_the_official_metric_raw_and_tuned(run: Run) -> None:
    scores = scores_of(run)
    assert scores["metric"] == "f1"
    for mark in scores["marks"]:
        assert {"encoder", "adapter-64-ngram+polish", "ensemble-greedy"} <= set(mark["dev"]) == set(mark["held_out"])
        assert set(mark["null_thresholds"]) == set(mark["dev"])
        assert 0 <= mark["goodness"] <= 1
        for found in mark["dev"].values():
            assert {"f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_exact", "raw_f1", "raw_exact"} < set(found)
            # What is found in answerable questions before anything is withheld.
            assert found["found_f1"]["value"] >= found["HasAns_f1"]["value"]
            assert found["exact"]["low"] <= found["exact"]["value"] <= found["exact"]["high"]


def test_predictions_keep_every_models_answers_in_words(run: Run) -> None:
    table = pyarrow.parquet.read_table(run.predictions_file("1"))
    answers = table["answer: encoder"].to_pylist()
    assert len(answers) == sum(part.examples for name, part in run.record.data.items() if name != "train")
    dev = run.predictions("1")["dev"]
    assert (
        set(dev.outputs) == set(dev.answers) == set(dev.seconds) == set(dev.nulls) == set(run.mark("1").scores["dev"])
    )
    limit = run.mark("1").null_thresholds["encoder"]
    assert ((dev.answers["encoder"] == "") >= (dev.nulls["encoder"] > limit)).all()


def test_heads_on_tokens_change_nothing_in_the_encoder(data: Path, run: Run, tmp_path: Path) -> None:
    plain = fitted(data, tmp_path / "plain", heads="none")
    one, two = (load_file(r.path / "marks/1/encoder/model.safetensors") for r in (run, plain))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_evaluate_repeats_the_scores_and_its_files_score_the_same(
    data: Path, run: Run, tmp_path: Path, command: Command
) -> None:
    code, out, _ = command("evaluate", run.path, "--out", tmp_path / "official", "--json")
    assert code == 0
    found, model = json.loads(out), run.results.selected.model
    kept = run.mark(found["mark"]).scores["dev"]
    for name, scores in found["dev"].items():
        assert scores["f1"]["value"] == pytest.approx(kept[name]["f1"].value, abs=1e-6)
    files = [tmp_path / "official" / name for name in ("predictions.json", "na_prob.json")]
    code, out, _ = command("score", "squad2", files[0], data / "dev-v2.0.json", "--na-prob", files[1], "--json")
    assert code == 0
    official = json.loads(out)
    for key in ("exact", "f1", "HasAns_f1", "NoAns_exact"):
        assert official[key] == pytest.approx(100 * kept[model][key].value, abs=1e-6)
    assert official["total"] == run.record.data["dev"].examples
    assert official["best_f1"] >= official["f1"] - 1e-9
    code, out, _ = command("score", "squad2", files[0], data / "dev-v2.0.json")
    assert code == 0
    assert "HasAns_exact" in out


def test_the_papers_decoding_and_another_threshold_can_be_asked_for(run: Run, tmp_path: Path) -> None:
    def encoder(**options: Any) -> dict[str, float]:
        found = Model(run.path, everything=True).evaluate(out=tmp_path, **options).scores["dev"]["encoder"]
        return {metric: score.value for metric, score in found.items()}

    silent = encoder(null_threshold=0.0)
    assert (silent["NoAns_exact"], silent["HasAns_exact"]) == (1, 0)
    talkative = encoder(null_threshold=1.0)
    assert talkative["NoAns_exact"] == 0
    # Two independent maxima do not weigh no answer against an answer: no threshold changes what they say.
    argmax = encoder(decoding="argmax")
    assert argmax == encoder(decoding="argmax", null_threshold=0.999)
    assert argmax["exact"] == argmax["raw_exact"]
    assert argmax != encoder(null_threshold=0.5)


def test_answers_stand_where_they_say_and_alternatives_are_listed(run: Run, command: Command) -> None:
    context = "Ann Arko was born in Tarl. " * 20
    code, out, _ = command(
        "predict", run.path, "--question", "Where was Ann born?", "--context", context, "--top-k", "4",
        "--null-threshold", "1", "--json",
    )  # fmt: skip
    assert code == 0
    (row,) = json.loads(out)
    assert row["answer"] == context[row["start"] : row["end"]] != ""
    assert 0 <= row["no_answer"] <= 1
    assert len(row["alternatives"]) == 4
    shares = [other["probability"] for other in row["alternatives"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1
    silent = bertvision.load(run.path).predict(["Where?"], [context], null_threshold=0.0)[0]
    assert (silent["answer"], silent["start"]) == ("", None)
    code, out, _ = command("predict", run.path, "--question", "Where?", "--context", context, "--null-threshold", "1")
    assert code == 0
    assert "characters" in out


def test_files_of_questions_are_answered(run: Run, data: Path, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "Who?", "context": "Bob left."}) + "\n")
    code, out, _ = command("predict", run.path, "--file", path, "--json")
    assert code == 0
    assert json.loads(out)[0]["context"] == "Bob left."
    code, out, _ = command("predict", run.path, "--file", data / "dev-v2.0.json", "--json")
    assert code == 0
    assert len(json.loads(out)) == run.record.data["dev"].examples


def test_a_wrong_question_is_one_message(run: Run, command: Command) -> None:
    for arguments, message in (
        (("--question", "Who?"), "go together"),
        (("--question", " ", "--context", "Bob"), "question of pair 1 is empty"),
        (("--question", "Who?", "--context", "  "), "context of pair 1 is empty"),
        (("--question", "Who?", "--context", "@nowhere.txt"), "no file 'nowhere.txt'"),
        (("one text",), "give two texts"),
        (("--file", "nowhere.jsonl"), "no file 'nowhere.jsonl'"),
    ):
        code, _, err = command("predict", run.path, *arguments)
        assert code == 1, arguments
        assert message in err


def test_a_wrong_file_of_answers_is_one_message(data: Path, tmp_path: Path, command: Command) -> None:
    for answers, message in (
        ({}, "lacks an answer for"),
        ("x", "must hold one JSON object"),
        ([], "must hold one JSON object"),
        (dict.fromkeys(range(3)), "lacks an answer"),
    ):
        (tmp_path / "p.json").write_text(json.dumps(answers))
        code, _, err = command("score", "squad2", tmp_path / "p.json", data / "dev-v2.0.json")
        assert code == 1, answers
        assert message in err


def test_an_out_that_cannot_be_made_and_files_without_questions_are_one_message(
    run: Run, tmp_path: Path, command: Command
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    code, _, err = command("evaluate", run.path, "--out", taken)
    assert code == 1
    assert "cannot be created" in err
    for name, text in (("p.json", "{}"), ("d.json", '{"data": []}')):
        (tmp_path / name).write_text(text)
    code, _, err = command("score", "squad2", tmp_path / "p.json", tmp_path / "d.json")
    assert code == 1
    assert "has no questions" in err


def test_wrong_options_are_explained(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read without its context"):
        fitted(data, tmp_path / "a", pairs="separate")
    with pytest.raises(UserError, match="--decoding must be one of span, argmax; got 'best'"):
        fitted(data, tmp_path / "b", decoding="best")
    with pytest.raises(UserError, match="does not take --strict"):
        bertvision.fit("rte", data=data, strict=True)
    with pytest.raises(UserError, match="does not take --null-threshold"):
        fitted(data, tmp_path / "c", task="squad2-answerable", null_threshold=0.5)
    assert not list(tmp_path.iterdir())


def test_answerability_is_a_class_per_question_over_windows(data: Path, tmp_path: Path) -> None:
    run = fitted(data, tmp_path / "run", task="squad2-answerable", heads="default", marks="0,1", polish_until="all")
    found = run.mark("1")
    assert {"accuracy", "f1"} == set(found.scores["dev"]["encoder"])
    assert "adapter-64-views+polish" in found.models
    assert set(found.ways.values()) == {"joint"}
    assert len(run.predictions("1")["dev"].targets) == run.record.data["dev"].examples
    again = bertvision.evaluate(run.path)
    expected = run.mark(again.mark).score(again.selected, "accuracy").value
    assert again.scores["dev"][again.selected]["accuracy"].value == pytest.approx(expected)
    (answer,) = bertvision.load(run.path).predict(["Where?"], ["Ann lives in Tarl. " * 30])
    assert answer["label"] in ("answerable", "unanswerable")


def test_squad_1_without_unanswerable_questions_works(data: Path, tmp_path: Path) -> None:
    for part in ("train", "dev"):
        found = json.loads((data / f"{part}-v2.0.json").read_text())
        for article in found["data"]:
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = [q for q in paragraph["qas"] if q["answers"]]
                for question in paragraph["qas"]:
                    del question["is_impossible"]
        (tmp_path / f"{part}-v1.1.json").write_text(json.dumps(found))
    run = fitted(tmp_path, tmp_path / "run", marks="1", heads="last-layer")
    assert "NoAns_exact" not in run.mark("1").scores["dev"]["encoder"]
    assert run.mark("1").null_thresholds["encoder"] == 1  # there is nothing to gain by silence
    with pytest.raises(UserError, match="have the same answer: there is nothing to learn"):
        fitted(tmp_path, tmp_path / "other", task="squad2-answerable")


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_end(data: Path, run: Run, tmp_path: Path) -> None:
    options = [
        "fit", "squad2", "--data", data, "--backbone", "tiny", "--heads", HEADS, "--polish", "1", "--epochs", "1",
        "--marks", "0,1/2,1", "--out", tmp_path / "run",
    ]  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "bertvision", *map(str, options)], stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stderr is not None
        for line in started.stderr:
            if "mark 1/2: encoder" in line:
                started.send_signal(signal.SIGINT)
                break
        started.stderr.read()
        assert started.wait(60) == 1
    again = bertvision.fit(
        "squad2", resume=True, quiet=True, data=data, backbone="tiny", heads=HEADS, polish=1, epochs=1,
        marks="0,1/2,1", out=tmp_path / "run",
    )  # fmt: skip
    for mark in ("1/2", "1"):
        assert again.mark(mark).scores == run.mark(mark).scores, mark
    one, two = (load_file(r.path / "marks/1/heads.safetensors") for r in (run, again))
    assert all(np.array_equal(one[key], two[key]) for key in one)
