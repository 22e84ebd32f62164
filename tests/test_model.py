"""What a run leaves behind, and what can be done with it: evaluate, predict, compare."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import sentences, write_csv

import bertvision
from bertvision.errors import UserError
from bertvision.runs.directory import Run

EASY = {"backbone": "tiny", "quiet": True, "polish": 10, "head_lr": 5e-3}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on classes, with a dev file of its own."""
    folder = tmp_path_factory.mktemp("run")
    write_csv(folder / "train.csv", ("text", "label"), sentences(160))
    write_csv(folder / "dev.csv", ("text", "label"), sentences(60, seed=7))
    return bertvision.fit(
        "table", train=folder / "train.csv", dev=folder / "dev.csv", marks="0,1/2,1", out=folder / "run", **EASY
    )


@pytest.fixture(scope="module")
def pair_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pairs")
    rows = [(text, other, str((i % 11) / 2)) for i, ((text, _), (other, _)) in
            enumerate(zip(sentences(120), sentences(120, seed=3), strict=True))]  # fmt: skip
    write_csv(folder / "train.csv", ("one", "two", "score"), rows)
    return bertvision.fit(
        "table",
        train=folder / "train.csv",
        text="one",
        text_pair="two",
        pairs="separate",
        marks="0,1",
        out=folder / "run",
        **EASY,
    )


def test_scores_have_the_promised_shape(run: Run) -> None:
    scores = run.scores
    assert (scores["task"], scores["metric"]) == ("table", "accuracy")
    assert [entry["epoch"] for entry in scores["marks"]] == ["0", "1/2", "1"]
    last = scores["marks"][-1]
    expected = {
        "encoder",
        "ensemble-max",
        "ensemble-mean",
        "ensemble-greedy",
        "adapter-64-views",
        "adapter-64-views+polish",
    }
    for split in ("held_out", "dev"):
        assert expected <= set(last[split])
        for found in last[split].values():
            assert set(found) == {"accuracy", "f1", "matthews"}
            assert all(score["low"] <= score["value"] + 1e-9 for score in found.values())
    assert scores["selected"]["model"] in last["dev"]
    assert scores["marks"][0]["seconds"] < last["seconds"]


def test_the_selected_model_is_the_best_on_held_out_data(run: Run) -> None:
    scores = run.scores
    best = max(found["accuracy"]["value"] for entry in scores["marks"] for found in entry["held_out"].values())
    mark = next(entry for entry in scores["marks"] if entry["epoch"] == scores["selected"]["mark"])
    assert mark["held_out"][scores["selected"]["model"]]["accuracy"]["value"] == best


def test_run_json_says_how_the_run_came_about(run: Run) -> None:
    info = run.info
    assert info["options"]["seed"] == 0
    assert info["data"]["train"]["examples"] == 144
    assert info["data"]["held_out"]["examples"] == 16
    assert len(info["weights_sha256"]) == 64
    assert info["versions"]["torch"]
    assert info["parameters"]["encoder"] > info["parameters"]["adapter-64-views"] > 0
    assert info["costs"]["seconds"] > 0
    assert info["costs"]["peak_memory_bytes"] > 1e7


def test_every_model_left_its_predictions(run: Run) -> None:
    for entry in run.scores["marks"]:
        parts = run.predictions(entry["epoch"])
        assert set(parts) == {"held_out", "dev"}
        assert set(parts["dev"]["outputs"]) == set(entry["dev"])
        for outputs in parts["dev"]["outputs"].values():
            assert outputs.shape == (60, 2)
            assert outputs.sum(1) == pytest.approx(np.ones(60))


def test_evaluating_again_gives_the_same_scores_at_every_mark(run: Run) -> None:
    for entry in run.scores["marks"]:
        again = bertvision.evaluate(f"{run.path}@{entry['epoch']}")
        assert again["dev"].keys() == entry["dev"].keys()
        for model, found in again["dev"].items():
            assert found["accuracy"] == pytest.approx(entry["dev"][model]["accuracy"]), model


