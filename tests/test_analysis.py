"""Analyses find what was planted in predictions, and what a run's own heads and encoders know."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, sentences, write_csv
from sklearn.calibration import calibration_curve

import bertvision
from bertvision.analysis import Table, analyses, probe
from bertvision.analysis.answers import answer_type, question_word
from bertvision.analysis.conduct import analyse
from bertvision.analysis.depth import smallest
from bertvision.analysis.evidence import Evidence
from bertvision.errors import UserError
from bertvision.formats import grid
from bertvision.kinds import Predictions
from bertvision.runs.directory import Run
from bertvision.runs.predictions import write_predictions
from bertvision.tasks.invented import write

EASY = {"backbone": "tiny", "quiet": True, "polish": 2, "marks": "1/2,1"}
HEADS = "learned-pooling-views:seed=0..1,closed-form,adapter-64-views:data=50/100"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    write_csv(folder / "train.csv", ("text", "label"), sentences(160))
    write_csv(folder / "dev.csv", ("text", "label"), sentences(40, seed=7))
    return bertvision.fit(
        "table", train=folder / "train.csv", dev=folder / "dev.csv", heads=HEADS, out=folder / "run", **EASY
    )


@pytest.fixture(scope="module")
def span_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("squad")
    write(folder, train=16, dev=6)
    heads = "learned-pooling-normalised,adapter-64-ngram"
    return bertvision.fit("squad2", data=folder, heads=heads, out=folder / "run", **EASY)


@pytest.fixture(scope="module")
def score_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("scores")
    rows = [(text, str((i % 11) / 2)) for i, (text, _) in enumerate(sentences(120))]
    write_csv(folder / "train.csv", ("text", "score"), rows)
    return bertvision.fit("table", train=folder / "train.csv", heads="last-layer-views", out=folder / "run", **EASY)


def copied(run: Run, folder: Path) -> Run:
    shutil.copytree(run.path, folder / "copy")
    return Run(folder / "copy")


def planted(run: Run, folder: Path, changed: dict[str, np.ndarray]) -> Run:
    """A copy of the run whose last mark has other dev predictions: model -> (N,) probability of class 1."""
    made = copied(run, folder)
    kept = made.predictions("1")
    said = {split: {name: Predictions(values) for name, values in part.outputs.items()} for split, part in kept.items()}
    for name, values in changed.items():
        said["dev"][name] = Predictions(np.stack([1 - values, values], 1))
    write_predictions(made.predictions_file("1"), {split: part.targets for split, part in kept.items()}, said)
    return made


def rewrite(run: Run, **options: Any) -> None:
    """Change options in run.json."""
    record = run.record
    record.recipe = replace(record.recipe, **options)
    record.write(run.path / "run.json")


def one(run: Run, name: str, mark: str = "1", **options: Any) -> list[Table]:
    return analyse(f"{run.path}@{mark}", [name], **options)[name]


def test_overlap_confusion_and_disagreement_count_what_was_planted(run: Run, tmp_path: Path) -> None:
    dev = run.predictions("1")["dev"]
    targets, head = dev.targets, run.results.at("1").best_head
    said = np.where(targets == 1, 0.9, 0.1)
    encoder, other = said.copy(), said.copy()
    encoder[:10] = 1 - encoder[:10]  # the encoder is wrong on the first ten, the head on five to fifteen
    other[5:15] = 1 - other[5:15]
    made = planted(run, tmp_path, {"encoder": encoder, head: other})
    rows = {row["right"]: row for row in one(made, "overlap")[0].rows}
    counts = {name: row["examples"] for name, row in rows.items()}
    assert counts == {"both right": 25, "only the encoder": 5, "only the head": 5, "neither": 5}
    texts = [text for text, _ in sentences(40, seed=7)]
    assert rows["neither"]["mean words"] == np.mean([len(texts[i].split()) for i in range(5, 10)])
    apart = {row["model"]: row for row in one(made, "disagreement")[0].rows}
    assert apart["encoder"][head] == apart[head]["encoder"] == 10 / 40
    assert apart["encoder"]["encoder"] == 0
    table = one(made, "confusion")[0]
    wrong = [int((targets[:10] == label).sum()) for label in (0, 1)]
    assert [table.rows[0]["said pos"], table.rows[1]["said neg"]] == wrong
    rows_ = one(made, "breakdown")[0].rows
    for part in ("is ", "words"):  # each example is in one group of a kind
        assert sum(row["examples"] for row in rows_ if part in row["group"]) == 40


def test_a_run_that_cannot_be_written_is_analysed_all_the_same(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: Path, value: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("bertvision.analysis.evidence.write_json", closed)
    assert Evidence(run.path).kept("nothing-yet", lambda: [{"layer": 1}]) == [{"layer": 1}]
    assert not Evidence(run.path).has("nothing-yet")


def test_a_confusion_table_has_a_column_for_every_class() -> None:
    """Also where names look like a value and the ends of its interval, or like a size in bytes."""
    names = ("risk", "risk low", "risk high", "n_bytes")
    matrix = [
        {"is": name} | {f"said {other}": i + 7 for i, other in enumerate(names)} | {"right": 0.5} for name in names
    ]
    shown = grid(matrix)
    assert shown.headers == ["is", *(f"said {name}" for name in names), "right"]
    assert [[cell.text for cell in row[1:5]] for row in shown.rows] == [["7", "8", "9", "10"]] * 4
    scored = grid([{"value": 0.5, "low": 0.4, "high": 0.6, "change": 0.1, "change low": 0.0, "change high": 0.2}])
    assert [cell.text for cell in scored.rows[0]] == ["0.500 [0.400, 0.600]", "+0.100 [+0.000, +0.200]"]


def test_calibration_and_coverage_see_planted_overconfidence(run: Run, tmp_path: Path) -> None:
    targets = run.predictions("1")["dev"].targets
    sure = np.where(targets == 1, 0.99, 0.01)
    sure[::4] = np.where(targets[::4] == 1, 0.39, 0.61)  # a quarter is wrong, and less sure
    made = planted(run, tmp_path, {"encoder": sure})
    summary, bins = one(made, "calibration")
    gap = next(row for row in summary.rows if row["role"] == "encoder")["expected calibration error"]
    assert gap == pytest.approx(0.25 * 0.61 + 0.75 * 0.01)
    assert [(row["stated"], row["actual"]) for row in bins.rows if row["role"] == "encoder"] == [
        (pytest.approx(0.61), 0.0),
        (pytest.approx(0.99), 1.0),
    ]
    curve = {row["coverage"]: row["score"] for row in one(made, "coverage")[0].rows if row["role"] == "encoder"}
    assert curve[0.7] == 1
    assert curve[1.0] == 0.75


def test_calibration_is_that_of_scikit_learn(run: Run) -> None:
    for role, model in run.results.at("1").roles.items():
        dev = run.predictions("1")["dev"]
        probabilities = dev.outputs[model]
        right = probabilities.argmax(1) == dev.targets
        actual, stated = calibration_curve(right, probabilities.max(1), n_bins=10)
        rows = [row for row in one(run, "calibration")[1].rows if row["role"] == role]
        assert [row["stated"] for row in rows] == pytest.approx(list(stated))
        assert [row["actual"] for row in rows] == pytest.approx(list(actual))
        assert sum(row["examples"] for row in rows) == len(right)


def test_the_most_confident_errors_come_first_with_their_texts(run: Run, tmp_path: Path) -> None:
    targets, selected = run.predictions("1")["dev"].targets, run.results.at("1").selected
    said = np.where(targets == 1, 0.9, 0.1)
    said[3], said[8] = abs(targets[3] - 0.97), abs(targets[8] - 0.8)
    rows = one(planted(run, tmp_path, {selected: said}), "errors")[0].rows
    texts = [text for text, _ in sentences(40, seed=7)]
    assert [row["text"] for row in rows] == [texts[3], texts[8]]
    assert rows[0]["is"] != rows[0]["said"]
    assert rows[0]["probability"] == pytest.approx(0.97)


def test_curves_hold_every_mark_and_share_of_the_data(run: Run) -> None:
    rows = one(run, "curve")[0].rows
    assert {(row["epochs"], row["role"]) for row in rows} >= {("1/2", "encoder"), ("1", "selected")}
    kept = run.results.at("1").score("encoder", "accuracy").value
    assert next(row for row in rows if (row["epochs"], row["role"]) == ("1", "encoder"))["value"] == kept
    assert {row["data"] for row in one(run, "less-data")[0].rows} == {0.5, 1.0}


def test_layers_have_weights_of_every_seed_and_a_profile(run: Run) -> None:
    weights, alone = one(run, "layers")
    of_one = [
        row
        for row in weights.rows
        if (row["epochs"], row["seed"], row["head"]) == ("1", 1, "learned-pooling-views+polish")
    ]
    assert [row["layer"] for row in of_one] == [0, 1, 2, 3]
    assert sum(row["weight"] for row in of_one) == pytest.approx(1, abs=1e-3)
    assert {row["layer"] for row in alone.rows} == {0, 1, 2, 3}


def test_transfer_is_the_runs_own_score_on_the_diagonal(run: Run, span_run: Run) -> None:
    for made, metric in ((run, "accuracy"), (span_run, "f1")):
        rows = [row for row in one(made, "transfer")[0].rows if row["metric"] == metric]
        assert {(row["trained at"], row["asked at"]) for row in rows} == {
            (a, b) for a in ("1/2", "1") for b in ("1/2", "1")
        }
        for row in rows:
            if row["trained at"] == row["asked at"]:
                assert row["change"] == 0
                assert row["value"] == pytest.approx(made.results.at(row["asked at"]).score(row["head"], metric).value)


def test_deep_analyses_are_made_once_and_kept(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = copied(run, tmp_path)
    assert "depth" not in analyse(made.path)
    by_depth, where = one(made, "depth")
    assert [row["depth"] for row in by_depth.rows] == [0, 1, 2, 3]
    assert where.rows[0]["layers"] == smallest(by_depth.rows, 0.5)["depth"]
    without = one(made, "without-layer")[0]
    assert [row["without"] for row in without.rows] == ["none", "0", "1", "2", "3"]
    assert all(row["low"] <= row["value"] <= row["high"] for row in [*by_depth.rows, *without.rows])
    assert not list(made.path.glob("probe-*"))

    def nothing(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(probe, "fit", nothing)
    assert one(made, "depth")[0] == by_depth
    assert "depth" in analyse(f"{made.path}@1")


def test_the_least_depth_within_a_tolerance() -> None:
    rows = [{"depth": k, "held_out": value} for k, value in enumerate([0.5, 0.79, 0.801, 0.80])]
    assert smallest(rows, 0.5)["depth"] == 2
    assert smallest(rows, 1.2)["depth"] == 1
    assert smallest(rows, 0)["depth"] == 2
    rows = [{"depth": k, "held_out": value} for k, value in enumerate((0.9, 0.7, 0.795, 0.8))]
    assert smallest(rows, 0.5)["depth"] == 2  # the edge is within; an encoder without layers does not count


def test_spans_second_answers_and_silence_are_counted(span_run: Run) -> None:
    kept = span_run.predictions("1")["dev"]
    row = next(row for row in one(span_run, "shares")[0].rows if (row["epochs"], row["role"]) == ("1", "encoder"))
    silent = kept.answers["encoder"] == ""
    assert row["answers given"] == pytest.approx(1 - silent.mean())
    assert row["unanswerable right"] == pytest.approx(silent[kept.targets == 0].mean())
    for row in one(span_run, "second")[0].rows:
        seconds, answers = kept.seconds[row["model"]], kept.answers[row["model"]]
        assert (seconds != answers).all()
        assert row["first wrong"] == (kept.outputs[row["model"]][:, 0] < 1).sum()
        # Where silence was wrong about nothing, the second answer is a span, and the other way round.
        assert all(second for second, answer in zip(seconds, answers, strict=True) if not answer)
    assert {row["group"] for row in one(span_run, "questions")[1].rows} >= {"none", "name"}


def test_every_analysis_suits_its_kinds(run: Run, span_run: Run, score_run: Run) -> None:
    for made, kind in ((run, "class"), (span_run, "span"), (score_run, "score")):
        found = analyse(made.path)
        expected = {n for n in analyses if kind in analyses[n].kinds and not analyses[n].deep}
        assert set(found) >= expected - {"less-data", "layers", "errors"}
        for tables in found.values():
            for table in tables:
                assert table.rows
                assert all(row.keys() == table.rows[0].keys() for row in table.rows), table.title
                json.dumps(table.rows)


def test_question_words_and_types_of_answers() -> None:
    assert question_word("In what year was it built?") == "what"
    assert question_word("How many people live there?") == "how many"
    assert question_word("Whose idea was it?") == "who"
    assert question_word("Name the river.") == "other"
    said = {"": "none", "1066": "date", "31,400": "number", "May 5": "date", "Mara Teld": "name", "red wine": "phrase"}
    assert {text: answer_type(text) for text in said} == said
    assert answer_type("because the river had risen above the old stone bridge") == "clause"


def test_analyse_prints_tables_or_json(run: Run, command: Command) -> None:
    code, out, _ = command("analyse", run.path, "--only", "overlap,curve")
    assert code == 0
    assert "Error overlap" in out
    code, out, _ = command("analyse", run.path, "--only", "curve", "--json")
    assert json.loads(out)[str(run.path)]["curve"][0]["rows"]
    code, out, _ = command("ls", "analyses")
    assert all(name in out for name in analyses)


def test_bad_input_is_named(run: Run, span_run: Run, tmp_path: Path, command: Command) -> None:
    code, _, err = command("analyse", run.path, "--only", "overlaps")
    assert code == 1
    assert "Did you mean 'overlap'?" in err
    with pytest.raises(UserError, match=r"'second' is for span; this run is of kind class"):
        analyse(run.path, ["second"])
    with pytest.raises(UserError, match="must not be negative"):
        analyse(run.path, tolerance=-1)
    moved = copied(run, tmp_path)
    rewrite(moved, dev=str(tmp_path / "gone.csv"))
    found = analyse(moved.path)  # what needs no text is there all the same
    assert "mean words" not in found["overlap"][0].rows[0]
    assert "errors" not in found
    with pytest.raises(UserError, match=r"gone\.csv"):
        analyse(moved.path, ["errors"])


def test_data_given_in_memory_cannot_be_read_again(run: Run, tmp_path: Path) -> None:
    made = copied(run, tmp_path)
    rewrite(made, train=None, dev=None)
    with pytest.raises(UserError, match="was given in memory"):
        analyse(made.path, ["errors"])
    assert {"curve", "calibration", "confusion"} <= set(analyse(made.path))


def test_python_calls_work_twice(run: Run, tmp_path: Path) -> None:
    """Modules of the same name would take a function's place once they are imported."""
    for name in ("one", "two"):
        assert bertvision.report(run.path, out=tmp_path / f"{name}.md").exists()
        assert "curve" in bertvision.analyse(run.path, ["curve"])
