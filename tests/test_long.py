"""Long texts: memory follows characters, truncation is exact, and windows are read and pooled everywhere alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, info_of, tiny_fit, write_csv

import bertvision
from bertvision.backbones import tokenise as tokenising
from bertvision.backbones.encoder import Encoder, load
from bertvision.backbones.tokenise import MOST_WINDOWS, tokenise
from bertvision.errors import UserError
from bertvision.inference.evaluate import evaluate_on_store
from bertvision.inference.model import Model
from bertvision.kinds.labels import per_example
from bertvision.options import Request
from bertvision.prepare import prepare, window_weights
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.runs.directory import Run
from bertvision.training.fit import fit
from bertvision.types import TRAIN, Examples, Windows

STRANGE = [
    "the cat is big",
    "",
    "the cat " * 5000,
    "a" * 30_000,  # no space to cut at
    ("x" * 200 + " ") * 1000,  # a token has two hundred characters: [UNK]
    " " * 30_000 + "the dog",  # the beginning has no tokens at all
    "the\u2003big\u00a0dog\n" * 3000,
    "dog " * 30,
    "dog " * 31,
]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load("tiny", 2, seed=0)


def pieces(windows: Windows) -> list[list[int]]:
    return [windows.tokens[a:b].tolist() for a, b in zip(windows.offsets, windows.offsets[1:], strict=False)]


def read(encoder: Encoder, texts: list[str], pairs: list[str] | None = None, **options: Any) -> Windows:
    recipe = Recipe(**{"max_length": 32} | options)
    return tokenise(encoder, Examples(texts, pairs, None), recipe, split_contexts=False).together


# ---- characters bound memory, and change nothing


@pytest.mark.parametrize("paired", [False, True])
def test_truncated_tokens_are_those_of_the_tokenizer_whatever_the_text(encoder: Encoder, paired: bool) -> None:
    # Of pairs the tokenizer keeps every combination of pieces: 30,000 characters each would take minutes.
    texts = [text[-400:] for text in STRANGE for _ in STRANGE] if paired else STRANGE
    columns = [texts, [text[-400:] for text in STRANGE] * len(STRANGE)] if paired else [texts]
    windows = read(encoder, *columns)
    expected = encoder.tokenizer(*columns, truncation="longest_first", max_length=32)
    encoder.tokenizer.backend_tokenizer.no_truncation()
    whole = encoder.tokenizer(*columns)["input_ids"]
    assert pieces(windows) == expected["input_ids"]
    assert windows.types.tolist() == np.concatenate(expected["token_type_ids"]).tolist()
    assert windows.segments.tolist() == [
        0 if text is None else text + 1 for row in range(len(texts)) for text in expected.sequence_ids(row)
    ]
    assert windows.truncated == sum(len(tokens) > 32 for tokens in whole)
    assert (windows.tokens.dtype, windows.types.dtype, windows.segments.dtype) == (np.int32, np.int8, np.int8)


def test_a_tokenizer_call_has_a_bounded_number_of_characters(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat " * 40] * 30 + ["a dog"] * 200
    joined = Examples(texts, texts[::-1], None)
    whole = tokenise(encoder, joined, Recipe(max_length=64), split_contexts=True).together
    expected = read(encoder, texts), read(encoder, texts, texts[::-1]), read(encoder, texts, long="windows"), whole
    monkeypatch.setattr(tokenising, "CHUNK", 2000)
    sizes = [sum(map(len, chunk)) for chunk in tokenising._chunks(texts)]
    assert max(sizes) <= 2000
    assert sum(sizes) == sum(map(len, texts))
    assert [len(chunk) for chunk in tokenising._chunks(["a" * 5000] * 3)] == [1, 1, 1]  # a text is never split
    found = (
        read(encoder, texts),
        read(encoder, texts, texts[::-1]),
        read(encoder, texts, long="windows"),
        tokenise(encoder, joined, Recipe(max_length=64), split_contexts=True).together,
    )
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(getattr(one, name), value) for name, value in vars(other).items())


# ---- windows of a text


def test_windows_of_a_text_cover_it_evenly_and_overlap(encoder: Encoder) -> None:
    words = [chr(97 + i % 26) for i in range(100)]
    inside = encoder.tokenizer(" ".join(words), add_special_tokens=False)["input_ids"]
    cls, sep = encoder.tokenizer("")["input_ids"]
    for stride, count, overlap in ((7, 5, 7), (0, 4, 0), (128, 5, 7)):  # at most a quarter of the 30 tokens inside
        found = pieces(read(encoder, [" ".join(words)], long="windows", stride=stride))
        assert len(found) == count
        starts = np.linspace(0, 70, count).astype(int)
        assert found == [[cls, *inside[start : start + 30], sep] for start in starts]
        assert (30 - np.diff(starts)).min() >= overlap


def test_a_text_that_fits_is_one_window_as_when_texts_are_cut(encoder: Encoder) -> None:
    short = ["the cat is big", "", "dog " * 30]
    cut, windows = read(encoder, short), read(encoder, short, long="windows")
    assert all(np.array_equal(getattr(windows, name), value) for name, value in vars(cut).items())
    assert len(read(encoder, ["dog " * 31], long="windows")) == 2


def test_a_very_long_text_has_few_windows_and_counts_as_truncated_if_they_leave_gaps(encoder: Encoder) -> None:
    texts = ["dog " * 30 * MOST_WINDOWS, "dog " * (30 * MOST_WINDOWS + 1), "dog " * 100_000, "dog"]
    windows = read(encoder, texts, long="windows")
    assert np.bincount(windows.examples).tolist() == [MOST_WINDOWS] * 3 + [1]
    assert windows.truncated == 2
    assert windows.lengths[: 3 * MOST_WINDOWS].tolist() == [32] * 3 * MOST_WINDOWS
    with pytest.raises(UserError, match="--max-length 2 leaves no room"):
        read(encoder, texts, long="windows", max_length=2)


def test_answers_of_a_texts_windows_are_averaged() -> None:
    none = np.empty(0)
    windows = Windows(none, none, none, np.arange(5), 0, np.array([0, 1, 1, 2]))
    outputs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    assert per_example(outputs, windows) == pytest.approx(np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]))


# ---- a run that reads windows

FILLER = "the story of a man and a woman in the city".split()


def long_rows(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts of 24 to 33 words whose last ones tell the class."""
    draw = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        label = i % 2
        words = [
            *draw.choice(FILLER, draw.integers(20, 30)),
            str(i),
            *["bad sad poor", "good happy great"][label].split(),
        ]
        rows.append((" ".join(words), ("neg", "pos")[label]))
    return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("long")
    write_csv(folder / "long.csv", ("text", "label"), long_rows(160))
    write_csv(folder / "dev.csv", ("text", "label"), long_rows(100, seed=1))
    heads = "closed-form,adapter-64-views,last-layer-views:data=50"
    return tiny_fit(
        folder / "long.csv", folder / "run", dev=folder / "dev.csv", long="windows", max_length=16, stride=4,
        heads=heads, folds="0", epochs="1/2", marks="0,1/2",
    )  # fmt: skip


