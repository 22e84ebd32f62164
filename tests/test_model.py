"""What a run leaves behind, and what can be done with it: evaluate, predict, compare."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import Command, info_of, scores_of, sentences, write_csv

import bertvision
from bertvision.errors import UserError
from bertvision.inference.select import Choice, choose
from bertvision.kinds import kinds
from bertvision.metrics.intervals import compare
from bertvision.recipe import Recipe
from bertvision.records import GREEDY
from bertvision.runs.directory import Run
from bertvision.types import Examples, Windows

EASY = {"backbone": "tiny", "quiet": True, "polish": 10, "head_lr": 5e-3, "folds": 0}


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
    scores = scores_of(run)
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


def test_what_ships_is_not_surely_worse_than_any_other_model(run: Run, pair_run: Run) -> None:
    for found in (run, pair_run):
        metric, record = found.results.metric, found.record
        for mark in found.results.marks:
            held = found.predictions(mark.mark)["held_out"]
            for name in mark.models:
                ahead = compare(held.outputs[mark.selected], held.outputs[name], held.targets, metric, record.kind)
                assert ahead.low <= 0, name
            assert mark.goodness == pytest.approx(mark.score(mark.selected, metric, "held_out").value)
        assert found.results.selected.model == found.results.shipped.selected


def test_only_a_model_that_is_surely_better_than_the_greedy_ensemble_ships_instead_of_it() -> None:
    """Ensembles go by the loss: a model that is always right but never sure has no weight in them."""
    truth, rows = np.random.default_rng(0).integers(0, 2, 200), np.arange(200)
    windows = Windows(rows, rows, rows, np.arange(201), 0, rows)
    judge = kinds["class"].judge(Examples(["text"] * 200, None, truth), windows, Recipe())

    def chosen(mistakes: int) -> Choice:
        sure = np.where(rows < mistakes, 0.4, 0.999)
        right = {"encoder": sure, "timid": np.full(200, 0.501)}
        outputs = {
            name: np.where(np.eye(2)[truth] > 0, share[:, None], 1 - share[:, None]) for name, share in right.items()
        }
        return choose(outputs, judge, "accuracy")

    many, one = chosen(50), chosen(1)
    assert many.ensembles[GREEDY].weights == {"encoder": 1.0}
    assert (many.best_head, many.selected, many.goodness) == ("timid", "timid", 1.0)
    assert (one.best_head, one.selected) == ("timid", GREEDY)


def test_run_json_says_how_the_run_came_about(run: Run) -> None:
    info = info_of(run)
    assert info["options"]["seed"] == 0
    assert info["data"]["train"]["examples"] == 144
    assert info["data"]["held_out"]["examples"] == 16
    assert len(info["weights_sha256"]) == 64
    assert info["versions"]["torch"]
    assert info["parameters"]["encoder"] > info["parameters"]["adapter-64-views"] > 0
    assert info["costs"]["seconds"] > 0
    assert info["costs"]["peak_memory_bytes"] > 1e7


def test_every_model_left_its_predictions(run: Run) -> None:
    for mark in run.results.marks:
        parts = run.predictions(mark.mark)
        assert set(parts) == {"held_out", "dev"}
        assert set(parts["dev"].outputs) == set(mark.scores["dev"])
        for outputs in parts["dev"].outputs.values():
            assert outputs.shape == (60, 2)
            assert outputs.sum(1) == pytest.approx(np.ones(60))


def test_evaluating_again_gives_the_same_scores_at_every_mark(run: Run) -> None:
    for mark in run.results.marks:
        again = bertvision.evaluate(f"{run.path}@{mark.mark}").scores["dev"]
        assert again.keys() == mark.scores["dev"].keys()
        for model, found in again.items():
            assert found["accuracy"].as_dict() == pytest.approx(mark.scores["dev"][model]["accuracy"].as_dict()), model


def test_evaluating_on_a_file_scores_that_file(run: Run, tmp_path: Path) -> None:
    write_csv(tmp_path / "more.csv", ("text", "label"), sentences(40, seed=11))
    result = bertvision.evaluate(run.path, dev=tmp_path / "more.csv")
    assert result.scores["dev"][result.selected]["accuracy"].value > 0.8
    write_csv(tmp_path / "bare.csv", ("text",), [("a",)])
    with pytest.raises(UserError, match="no column 'label'"):
        bertvision.evaluate(run.path, dev=str(tmp_path / "bare.csv"))


def test_a_loaded_model_answers_as_its_predictions_say(run: Run) -> None:
    for mark in ("0", "1"):
        for name in ("encoder", run.mark(mark).selected, "ensemble-greedy"):
            model = bertvision.load(f"{run.path}@{mark}", name)
            texts = [text for text, _ in sentences(60, seed=7)]
            answers = model.predict(texts)
            kept = run.predictions(mark)["dev"].outputs[name]
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
    mark = pair_run.mark("0")
    polished = [name for name in mark.models if name.endswith("+polish")]
    assert {mark.ways[name] for name in polished} == {"separate"}
    again = bertvision.evaluate(f"{pair_run.path}@0").scores["dev"]
    for name in polished:
        assert again[name]["pearson"].value == pytest.approx(mark.score(name, "pearson", "dev").value, abs=1e-5)
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


def test_answers_to_a_file_are_never_shifted_by_a_line_that_is_left_out(tmp_path: Path, command: Command) -> None:
    header, pairs = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], sentences(80)
    rows = [[str(i), "1", "2", text, text if i % 2 else "a cat", str(i % 2)] for i, (text, _) in enumerate(pairs)]
    torn = [*rows[:3], rows[3][:2], *rows[4:]]
    for name, lines in (("train.tsv", rows), ("dev.tsv", torn), ("whole.tsv", rows[:8])):
        (tmp_path / name).write_text("".join("\t".join(line) + "\n" for line in [header, *lines]))
    run = bertvision.fit("qqp", data=tmp_path, epochs=0, heads="none", out=tmp_path / "run", **EASY)
    assert run.record.data["dev"].examples == 79  # scores may leave a torn line out
    code, _, err = command("predict", run.path, "--file", tmp_path / "dev.tsv")
    assert (code, "dev.tsv', line 5: 2 fields where 6 were expected" in err) == (1, True)
    code, out, _ = command("predict", run.path, "--file", tmp_path / "whole.tsv", "--json")
    assert [answer["text"] for answer in json.loads(out)] == [text for text, _ in pairs[:8]]


def test_blank_lines_of_a_text_file_are_counted(run: Run, tmp_path: Path, command: Command) -> None:
    (tmp_path / "new.txt").write_text("a great film\n\na bad film\n \n")
    code, out, err = command("predict", run.path, "--file", tmp_path / "new.txt", "--json")
    assert [answer["text"] for answer in json.loads(out)] == ["a great film", "a bad film"]
    assert (code, "new.txt': 2 blank lines were left out" in err) == (0, True)


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
    difference = result.difference["dev"]["accuracy"]
    a, b = (side["accuracy"].value for side in result.scores["dev"])
    assert difference.value == pytest.approx(b - a)
    assert difference.low <= difference.value <= difference.high
    same = bertvision.compare(run.path, run.path).difference["dev"]["accuracy"]
    assert (same.value, same.low, same.high) == (0, 0, 0)
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
