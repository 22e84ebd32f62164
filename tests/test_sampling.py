"""Splits: classes are covered where rows allow, rows that share a text stay together, and what is missing is said."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import sentences, write_csv

from bertvision.options import Request
from bertvision.prepare import parts_of
from bertvision.tasks import coverage
from bertvision.tasks import load as load_task
from bertvision.tasks.sampling import folds, hold_out, sample, split
from bertvision.types import HELD_OUT, TRAIN, Dataset, Examples


def examples(classes: list[int], texts: list[str] | None = None, second: list[str] | None = None) -> Examples:
    texts = texts or [text for text, _ in sentences(len(classes))]
    return Examples(texts, second, np.array(classes, dtype=np.int64))


def classes_of(data: Examples, rows: np.ndarray) -> set[int]:
    assert data.targets is not None
    return set(data.targets[rows].tolist())


def premises(count: int, hypotheses: int = 3) -> Examples:
    """Pairs with several hypotheses per premise, each of another class."""
    rows = [(f"premise {i}", f"hypothesis {i} {j}", j) for i in range(count) for j in range(hypotheses)]
    first, second, classes = zip(*rows, strict=True)
    return examples(list(classes), list(first), list(second))


def test_77_classes_of_5_rows_are_all_in_train_and_dev_and_most_are_held_out(tmp_path: Path) -> None:
    rows = [(text, f"class {i % 77:02}") for i, (text, _) in enumerate(sentences(385))]
    write_csv(tmp_path / "t.csv", ("text", "label"), rows)
    request = Request(train=str(tmp_path / "t.csv"), folds="0")
    data = load_task(request)
    parts = parts_of(data, request)
    found = {name: classes_of(part, np.arange(len(part))) for name, part in parts.items()}
    assert found[TRAIN] == found["dev"] == set(range(77))
    assert len(parts["dev"]) == 77  # a tenth would be 38: at most twice as many
    assert len(found[HELD_OUT]) == len(parts[HELD_OUT]) >= 60
    assert "of 77 classes, the splits cover: train 77, held-out 62, dev 77" in coverage.notes(data.labels, parts)


def test_classes_that_cannot_all_be_sampled_are_chosen_by_hash_and_not_by_name() -> None:
    data = examples([i % 50 for i in range(400)])
    found = [classes_of(data, sample(data, 20, purpose)) for purpose in ("dev", "held-out", "limit")]
    assert [len(classes) for classes in found] == [20, 20, 20]
    assert len(set.union(*found)) > 30
    assert set(range(20)) not in found


def test_a_limit_keeps_a_row_of_every_class_if_it_can() -> None:
    data = examples([0] * 300 + [1] * 90 + list(range(2, 12)))
    assert classes_of(data, sample(data, 40, "limit")) == set(range(12))
    assert len(sample(data, 40, "limit")) == 40
    assert len(sample(data, 8, "limit")) == 8


def test_a_class_always_keeps_a_training_row_and_one_with_two_rows_is_sampled() -> None:
    data = examples([0] * 60 + [1] * 2 + [2])
    rest, held = split(data, 0.1, 1000, "dev")
    assert classes_of(data, rest) == {0, 1, 2}
    assert classes_of(data, held) == {0, 1}


def test_a_class_with_one_row_stays_in_train_and_is_named() -> None:
    data = examples([0] * 30 + [1] * 30 + [2])
    parts = parts_of(Dataset("x", "class", ("a", "b", "rare"), ("accuracy",), data, {}), Request(folds="0"))
    found = list(coverage.notes(("a", "b", "rare"), parts))
    assert found == [
        "of 3 classes, the splits cover: train 3, held-out 2",
        "1 class has a single row to train on: rare",
    ]


def test_hypotheses_of_one_premise_stay_on_one_side_and_classes_keep_their_shares() -> None:
    data = premises(200)
    rest, held = hold_out(data)
    assert sorted([*rest, *held]) == list(range(600))
    assert not {data.texts[i] for i in rest} & {data.texts[i] for i in held}
    assert Counter(data.targets[held].tolist()) == {0: 20, 1: 20, 2: 20}  # type: ignore[index]


def test_a_chain_of_shared_texts_is_one_group() -> None:
    """a-b, b-c, c-d: the first and the last pair share nothing, but both share a text with those between."""
    first = [f"{i} {word}" for i in range(100) for word in "abc"]
    second = [f"{i} {word}" for i in range(100) for word in "bcd"]
    data = examples([0, 1, 1] * 100, first, second)
    _, held = hold_out(data)
    assert len(held) == 30
    assert set(Counter(i // 3 for i in held).values()) == {3}


def test_exact_duplicates_stay_on_one_side() -> None:
    texts = [text for text, _ in sentences(200)] + [text for text, _ in sentences(60)]
    data = examples([i % 2 for i in range(200)] + [i % 2 for i in range(60)], texts)
    rest, held = hold_out(data)
    assert not {texts[i] for i in rest} & {texts[i] for i in held}
    assert len(held) >= 24


def test_one_question_about_many_texts_does_not_make_one_group() -> None:
    """The question says nothing about the pairs; reviews that are asked about twice do."""
    reviews = [f"review {i // 2}" for i in range(200)]
    data = examples([i // 2 % 2 for i in range(200)], ["good?", "long?"] * 100, reviews)
    rest, held = hold_out(data)
    assert len(held) == 20
    assert not {reviews[i] for i in rest} & {reviews[i] for i in held}


def test_data_of_two_texts_is_still_split() -> None:
    data = examples([0, 1] * 50, ["a good film", "a bad film"] * 50)
    assert len(hold_out(data)[1]) == 10


def test_empty_second_texts_connect_nothing() -> None:
    data = examples([0, 1] * 50, [f"text {i}" for i in range(100)], ["", " "] * 50)
    plain = examples([0, 1] * 50, [f"text {i}" for i in range(100)])
    assert np.bincount(folds(data, 5)).tolist() == np.bincount(folds(plain, 5)).tolist() == [20] * 5


@pytest.mark.parametrize("count", [2, 5])
def test_folds_spread_every_class_evenly_and_keep_groups_together(count: int) -> None:
    plain = examples([i % 7 for i in range(203)])
    found = folds(plain, count)
    assert plain.targets is not None
    table = np.array([np.bincount(found[plain.targets == one], minlength=count) for one in range(7)])
    assert np.ptp(table, axis=1).max() <= 1
    assert np.ptp(np.bincount(found)) <= 1
    pairs = premises(61)
    found = folds(pairs, count)
    assert all(len(set(found[i : i + 3])) == 1 for i in range(0, 183, 3))
    assert np.ptp(np.bincount(found)) <= 3


def test_folds_and_held_out_rows_do_not_depend_on_the_order_of_the_rows() -> None:
    data = premises(60)
    order = np.random.default_rng(0).permutation(180)
    again = data.take(order)
    assert {again.second_texts[i] for i in hold_out(again)[1]} == {  # type: ignore[index]
        data.second_texts[i]  # type: ignore[index]
        for i in hold_out(data)[1]
    }
    assert np.array_equal(folds(again, 5), folds(data, 5)[order])


def test_splits_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Python's own hash of a text is another in each process."""
    code = (
        "import numpy as np; from bertvision.types import Examples; from bertvision.tasks.sampling import *;"
        "data = Examples([f'a {i // 3}' for i in range(300)], [f'b {i // 4}' for i in range(300)], np.arange(300) % 3);"
        "print(hold_out(data)[1].tolist(), folds(data, 5).tolist())"
    )
    run = [sys.executable, "-c", code]
    found = {
        subprocess.run(run, env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)}, capture_output=True).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert found.pop().startswith(b"[")


def test_dev_rows_that_repeat_train_are_counted(tmp_path: Path) -> None:
    rows = sentences(60)
    write_csv(tmp_path / "t.csv", ("text", "label"), rows)
    write_csv(tmp_path / "d.csv", ("text", "label"), [*rows[:7], *sentences(5, seed=1)])
    request = Request(train=str(tmp_path / "t.csv"), dev=str(tmp_path / "d.csv"))
    data = load_task(request)
    found = list(coverage.notes(data.labels, parts_of(data, request)))
    assert found == ["dev: 7 of 12 rows are in train too, so its scores may be too high"]
