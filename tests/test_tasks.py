"""Reading data: the GLUE files with their quirks, users' tables, fixed samples."""

import json
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import sentences, write_csv

from bertvision.backbones.encoder import load as backbone
from bertvision.backbones.tokenise import tokenise
from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.prepare import chosen_by, parts_of
from bertvision.recipe import Recipe
from bertvision.tasks import coverage, tasks
from bertvision.tasks import load as load_task
from bertvision.tasks.glue import TABLE, GlueTask
from bertvision.tasks.memory import dataset_in_memory
from bertvision.tasks.reading import only, read_columns
from bertvision.tasks.sampling import hold_out, sample
from bertvision.tasks.table import infer_kind
from bertvision.types import Dataset, Examples

SHARED = Path(__file__).parents[2] / "shared" / "data"


def load(task: str, **options: object) -> Dataset:
    return load_task(Request(task=task, **{k: str(v) for k, v in options.items()}))


def write_glue(folder: Path, row: GlueTask, count: int = 6, bom: bool = False) -> None:
    """A GLUE task in its official layout, with other columns around the ones that count."""
    folder.mkdir(parents=True)
    labels = list(row.labels) if row.labels else ["0.0", "2.5", "5.0"]
    header = ["index", *row.texts, "extra", row.label]
    for name in ("train.tsv", *row.files):
        lines = [] if not row.header else ["\t".join(header)]
        for i in range(count):
            texts = [f'sentence "{i} of {name}, part {n}' for n in range(len(row.texts))]
            label = labels[i % len(labels)]
            fields = [str(i), *texts, "x", label] if row.header else ["src", label, "", texts[0]]
            lines.append("\t".join(fields))
        text = "\n".join(lines) + "\n"
        (folder / name).write_text(text, encoding="utf-8-sig" if bom else "utf-8")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_glue_task_is_read_from_its_folder_or_the_one_above(row: GlueTask, tmp_path: Path) -> None:
    write_glue(tmp_path / row.folder, row)
    write_glue(tmp_path / "bom" / row.folder, row, bom=True)
    above, inside = load(row.name, data=tmp_path), load(row.name, data=tmp_path / row.folder)
    assert above.train.digest() == inside.train.digest() == load(row.name, data=tmp_path / "bom").train.digest()
    assert above.train.texts[1] == 'sentence "1 of train.tsv, part 0'  # quotes are literal
    assert (above.train.second_texts is not None) == (len(row.texts) == 2)
    assert list(above.dev) == list(row.dev)
    assert above.outputs == (len(row.labels) if row.labels else 1)
    assert above.train.targets is not None
    assert above.train.targets.tolist()[:2] == ([0, 1] if row.labels else [0.0, 2.5])


@pytest.mark.skipif(not SHARED.exists(), reason="the real GLUE files are not here")
def test_real_glue_files_have_all_their_rows() -> None:
    expected = {
        "cola": (8551, 1043), "sst-2": (67349, 872), "mrpc": (3668, 408), "sts-b": (5749, 1500), "qqp": (60000, 7599),
        "mnli": (22941, 9545), "qnli": (10293, 5463), "rte": (2490, 277), "wnli": (635, 71),
    }  # fmt: skip
    read = {task: load(task, data=SHARED) for task in expected}
    assert {task: (len(data.train), len(data.dev["dev"])) for task, data in read.items()} == expected


