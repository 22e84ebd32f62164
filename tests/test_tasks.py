"""Reading data: the GLUE files with their quirks, users' tables, fixed samples."""

import json
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
from bertvision.recipe import Recipe
from bertvision.tasks import load as load_task
from bertvision.tasks import tasks
from bertvision.tasks.glue import TABLE, GlueTask
from bertvision.tasks.sampling import hold_out, sample
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
