"""`reproduce`: each run is fitted once, and tables and figures go into their section of a document."""

import json
import shutil
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from conftest import Command

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.metrics.intervals import Score, compare
from bertvision.progress import Progress
from bertvision.records import read_json, write_json
from bertvision.tasks.invented import write
from bertvision_paper import document, drawing, plan
from bertvision_paper.drawing import Figure, Point
from bertvision_paper.plan import Plan, Replicates
from bertvision_paper.tables import reproduce

HEADS = "learned-pooling,learned-pooling-normalised"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("squad")
    write(folder, train=12, dev=6)
    return folder


@pytest.fixture(scope="module")
def small(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return Plan(str(data), "tiny", limit=60, heads=HEADS, seeds=(0, 1), out=str(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def runs(small: Plan) -> Replicates:
    return small.runs("squad2", ("3/10", "1"), "", Progress(quiet=True))


def test_the_papers_tables_are_beside_ours(
    small: Plan, runs: Replicates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = reproduce("squad2", small, Progress(quiet=True))
    tables = {table.title: table for table in shown if isinstance(table, Table)}
    heads = {row["head"]: row for row in tables["Span heads"].rows}
    assert set(heads) == {"learned-pooling"}  # the only head of the paper that was asked for
    assert heads["learned-pooling"]["exact / F1 3/10, paper"] == "0.670 / 0.712"
    each = [run.results.at("1").score("learned-pooling+polish", "f1").value for run in runs.runs]
    assert heads["learned-pooling"]["F1 1, ours"].startswith(f"{sum(each) / 2:.3f} [")
    ensembling = {(row["epochs"], row["model"]): row for row in tables["Ensembling"].rows}
    assert {mark for mark, _ in ensembling} == {"3/10", "1"}
    assert ensembling["1", "encoder"]["exact / F1, paper"] == "0.728 / 0.777"
    assert ensembling["1", "selected"]["exact / F1, paper"] == "-"
    less = {row["data"]: row for row in tables["Less data"].rows}
    assert list(less) == [f"{share}%" for share in range(10, 101, 10)]
    assert (less["10%"]["F1 at 3/10, paper"], less["100%"]["F1 at 1, paper"]) == ("0.692", "0.783")
    assert all("[" in row["found F1 at 3/10, ours"] and "[" in row["F1 at 1, ours"] for row in less.values())
    pictures = {figure.name: figure for figure in shown if isinstance(figure, Figure)}
    assert set(pictures) == {"heads", "over-fine-tuning", "less-data", "layers"}
    curves = pictures["over-fine-tuning"].series
    assert [point.x for point in curves["best head, ours"]] == [0.3, 1.0]
    assert [point.y.value for point in curves["encoder, paper"]] == [0.702, 0.777]
    assert len(pictures["less-data"].series["found F1 at 1, ours"]) == 10
    assert {
        "The paper's claims, here",
        "Heads trained early, used later",
        "The second most likely answer",
        "Learned layer weights",
    } <= set(tables)
    document.write(tmp_path / "results.md", "reproduce squad2 tiny", "command", shown)
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert sum(line.startswith("|") for line in lines) == sum(len(table.rows) + 2 for table in tables.values())
    assert len(list((tmp_path / "figures").iterdir())) == len(pictures)

    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was fitted again")

    monkeypatch.setattr(plan, "fit", nothing)
    reproduce("squad2", small, Progress(quiet=True))


def test_scores_are_means_over_seeds(runs: Replicates) -> None:
    values = [run.results.at("1").score("encoder", "f1").value for run in runs.runs]
    found = runs.score("1", "encoder", "f1")
    assert found is not None
    assert found.value == pytest.approx(sum(values) / 2)
    assert found.low <= found.value <= found.high
    assert runs.score("1", "cnn-1xn", "f1") is None
    assert runs.score("2", "encoder", "f1") is None


def test_differences_are_paired_over_examples(runs: Replicates) -> None:
    run = runs.runs[0]
    found = Replicates([run]).difference("1", "encoder", "best head", "f1")
    dev, head = run.predictions("1")["dev"], run.results.at("1").best_head
    expected = compare(dev.outputs["encoder"], dev.outputs[head], dev.targets, "f1", "span")
    assert found is not None
    assert astuple(found) == pytest.approx(astuple(expected))


def test_roles_are_what_held_out_examples_chose(runs: Replicates) -> None:
    for run in runs.runs:
        kept = run.results.at("1")
        for role, name in (("best head", kept.best_head), ("selected", kept.selected)):
            found = Replicates([run]).score("1", role, "f1")
            assert found is not None
            assert name is not None
            assert found.value == pytest.approx(kept.score(name, "f1").value)


def test_finished_runs_with_other_options_are_refused(small: Plan, runs: Replicates) -> None:
    with pytest.raises(UserError, match=r"other options \(--heads"):
        replace(small, heads="last-layer").runs("squad2", ("3/10", "1"), "", Progress(quiet=True))
    with pytest.raises(UserError, match=r"other options \(--dev-limit None -> 3"):
        replace(small, dev_limit=3).runs("squad2", ("3/10", "1"), "", Progress(quiet=True))
    with pytest.raises(UserError, match="--epochs must be a number or a fraction such as 3/10; got 'x'"):
        replace(small, epochs="x").runs("squad2", ("3/10", "1"), "", Progress(quiet=True))


def test_runs_of_version_0_1_are_used_again(small: Plan, runs: Replicates, tmp_path: Path) -> None:
    """They keep no request, so what was left open is not known."""
    run = runs.runs[0]
    shutil.copytree(run.path, tmp_path / run.path.name)
    kept = read_json(run.path / "run.json")
    del kept["schema"], kept["request"]
    write_json(tmp_path / run.path.name / "run.json", kept)
    found = replace(small, seeds=(0,), out=str(tmp_path)).runs("squad2", ("3/10", "1"), "", Progress(quiet=True))
    assert [one.path for one in found.runs] == [tmp_path / run.path.name]


def test_answerability(data: Path, tmp_path: Path, command: Command) -> None:
    code, out, err = command(
        "reproduce", "squad2-answerable", "--data", data, "--backbone", "tiny", "--limit", 60,
        "--heads", "tenney-small", "--out", tmp_path, "--write", tmp_path / "results.md", "--json",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads(out)[0]["rows"]
    assert [(row["epochs"], row["accuracy / F1, paper"]) for row in rows if row["model"] == "tenney-small"] == [
        ("1/5", "0.697 / 0.649"), ("1", "0.782 / 0.763"),
    ]  # fmt: skip
    text = (tmp_path / "results.md").read_text()
    made_by = next(line for line in text.splitlines() if line.startswith("Made by"))
    assert made_by.startswith("Made by `bertvision reproduce squad2-answerable --data FOLDER")
    assert all(option in made_by for option in ("--backbone tiny", "--limit 60", "--seeds 0", "--heads tenney-small"))


def test_a_document_keeps_the_text_around_the_tables(tmp_path: Path) -> None:
    file, table = tmp_path / "results.md", Table("Title", "Note.", [{"a": 1, "b": None}, {"a": "x|y", "b": 2}])
    file.write_text("before\n\n<!-- here -->\nold\n<!-- /here -->\n\nafter\n")
    document.write(file, "here", "command", [table])
    text = file.read_text()
    assert text.startswith("before\n\n<!-- here -->\nMade by `command`.")
    assert text.endswith("<!-- /here -->\n\nafter\n")
    assert r"| x\|y | 2 |" in text
    assert "old" not in text
    document.write(file, "here", "command", [table])
    assert file.read_text() == text
    document.write(file, "elsewhere", "command", [table])
    assert "<!-- elsewhere -->" in file.read_text()
    file.write_text("<!-- here -->\n")
    with pytest.raises(UserError, match="once each"):
        document.write(file, "here", "command", [table])


def test_figures_are_beside_the_document(tmp_path: Path) -> None:
    points = [Point(x, Score(x, x - 0.1, x + 0.1), f"point {x}") for x in (0.5, 1.0)]
    figure = Figure("name", "A title", ("across", "up"), {"ours": points, "paper": points})
    document.write(tmp_path / "results.md", "reproduce glue tiny", "command", [figure])
    assert "![A title](figures/glue-tiny-name.svg)" in (tmp_path / "results.md").read_text()
    drawn = (tmp_path / "figures" / "glue-tiny-name.svg").read_bytes()
    assert all(text in drawn for text in (b"A title", b"across", b"up", b"ours", b"paper", b"point 0.5"))
    document.write(tmp_path / "results.md", "reproduce glue tiny", "command", [figure])
    assert (tmp_path / "figures" / "glue-tiny-name.svg").read_bytes() == drawn


def test_without_matplotlib_nothing_is_started(
    data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    code, _, err = command(
        "reproduce", "squad2", "--data", data, "--backbone", "tiny", "--out", tmp_path / "runs",
        "--write", tmp_path / "results.md",
    )  # fmt: skip
    assert (code, "need matplotlib" in err) == (1, True)
    assert not list(tmp_path.iterdir())


def test_bad_input(tmp_path: Path, command: Command) -> None:
    code, _, err = command("reproduce", "squat")
    assert (code, "one of squad2, squad2-answerable, glue" in err) == (1, True)
    code, _, err = command("reproduce", "glue", "--write", tmp_path / "no" / "file.md")
    assert (code, "in an existing folder" in err) == (1, True)
    code, _, err = command("reproduce", "glue", "--seeds", "a")
    assert (code, "got 'a'" in err) == (1, True)