def test_all_table_formats_give_the_same_examples(tmp_path: Path) -> None:
    rows = [(f'{text}, "quoted" é', label) for text, label in sentences(40)]
    write_csv(tmp_path / "t.csv", ("text", "label"), rows)
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in rows), encoding="utf-8")
    lines = "".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows)
    (tmp_path / "t.jsonl").write_text(lines, encoding="utf-8")
    columns = {"text": [t for t, _ in rows], "label": [y for _, y in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    digests = {load("table", train=tmp_path / f"t.{end}").train.digest() for end in ("csv", "tsv", "jsonl", "parquet")}
    assert len(digests) == 1


def test_the_kind_is_inferred_and_said(tmp_path: Path) -> None:
    cases = [("a b", "class"), ("0 1", "class"), ("1 2 3", "class"), ("0.5 2", "score")]
    for labels, kind in (*cases, (" ".join(map(str, range(40))), "score")):
        known = labels.split()
        rows = [(text, known[i % len(known)]) for i, (text, _) in enumerate(sentences(80))]
        write_csv(tmp_path / "t.csv", ("text", "label"), rows)
        data = load("table", train=tmp_path / "t.csv")
        assert data.kind == kind, labels
        assert any(f"kind {kind}" in note for note in data.notes), labels


def test_the_kind_can_be_given(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ("text", "label"), [(t, str(i % 4)) for i, (t, _) in enumerate(sentences(40))])
    assert load("table", train=tmp_path / "t.csv").labels == ("0", "1", "2", "3")
    assert load("table", train=tmp_path / "t.csv", kind="score").kind == "score"


def examples(count: int, classes: int = 2) -> Examples:
    texts = [text for text, _ in sentences(count)]
    return Examples(texts, None, np.arange(count, dtype=np.int64) % classes)


def test_held_out_rows_are_a_stratified_tenth_that_depends_on_the_texts_only() -> None:
    data = examples(400, classes=4)
    rest, held = hold_out(data)
    assert len(held) == 40
    assert sorted([*rest, *held]) == list(range(400))
    assert data.targets is not None
    assert np.bincount(data.targets[held]).tolist() == [10, 10, 10, 10]
    order = np.random.default_rng(0).permutation(400)
    again = data.take(order)
    assert {again.texts[i] for i in hold_out(again)[1]} == {data.texts[i] for i in held}


def test_at_most_a_thousand_rows_are_held_out() -> None:
    assert len(hold_out(examples(12_000))[1]) == 1000


def test_a_class_is_never_held_out_entirely() -> None:
    data = Examples([t for t, _ in sentences(40)], None, np.array([0] * 39 + [1]))
    rest, _ = hold_out(data)
    assert data.targets is not None
    assert 1 in data.targets[rest]


def test_nothing_to_hold_out_is_said() -> None:
    """As with --limit below the number of classes: one example is left of each."""
    with pytest.raises(UserError, match="Each of the 20 examples is of another class"):
        hold_out(examples(20, classes=20))


def test_half_a_surrogate_pair_is_read_as_the_sign_for_what_cannot_be_read(tmp_path: Path) -> None:
    """What is left in JSON of an emoji that was cut off; no tokenizer takes it."""
    rows = [{"text": f"{text} \ud83d", "label": label} for text, label in sentences(40)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load("table", train=tmp_path / "t.jsonl").train
    assert all(text.endswith(" \N{REPLACEMENT CHARACTER}") for text in found.texts)
    encoder = backbone("tiny", 2, seed=0)
    assert len(tokenise(encoder, found, Recipe(max_length=64), split_contexts=False)) == len(found)


def test_a_sample_of_scores_covers_every_tenth() -> None:
    data = Examples([t for t, _ in sentences(200)], None, np.linspace(0, 5, 200))
    chosen = sample(data, 20, "test")
    assert np.bincount(chosen // 20).tolist() == [2] * 10


def test_a_smaller_limit_is_part_of_a_larger_one() -> None:
    data = examples(300)
    assert set(sample(data, 50, "limit")) < set(sample(data, 100, "limit"))


def test_the_demo_task_is_balanced_and_its_dev_rows_are_not_in_train() -> None:
    data = load("demo")
    assert (len(data.train), len(data.dev["dev"])) == (7464, 1066)
    assert not set(data.train.texts) & set(data.dev["dev"].texts)


def test_without_data_both_ways_to_get_it_are_named() -> None:
    with pytest.raises(UserError, match=r"--data FOLDER.*bertvision\[hub\]"):
        load("rte")


def test_the_hub_path_reads_a_dataset_in_the_hubs_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `datasets` library on local Parquet files that are laid out like nyu-mll/glue."""
    for split in ("train", "validation"):
        columns = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1], "idx": [0, 1]}
        (tmp_path / "rte").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rte" / f"{split}-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: rte\n  data_files:\n  - split: train\n    path: rte/train-*\n"
        "  - split: validation\n    path: rte/validation-*\n---\n"
    )
    monkeypatch.setattr("bertvision.tasks.glue.HUB_NAME", str(tmp_path))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data = load("rte")
    assert data.train.second_texts == ["c", "d"]
    assert data.train.targets is not None
    assert [data.labels[i] for i in data.train.targets] == ["entailment", "not_entailment"]


def test_an_unlabelled_glue_file_can_be_read_to_predict(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text('index\tsentence1\tsentence2\n0\ta "b\tc\n')
    found = tasks["rte"].read(tmp_path / "test.tsv", {"text": "sentence1", "pair": "sentence2", "label": None}, ())
    assert (found.texts, found.second_texts, found.targets) == (['a "b'], ["c"], None)


@pytest.mark.parametrize(
    ("labels", "rows", "kind", "why"),
    [
        (range(77), 5, "class", "77 whole numbers from 0 to 76"),
        (range(1, 6), 16, "class", "5 whole numbers from 1 to 5"),
        ((-1, 0, 1), 10, "class", "3 whole numbers from -1 to 1"),
        ((1, 2, 3, 4, 7, 8, 9, 10), 5, "class", "8 whole numbers from 1 to 10"),
        ((0, 4), 20, "class", "two numbers"),
        (range(80, 98), 10, "score", "18 whole numbers from 80 to 97; they do not start at -1, 0 or 1"),
        (range(1990, 2020), 5, "score", "do not start at"),
        ((0, 5, 10, 50, 100), 10, "score", "most of the numbers between do not occur"),
        (range(50), 2, "score", "fewer than 3 rows each on average"),
        (range(600), 4, "score", "more than 500 are too many"),
        ((0.5, 1, 2), 20, "score", "numbers with fractions"),
        (("a", "b"), 20, "class", "not all numbers"),
    ],
)
def test_whole_numbers_are_class_ids_or_scores_and_the_note_says_why(
    labels: Iterable[object], rows: int, kind: str, why: str
) -> None:
    found, reason = infer_kind("t.csv", [str(label) for label in labels for _ in range(rows)])
    assert found == kind
    assert why in reason
    assert reason.endswith(f"; --kind {'score' if kind == 'class' else 'class'} overrides")


def test_a_huge_integer_is_a_message_or_the_name_of_a_class(tmp_path: Path) -> None:
    rows = [{"text": text, "label": 10**400 if i % 2 else 1} for i, (text, _) in enumerate(sentences(40))]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"row 2: label '10{56}\.\.\.' among numbers.*--kind class"):
        load("table", train=tmp_path / "t.jsonl")
    with pytest.raises(UserError, match=r"row 2: column 'label' holds '10{56}\.\.\.', not a finite number"):
        load("table", train=tmp_path / "t.jsonl", kind="score")
    assert load("table", train=tmp_path / "t.jsonl", kind="class").labels == ("1", str(10**400))
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": 1%s}\n' % ("0" * 5000))
    with pytest.raises(UserError, match="line 1: a number has too many digits"):
        load("table", train=tmp_path / "t.jsonl")


def test_dev_rows_of_classes_that_train_lacks_get_the_index_after_the_last_and_are_said(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ("text", "label"), sentences(40))
    write_csv(tmp_path / "d.csv", ("text", "label"), [("a", "pos"), ("b", "meh"), ("c", "so-so"), ("d", "meh")])
    data = load("table", train=tmp_path / "t.csv", dev=tmp_path / "d.csv")
    assert data.labels == ("neg", "pos")
    assert data.dev["dev"].targets is not None
    assert data.dev["dev"].targets.tolist() == [1, 2, 2, 2]
    assert f"'{tmp_path / 'd.csv'}' has classes that train lacks: meh, so-so" in data.notes
    expected = "dev: 3 of 4 rows are of classes that train lacks; they count as wrong"
    assert expected in coverage.notes(data.labels, {"train": data.train, **data.dev})
    again = tasks["table"].read(tmp_path / "d.csv", data.roles, data.labels)
    assert np.array_equal(again.targets, data.dev["dev"].targets)  # type: ignore[arg-type]


def test_dev_labels_that_are_all_unknown_or_empty_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ("text", "label"), sentences(40))
    for rows, message in (
        ([("a", "1"), ("b", "0")], "row 1: label '1' is not one of the classes: neg, pos"),
        ([("a", "pos"), ("b", "")], "row 2: the label is empty"),
    ):
        write_csv(tmp_path / "d.csv", ("text", "label"), rows)
        with pytest.raises(UserError, match=message):
            load("table", train=tmp_path / "t.csv", dev=tmp_path / "d.csv")


def test_only_the_columns_that_are_used_are_kept_and_equal_labels_are_one_object(tmp_path: Path) -> None:
    rows = [(str(i), text, "x" * i, label, "1") for i, (text, label) in enumerate(sentences(40))]
    names = ("id", "text", "notes", "label", "w")
    write_csv(tmp_path / "t.csv", names, rows)
    lines = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    (tmp_path / "t.jsonl").write_text(lines)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    for end in ("csv", "jsonl", "parquet"):
        found = read_columns(tmp_path / f"t.{end}", only("label", "text"))
        assert list(found) == ["text", "label"]
        assert found["text"] == columns["text"]
    assert len({id(label) for label in read_columns(tmp_path / "t.csv")["label"]}) == 2
    # The error for a column that is not there lists all that are.
    with pytest.raises(UserError, match=r"no column called 'lable'.*Known: id, text, notes, label, w"):
        load("table", train=tmp_path / "t.csv", label="lable")
    with pytest.raises(UserError, match=r"--weight: There is no column called 'v'. Known: id, text, notes, label, w"):
        load("table", train=tmp_path / "t.csv", weight="v")


def test_reading_a_table_takes_little_more_memory_than_its_texts(tmp_path: Path) -> None:
    rows = [(f"{text} {'word ' * 40}{i}", label) for i, (text, label) in enumerate(sentences(8000))]
    write_csv(tmp_path / "t.csv", ("text", "label"), rows)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    for name in ("t.csv", "t.jsonl"):
        tracemalloc.start()
        kept = read_columns(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(kept["text"]) == 8000
        assert peak < 1.7 * (tmp_path / name).stat().st_size, name


def test_broken_utf_8_far_into_a_file_is_named_by_line_and_byte(tmp_path: Path) -> None:
    good = b"text,label\n" + b"some words,pos\n" * 20_000  # more than one piece of a text file
    (tmp_path / "t.csv").write_bytes(good + b"caf\xe9,neg\n")
    with pytest.raises(UserError, match=rf"line 20002: not valid UTF-8 \(byte {len(good) + 3}\)"):
        read_columns(tmp_path / "t.csv")


def weighted_parts(folder: Path, weights: list[object], **options: object) -> dict[str, Examples]:
    rows = [(text, label, str(weights[i % len(weights)])) for i, (text, label) in enumerate(sentences(120))]
    rows = [row for i, row in enumerate(rows) if i % 8 in (1, 0, 2)]  # one in three is `pos`
    write_csv(folder / "t.csv", ("text", "label", "w"), rows)
    request = Request.of(train=folder / "t.csv", folds="0", **options)
    return parts_of(load_task(request), request)


def test_row_weights_go_with_their_rows_and_have_mean_one_over_train(tmp_path: Path) -> None:
    parts = weighted_parts(tmp_path, [1, 2, 3, 0], weight="w")
    train = parts["train"]
    assert train.weights is not None
    assert train.weights.mean() == pytest.approx(1)
    given = np.array([(1, 2, 3, 0)[int(text.split()[-1]) % 4] for text in train.texts])
    assert train.weights == pytest.approx(given / given.mean())
    assert parts["dev"].weights is None
    assert weighted_parts(tmp_path, [1])["train"].weights is None


def test_class_weights_balance_the_classes_and_multiply_row_weights(tmp_path: Path) -> None:
    for class_weight, expected in (("balanced", None), ('{"pos": 6}', 6.0), ({"neg": 0.5}, 2.0)):
        train = weighted_parts(tmp_path, [1], class_weight=class_weight)["train"]
        assert train.weights is not None
        assert train.targets is not None
        neg, pos = (train.weights[train.targets == one] for one in (0, 1))
        assert pos[0] / neg[0] == pytest.approx(expected or len(neg) / len(pos))
        assert train.weights.mean() == pytest.approx(1)
    both = weighted_parts(tmp_path, [1, 2], weight="w", class_weight='{"pos": 6}')["train"]
    # Rows with an odd number are `pos` and have the weight 2.
    assert set(np.round(both.weights / both.weights.min(), 6)) == {1.0, 12.0}  # type: ignore[operator,union-attr]


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([1, -2], {"weight": "w"}, "row 2: --weight column 'w' holds '-2'. A weight must be a number, 0 or more"),
        ([1, ""], {"weight": "w"}, "row 2: --weight column 'w' holds ''"),
        ([1, "nan"], {"weight": "w"}, "row 2: --weight column 'w' holds 'nan'"),
        ([1, "inf"], {"weight": "w"}, "row 2: --weight column 'w' holds 'inf'"),
        ([0], {"weight": "w"}, r"--weight: the weights of all \d+ training rows are zero"),
        ([1], {"class_weight": '{"pos": 0, "neg": 0}'}, "--class-weight: the weights of all .* are zero"),
        ([1], {"class_weight": '{"poz": 2}'}, "--class-weight: There is no class called 'poz'. Did you mean 'pos'"),
        ([1], {"class_weight": '{"pos": -1}'}, "--class-weight must be balanced, or JSON with a number, 0 or more"),
        ([1], {"class_weight": '{"pos": "2"}'}, "--class-weight must be balanced, or JSON"),
        ([1], {"class_weight": "[1, 2]"}, r"--class-weight must be .* got '\[1, 2\]'"),
        ([1], {"class_weight": "heavy"}, "--class-weight must be .* got 'heavy'"),
        ([1, 2.5, 3], {"class_weight": "balanced", "label": "w"}, "--class-weight is for classes; this task has none"),
    ],
)
def test_weights_that_cannot_be_used_are_one_message(
    weights: list[object], options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        weighted_parts(tmp_path, weights, text="text", **options)


def test_glue_tasks_take_class_weights_but_no_weight_column(tmp_path: Path) -> None:
    row = next(row for row in TABLE if row.name == "rte")
    write_glue(tmp_path / row.folder, row, count=40)
    request = Request(task="rte", data=str(tmp_path), class_weight='{"entailment": 3}', folds="0")
    train = parts_of(load_task(request), request)["train"]
    assert sorted(set(np.round(train.weights, 6))) == [0.5, 1.5]  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Task 'rte' does not take --weight"):
        load_task(Request(task="rte", data=str(tmp_path), weight="w"))


def test_a_frame_in_memory_has_weights_and_unknown_classes_as_a_file_has() -> None:
    texts, labels = zip(*sentences(60), strict=True)
    columns = {"text": list(texts), "label": list(labels), "w": np.arange(60) % 5}
    request = Request(weight="w", folds="0")
    data = dataset_in_memory(columns, None, (["a", "b"], ["pos", "meh"]), request)
    assert data.dev["dev"].targets is not None
    assert data.dev["dev"].targets.tolist() == [1, 2]
    train = parts_of(data, request)["train"]
    assert train.weights is not None
    assert train.weights[train.weights > 0].min() == pytest.approx(train.weights.max() / 4)


def test_the_metric_that_is_asked_for_comes_first_and_must_fit_the_kind() -> None:
    classes = Dataset("x", "class", ("a", "b"), ("accuracy", "f1"), examples(20), {})
    assert chosen_by(None, classes).metrics == ("accuracy", "f1")
    assert chosen_by("f1", classes).metrics == ("f1", "accuracy")
    assert chosen_by("macro-f1", classes).metrics == ("macro-f1", "accuracy", "f1")
    with pytest.raises(UserError, match=r"--metric for kind class must be one of accuracy, f1, macro-f1, bal.*'r2'"):
        chosen_by("r2", classes)
    with pytest.raises(UserError, match="--metric for kind score must be one of pearson, spearman, r2; got 'f1'"):
        chosen_by("f1", replace(classes, kind="score", labels=()))
    with pytest.raises(UserError, match=r"--metric for kind span must be one of exact, f1, .*got 'accuracy'"):
        chosen_by("accuracy", replace(classes, kind="span", labels=()))
