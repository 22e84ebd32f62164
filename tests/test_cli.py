"""The command line as a user meets it: what it prints, what it leaves behind, and one message per mistake."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command, scores_of, sentences, write_csv

FAST = ("--backbone", "tiny", "--polish", "2")


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    """Which is what makes it answer at once: seconds would depend on the machine."""
    heavy = "torch transformers accelerate sklearn scipy pyarrow plotly datasets"
    code = f"""
import sys
from bertvision.cli import main
try:
    main()
except SystemExit:
    print("loaded:", *[name for name in {heavy.split()!r} if name in sys.modules])
"""
    for arguments in (("--help",), ("fit", "--help"), ("--version",)):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1].split() == ["loaded:"], arguments
        if arguments == ("--help",):
            for name in ("fit", "evaluate", "compare", "predict", "ls", "demo"):
                assert re.search(rf"\b{name}\b", done.stdout), name


def test_every_promised_option_is_there(command: Command) -> None:
    _, out, _ = command("fit", "--help")
    promised = (
        "--data --train --dev --text --text-pair --label --kind --backbone --heads --polish --pairs --epochs --marks"
        " --batch-size --lr --head-lr --max-length --freeze --limit --dev-limit --seed --out --resume --json"
    )
    assert [flag for flag in promised.split() if not re.search(rf"{flag}(?![\w-])", out)] == []


def test_from_table_to_answers(command: Command, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = command("fit", "table", "--train", table, *FAST, "--marks", "0,3/10,1", "--out", run)
    assert code == 0, err
    assert "* selected on held-out data" in out
    assert "kind class" in err
    assert "encoder" in out
    code, out, _ = command("predict", run, "a great film", "--json")
    assert code == 0
    assert json.loads(out)[0].keys() == {"text", "label", "probabilities"}
    code, out, _ = command("predict", run, "a [/b] great [a] film")
    assert "a [/b] great [a] film" in out
    (tmp_path / "new.txt").write_text("one text\n\nanother text\n")
    code, out, _ = command("predict", run, "--file", tmp_path / "new.txt", "--json")
    assert [row["text"] for row in json.loads(out)] == ["one text", "another text"]
    code, out, _ = command("predict", run, "--file", table, "--json")
    assert len(json.loads(out)) == 120
    code, out, _ = command("evaluate", run, "--json")
    assert json.loads(out)["dev"]["encoder"]["accuracy"]["low"] >= 0
    code, out, _ = command("evaluate", f"{run}@3/10", "--dev", table)
    assert "accuracy" in out
    code, out, _ = command("compare", run, f"{run}@0")
    assert "b - a =" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.txt", "reviews.csv", "run"]


def test_pairs_and_scores_on_the_command_line(command: Command, pair_table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, out, err = command(
        "fit", "table", "--train", pair_table, "--text", "one", "--text-pair", "two", *FAST, "--out", run, "--json"
    )
    assert code == 0, err
    assert json.loads(out)["metric"] == "pearson"
    code, out, _ = command("predict", run, "the red cat", "the red dog", "--json")
    assert json.loads(out)[0].keys() == {"text", "text_pair", "score"}
    code, _, err = command("predict", run, "only one")
    assert (code, "trained on pairs" in err) == (1, True)


@pytest.mark.parametrize("what", ["tasks", "heads", "backbones"])
def test_ls_lists_names(command: Command, what: str) -> None:
    code, out, _ = command("ls", what, "--json")
    assert code == 0
    assert len({row["name"] for row in json.loads(out)}) >= 3
    assert command("ls", what)[0] == 0


def lines(*rows: str) -> bytes:
    return "\n".join(rows).encode() + b"\n"


GOOD = lines("text,label", *(f"{text},{label}" for text, label in sentences(60)))
SCORES = [f"{text},{i % 7 + 0.5}" for i, (text, _) in enumerate(sentences(60))]
BAD_FILES = {
    "empty": (b"", "is empty"),
    "header only": (lines("text,label"), "has no rows"),
    "missing column": (
        lines("body,notes,label", "a,x,1", "b,y,2"),
        "which column is --text\\? It has: body, notes, label",
    ),
    "one class": (lines("text,label", *(f"{t},x" for t, _ in sentences(30))), "all labels are 'x'"),
    "NaN score": (lines("text,label", *SCORES, "more,nan"), r"row 61: column 'label' holds 'nan'"),
    "empty label": (
        lines("text,label", *(f"{t},{y}" for t, y in sentences(30)), "more,"),
        "row 31: the label is empty",
    ),
    "few fields": (GOOD + b"only one field\n", "line 62: 1 fields where 2 were expected"),
    "many fields": (GOOD + b"great, really,pos\n", "line 62: 3 fields where 2 were expected"),
    "word among scores": (lines("text,label", *SCORES, "more,n/a"), "row 61: label 'n/a' among numbers"),
    "broken UTF-8": (GOOD + b"caf\xe9 films,pos\n", "line 62: not valid UTF-8"),
    "few rows": (lines("text,label", "a,x", "b,y", "c,x"), "too few"),
    "NaN class": (
        lines("text,label", *(f"{t},{i % 2}" for i, (t, _) in enumerate(sentences(30))), "more,nan"),
        "row 31: label 'nan' among numbers",
    ),
    "no class twice": (
        lines("text,label", *(f"{t},{i}x" for i, (t, _) in enumerate(sentences(15)))),
        "is of another class",
    ),
    "open quote": (GOOD + b'"never closed,pos\n', "line"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_one_message_and_leaves_nothing(command: Command, case: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[case]
    (tmp_path / "bad.csv").write_bytes(content)
    options = () if case == "missing column" else ("--text", "text")
    fails(command, tmp_path, message, "--train", tmp_path / "bad.csv", *options)


def fails(command: Command, tmp_path: Path, message: str, *arguments: object) -> None:
    before = sorted(tmp_path.iterdir())
    code, out, err = command("fit", "table", *FAST, "--out", tmp_path / "run", *arguments)
    assert code == 1
    assert re.search(message, err.splitlines()[-1]), err
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in out + err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--train", "nowhere.csv"), "no file 'nowhere.csv'"),
        ((), "needs --train"),
        (("--train", "TABLE", "--label", "lable"), "no column called 'lable'. Did you mean 'label'"),
        (("--train", "TABLE", "--kind", "score"), "holds 'neg', not a finite number"),
        (("--train", "TABLE", "--heads", "adaptor-64"), "no head called 'adaptor-64'. Did you mean 'adapter-64'"),
        (("--train", "TABLE", "--heads", "cosines"), "is for tasks with two texts per example"),
        (("--train", "TABLE", "--backbone", "tinny"), "no backbone called 'tinny'. Did you mean 'tiny'"),
        (("--train", "TABLE", "--marks", "3"), "--marks asks for 3 epochs"),
        (("--train", "TABLE", "--freeze", "9"), "has 3 layers"),
        (("--train", "TABLE", "--resume"), "nothing to resume"),
        (("--train", "TABLE", "--data", "x"), "Task 'table' does not take --data"),
        (("--train", "TABLE", "--metric", "r2"), "--metric for kind class must be one of accuracy, f1, macro-f1"),
        (("--train", "TABLE", "--class-weight", '{"poz": 2}'), "--class-weight: There is no class called 'poz'"),
        (("--train", "TABLE", "--weight", "label"), "row 1: --weight column 'label' holds 'neg'"),
        (("--train", "TABLE", "--seed", "-1"), "--seed must not be negative; got -1"),
    ],
)
def test_a_wrong_option_is_one_message_and_leaves_nothing(
    command: Command, arguments: tuple[str, ...], message: str, table: Path, tmp_path: Path
) -> None:
    fails(command, tmp_path, message, *(table if part == "TABLE" else part for part in arguments))


def test_dev_rows_of_a_class_that_train_lacks_count_as_wrong_and_are_said(
    command: Command, table: Path, tmp_path: Path
) -> None:
    write_csv(tmp_path / "dev.csv", ("text", "label"), [("good", "pos"), ("bad", "neg"), ("b", "meh"), ("c", "meh")])
    run, lacking = tmp_path / "run", "dev: 2 of 4 rows are of classes that train lacks; they count as wrong"
    options = ("--dev", tmp_path / "dev.csv", "--epochs", "0", "--metric", "balanced-accuracy", "--out", run)
    code, _, err = command("fit", table, *FAST, *options)
    assert code == 0, err
    assert f"'{tmp_path / 'dev.csv'}' has classes that train lacks: meh" in err
    assert lacking in err
    found = scores_of(run)["marks"][-1]["dev"]["encoder"]
    assert list(found) == ["balanced-accuracy", "accuracy", "f1", "matthews"]
    assert found["accuracy"]["value"] <= 0.5
    code, out, err = command("analyse", run, "--only", "confusion,breakdown,errors")
    assert (code, "2 examples of classes that train lacks are left out" in " ".join(out.split())) == (0, True), err
    assert "is a class that train lacks" in out
    code, _, err = command("evaluate", run, "--dev", tmp_path / "dev.csv")
    assert (code, lacking in err) == (0, True)


def test_an_existing_out_is_refused_before_any_work(command: Command, table: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    fails(command, tmp_path, "exists already", "--train", table)


def test_unknown_tasks_and_missing_data_are_explained(command: Command, tmp_path: Path) -> None:
    code, _, err = command("fit", "stsb", "--out", tmp_path / "run")
    assert (code, "Did you mean 'sts-b'" in err) == (1, True)
    code, _, err = command("fit", "rte", "--data", tmp_path, "--out", tmp_path / "run")
    assert (code, "neither train.tsv nor a folder RTE" in err) == (1, True)
    code, _, err = command("fit", "rte", "--out", tmp_path / "run")
    assert code == 1
    assert "--data FOLDER" in err
    assert "hub" in err


def test_long_texts_are_cut_counted_and_said(command: Command, tmp_path: Path) -> None:
    rows = [(text + " the" * (300 if i < 20 else 0), label) for i, (text, label) in enumerate(sentences(60))]
    write_csv(tmp_path / "long.csv", ("text", "label"), rows)
    code, _, err = command(
        "fit", "table", "--train", tmp_path / "long.csv", *FAST, "--epochs", "0", "--out", tmp_path / "r"
    )
    assert code == 0
    assert sum(int(count) for count in re.findall(r"(\d+) of \d+ examples truncated to 128 tokens", err)) == 20


def test_debug_shows_the_traceback(command: Command) -> None:
    from bertvision.errors import UserError

    with pytest.raises(UserError):
        command("predict", "nowhere", "text", "--debug")


def test_resume_without_out_finds_the_unfinished_run(
    command: Command, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("fit", "table", "--train", table, *FAST, "--heads", "none")
    assert command(*arguments, "--lr", "1e30")[0] == 1  # diverges
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["table-tiny.partial"]
    code, _, err = command(*arguments, "--lr", "1e30", "--resume")
    assert (code, "lower --lr" in err) == (1, True)


def test_changed_dev_data_is_not_scored_as_the_old(command: Command, table: Path, tmp_path: Path) -> None:
    command("fit", "table", "--train", table, *FAST, "--epochs", "0", "--out", tmp_path / "run")
    write_csv(table, ("text", "label"), sentences(200, seed=4))
    code, _, err = command("evaluate", tmp_path / "run")
    assert (code, "dev data has changed" in err) == (1, True)
    assert command("evaluate", tmp_path / "run", "--dev", table)[0] == 0


def test_heads_are_counted_at_a_shape_and_shown_layer_by_layer(command: Command) -> None:
    code, out, _ = command("ls", "heads", "--kind", "span", "--layers", 25, "--features", 1024, "--json")
    assert code == 0
    found = {row["name"]: row for row in json.loads(out)}
    assert found["learned-pooling-adapter-inception"]["parameters"] == 6_683_166
    assert found["learned-pooling-adapter-386"]["blocks"] == "LearnedPooling > Adapter + LastLayer > Linear"
    assert "cosines" not in found
    code, out, _ = command("ls", "heads", "--layers", 26, "--features", 1024, "--json")
    full = {row["name"]: row for row in json.loads(out)}["xception"]
    assert (full["parameters"], full["with_statistics"]) == (20_662_106, 20_716_634)
    code, out, _ = command(
        "show", "head", "learned-pooling-adapter-386", "--kind", "span", "--backbone", "tiny", "--json"
    )
    rows = json.loads(out)
    assert [row["type"] for row in rows[:3]] == ["LearnedPooling", "Adapter", "LastLayer"]
    assert rows[-1]["parameters"] == sum(row["parameters"] for row in rows[:-1])
    code, out, _ = command("show", "head", "adapter-64-ngram", "--backbone", "tiny")
    assert code == 0
    assert "Conv1d" in out
    for arguments, message in (
        (("ls", "heads", "--layers", 3), "Give --layers and --features"),
        (("ls", "heads", "--kind", "spans"), "--kind must be one of class, score, span; got 'spans'"),
        (("show", "head", "cosine"), "Did you mean 'cosines'"),
        (("show", "head", "cosines", "--kind", "span"), "'cosines' is for class, score"),
        (("show", "run", "x"), "only `show head NAME`"),
    ):
        code, _, err = command(*arguments)
        assert code == 1
        assert message in err


def test_a_shape_is_given_by_numbers_or_by_a_backbone(command: Command) -> None:
    for arguments in (("show", "head", "adapter-64", "--features", 1024), ("ls", "heads", "--layers", 25)):
        code, _, error = command(*arguments)
        assert (code, "Give --layers and --features" in error) == (1, True)
    code, _, error = command("ls", "heads", "--backbone", "tiny", "--layers", 25)
    assert (code, "of its own" in error) == (1, True)


@pytest.mark.slow
def test_the_league_ranks_models_and_marks_the_front(command: Command, table: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert command("fit", "table", "--train", table, *FAST, "--heads", "paper", "--polish", 1, "--out", run)[0] == 0
    code, out, _ = command("league", f"{run}@1", "--json")
    assert code == 0
    rows = json.loads(out)
    held = [row["held_out"]["value"] for row in rows]
    assert held == sorted(held, reverse=True)
    assert {"encoder", "xception+polish", "tenney-small"} <= {row["model"] for row in rows}
    front = [row["parameters"] for row in rows if row["front"]]
    assert rows[0]["front"]
    assert front == sorted(front, reverse=True)
    code, out, _ = command("league", run)
    assert code == 0
    assert "◆" in out