def test_what_stands_at_the_end_of_a_text_is_learned_in_windows_only(run: Run, tmp_path: Path) -> None:
    recipe = run.record.recipe
    cut = tiny_fit(
        recipe.train, tmp_path / "cut", dev=recipe.dev, max_length=16, heads="closed-form", folds="0", epochs="0"
    )
    score = {
        name: one.results.marks[0].score("closed-form+polish", "accuracy").value
        for name, one in (("cut", cut), ("windows", run))
    }
    assert score["windows"] > 0.9
    assert score["cut"] < 0.75
    assert (info_of(run)["options"]["long"], info_of(cut)["options"]["long"]) == ("windows", "cut")
    assert "read in overlapping windows" in (run.path / "README.md").read_text()


def test_a_run_on_windows_is_evaluated_and_predicts_as_it_was_scored(run: Run) -> None:
    model, kept = Model(run.path, everything=True), run.results.marks[-1]
    for name, scored in model.evaluate().scores["dev"].items():
        assert scored["accuracy"].value == pytest.approx(kept.score(name, "accuracy").value), name
    said = run.predictions(kept.mark)["dev"].outputs[model.name]
    texts = [text for text, _ in long_rows(100, seed=1)]
    assert model.predict_proba(texts) == pytest.approx(said, abs=1e-5)
    assert model.predict_proba(texts[3]) == pytest.approx(said[3:4], abs=1e-5)