def test_evaluating_on_a_file_scores_that_file(run: Run, tmp_path: Path) -> None:
    write_csv(tmp_path / "more.csv", ("text", "label"), sentences(40, seed=11))
    result = bertvision.evaluate(run.path, dev=str(tmp_path / "more.csv"))
    assert result["dev"][result["selected"]]["accuracy"]["value"] > 0.8
    write_csv(tmp_path / "bare.csv", ("text",), [("a",)])
    with pytest.raises(UserError, match="no column 'label'"):
        bertvision.evaluate(run.path, dev=str(tmp_path / "bare.csv"))


def test_a_loaded_model_answers_as_its_predictions_say(run: Run) -> None:
    scores = run.scores
    for mark in ("0", "1"):
        entry = next(entry for entry in scores["marks"] if entry["epoch"] == mark)
        for name in ("encoder", entry["selected"], "ensemble-greedy"):
            model = bertvision.load(f"{run.path}@{mark}", name)
            texts = [text for text, _ in sentences(60, seed=7)]
            answers = model.predict(texts)
            kept = run.predictions(mark)["dev"]["outputs"][name]
            found = [[answer["probabilities"][label] for label in ("neg", "pos")] for answer in answers]
            assert np.array(found) == pytest.approx(kept, abs=1e-5)
            assert answers[3]["label"] == ("neg", "pos")[int(kept[3].argmax())]


def test_answers_do_not_depend_on_the_company(run: Run) -> None:
    model = bertvision.load(run.path)
    texts = ["a great film", "the story is very poor " * 8, "happy"]
    together = model.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        alone = model.predict([text])[0]
        assert alone["probabilities"]["pos"] == pytest.approx(answer["probabilities"]["pos"], abs=1e-5)


def test_pairs_encoded_separately_answer_from_the_run_directory(pair_run: Run) -> None:
    entry = pair_run.scores["marks"][0]
    polished = [name for name in entry["dev"] if name.endswith("+polish")]
    assert {entry["pairs"][name] for name in polished} == {"separate"}
    again = bertvision.evaluate(f"{pair_run.path}@0")
    for name in polished:
        assert again["dev"][name]["pearson"] == pytest.approx(entry["dev"][name]["pearson"], abs=1e-5)
    answer = bertvision.load(pair_run.path, "cosines+polish").predict(["the cat"], ["the dog"])[0]
    assert set(answer) == {"score"}


def test_predict_says_what_it_was_trained_on(run: Run, pair_run: Run) -> None:
    with pytest.raises(UserError, match="one text per example"):
        bertvision.load(run.path).predict(["a"], ["b"])
    with pytest.raises(UserError, match="two texts per example"):
        bertvision.load(pair_run.path).predict(["a"])
    with pytest.raises(UserError, match="1 first texts but 2 second"):
        bertvision.load(pair_run.path).predict(["a"], ["b", "c"])
    assert bertvision.load(run.path).predict([]) == []


def test_the_checkpoint_is_a_plain_transformers_folder(run: Run) -> None:
    folder = run.path / "marks" / "1" / "encoder"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(["a great film"], return_tensors="pt")).logits.softmax(-1)[0]
    ours = bertvision.load(f"{run.path}@1", "encoder").predict(["a great film"])[0]["probabilities"]
    assert ours["pos"] == pytest.approx(float(logits[1]), abs=1e-5)


def test_comparing_runs_pairs_their_examples(run: Run, pair_run: Run) -> None:
    result = bertvision.compare(f"{run.path}@1/2", run.path)
    difference = result["dev"]["difference"]["accuracy"]
    values = [result["dev"][side]["accuracy"]["value"] for side in ("a", "b")]
    assert difference["value"] == pytest.approx(values[1] - values[0])
    assert difference["low"] <= difference["value"] <= difference["high"]
    same = bertvision.compare(run.path, run.path)["dev"]["difference"]["accuracy"]
    assert (same["value"], same["low"], same["high"]) == (0, 0, 0)
    with pytest.raises(UserError, match="share no dev examples"):
        bertvision.compare(run.path, pair_run.path)


def test_wrong_references_are_explained(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        bertvision.load(tmp_path)
    with pytest.raises(UserError, match="The run has: 0, 1/2, 1"):
        bertvision.load(f"{run.path}@3/4")
    with pytest.raises(UserError, match=r"no model called 'encodr'. Did you mean 'encoder'"):
        bertvision.load(run.path, "encodr")
    assert bertvision.load(f"{run.path}@0.5").mark == "1/2"