def test_windows_are_the_same_lesson_from_memory_a_store_and_the_encoder(run: Run, tmp_path: Path) -> None:
    setting = prepare(run.record.request, Progress(quiet=True))
    windows = setting.windows[TRAIN]
    assert len(windows) > 2 * len(setting.parts[TRAIN])
    assert np.array_equal(setting.train_targets().numpy(), setting.targets(TRAIN)[windows.examples])
    expected = run.predictions("0")["dev"].outputs["closed-form+polish"]
    assert expected.shape == (100, 2)
    asked = {**run.record.request.as_dict(), "heads": "closed-form", "epochs": "0", "marks": None}
    for mode in ("recompute", "stored"):
        other = fit(Request(**asked | {"mode": mode, "out": str(tmp_path / mode)}), progress=Progress(quiet=True))
        found = other.predictions("0")["dev"].outputs["closed-form+polish"]
        assert found == pytest.approx(expected, abs=0.02), mode  # the store has float16


def test_windows_of_a_text_share_its_weight() -> None:
    examples = np.array([0, 1, 1, 1, 2])
    assert window_weights(np.arange(3), None, False) is None
    assert window_weights(examples, None, True) is None  # each window of a question has its own target
    shared = window_weights(examples, None, False)
    assert shared is not None
    assert shared.tolist() == pytest.approx([5 / 3, 5 / 9, 5 / 9, 5 / 9, 5 / 3])
    weighted = window_weights(examples, np.array([1.0, 6.0, 2.0]), False)
    assert weighted is not None
    assert weighted.tolist() == pytest.approx([5 / 9, 10 / 9, 10 / 9, 10 / 9, 10 / 9])


def test_a_store_of_windows_trains_and_evaluates_like_the_run(run: Run, tmp_path: Path) -> None:
    store = bertvision.extract(f"{run.path}@0", "table", out=tmp_path / "store", dtype="fp32", quiet=True)
    assert store is not None
    trained = bertvision.train(tmp_path / "store", heads="closed-form", polish=1, out=tmp_path / "trained", quiet=True)
    one, other = (found.results.marks[0].scores["dev"] for found in (run, trained))
    assert one["closed-form+polish"]["accuracy"].value == pytest.approx(other["closed-form"]["accuracy"].value)
    again = evaluate_on_store(f"{run.path}@0", store, progress=Progress(quiet=True)).scores["dev"]
    assert {"encoder", "closed-form+polish", "adapter-64-views+polish"} <= set(again)
    assert all(again[name]["accuracy"].value == pytest.approx(one[name]["accuracy"].value) for name in again)


def test_analyses_and_cut_follow_windows(run: Run, tmp_path: Path, command: Command) -> None:
    code, _, error = command("cut", run.path, "--depth", "1", "--heads", "closed-form", "--out", tmp_path / "short")
    assert code == 0, error
    assert info_of(tmp_path / "short")["options"]["long"] == "windows"
    code, _, error = command("analyse", run.path, "--only", "transfer,calibration", "--json")
    assert code == 0, error


def test_scores_of_long_texts_are_means_over_windows(tmp_path: Path) -> None:
    rows = [(text, str(3.0 if label == "pos" else 1.0 + i % 3 / 10)) for i, (text, label) in enumerate(long_rows(120))]
    write_csv(tmp_path / "scores.csv", ("text", "score"), rows)
    made = tiny_fit(
        tmp_path / "scores.csv", tmp_path / "run", long="windows", kind="score", max_length=16, heads="closed-form",
        epochs="0",
    )  # fmt: skip
    assert made.results.marks[0].score("closed-form+polish", "pearson").value > 0.8


# ---- what cannot be


def test_options_that_do_not_fit_are_refused(table: Path, pair_table: Path, tmp_path: Path) -> None:
    for message, data, options in (
        ("--long must be one of cut, windows; got 'split'", table, {"long": "split"}),
        ("a pair of texts is read in one window", pair_table, {"text": "one", "text_pair": "two", "long": "windows"}),
        ("does not take --stride", table, {"stride": 4}),
    ):
        with pytest.raises(UserError, match=message):
            tiny_fit(data, tmp_path / "run", **options)
        assert not list(tmp_path.glob("run*"))
