"""SQuAD: reading, windows, labels, decoding and the official metric, each against something independent."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
import transformers

from bertvision.backbones import tiny
from bertvision.backbones.encoder import load as load_encoder
from bertvision.backbones.tokenise import _with_places, labelled, tokenise, windowed
from bertvision.errors import UserError
from bertvision.kinds.labels import per_example
from bertvision.kinds.spans import SpanJudge, argmax_spans, best_spans, n_best
from bertvision.metrics.squad import Gold, qualities, report
from bertvision.options import Request
from bertvision.recipe import Recipe
from bertvision.tasks import load
from bertvision.tasks.invented import invent, write
from bertvision.tasks.sampling import hold_out
from bertvision.tasks.squad import ReadingNotes, examples_of, read_json
from bertvision.types import Answer, Examples, Questions, Windows

SHARED = Path(__file__).parents[2] / "shared" / "data" / "SQuAD2"
real = pytest.mark.skipif(not SHARED.exists(), reason="the real SQuAD files are not here")


def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny.folder())


def one_question(context: str, answer: str, question: str = "who is it", start: int | None = None) -> Examples:
    place = context.index(answer) if start is None else start
    golds = (Answer(answer, place),) if answer else ()
    return Examples([question], [context], np.array([int(bool(answer))]), Questions(["q"], ["title"], [golds]))


def spoken(windows: Windows) -> np.ndarray:
    """Outputs that are sure of every window's label."""
    assert windows.answers is not None
    outputs = np.full((len(windows.tokens), 2), 1e-6, np.float32)
    for column in (0, 1):
        outputs[windows.offsets[:-1] + windows.answers[:, column], column] = 1
    return outputs


# ---- reading


def squad(contexts: list[tuple[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    return {"data": [{"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in contexts]}]}


def entry(name: str, text: str = "", start: int = 0, **more: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start}] if text else []
    return {"id": name, "question": "who?", "answers": answers} | more


def test_squad_1_and_2_are_read_and_offsets_are_mended_counted_and_said() -> None:
    found = squad(
        [
            ("Ann met Bob. Ann left.", [entry("a", "Ann", 0), entry("b", "Ann", 11), entry("c", "Zoe", 3)]),
            ("Bob", [entry("d", is_impossible=True), entry("e", "Bob", is_impossible=True)]),
            (" ", [entry("f", "x")]),
        ]
    )
    reading = ReadingNotes("file", strict=False, for_training=True)
    data = examples_of(found, reading)
    assert data.questions is not None
    assert data.targets is not None
    assert data.questions.ids == ["a", "b", "d", "e"]
    assert data.questions.answers[1] == (Answer("Ann", 13),)
    assert data.targets.tolist() == [1, 1, 0, 0]
    notes = " ".join(reading.notes())
    assert "1 questions where an answer was not at its offset" in notes
    assert "(first: id c)" in notes
    assert "(first: id f)" in notes
    for_dev = examples_of(found, ReadingNotes("file", strict=False, for_training=False))
    assert for_dev.questions is not None
    assert for_dev.questions.answers[2] == (Answer("Zoe", -1),)  # still scored by its text
    with pytest.raises(UserError, match="id b: the answer 'Ann' does not stand at 11"):
        examples_of(found, ReadingNotes("file", strict=True, for_training=True))


BROKEN = [
    ('{"data": [{"paragraphs": [{"context": "a", "qas": [', "line 1, column 52: not JSON .*cut short"),
    ('{"data": [}', "line 1, column 11: not JSON"),
    ('{"rows": []}', "the file has no 'data'"),
    ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"data\[0\].paragraphs\[0\] has no 'context'"),
    ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q"}]}]}]}', r"qas\[0\] has no 'id'"),
    ('{"data": []}', "has no questions"),
    (json.dumps(squad([("Bob", [entry("x") | {"answers": None}])])), r"qas\[0\] has no 'answers'"),
    (json.dumps(squad([("Bob", [entry("x"), entry("x")])])), "1 ids occur twice, e.g. 'x'"),
]


def test_a_broken_file_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    for text, message in BROKEN:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            read_json(path, ReadingNotes(str(path), False, True))


def test_folder_and_files_give_the_same_data_and_mistakes_are_explained(tmp_path: Path) -> None:
    write(tmp_path / "SQuAD2", train=12, dev=4)
    files = {part: str(tmp_path / "SQuAD2" / f"{part}-v2.0.json") for part in ("train", "dev")}
    one = load(Request(task="squad2", data=str(tmp_path)))
    assert one.train.digest() == load(Request(task="squad2", **files)).train.digest()
    assert one.kind == "span"
    assert one.metrics[:2] == ("f1", "exact")
    answerable = load(Request(task="squad2-answerable", data=str(tmp_path)))
    assert answerable.labels == ("unanswerable", "answerable")
    with pytest.raises(UserError, match="needs both --train FILE and --dev FILE"):
        load(Request(task="squad2", train=files["train"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no train file of SQuAD"):
        load(Request(task="squad2", data=str(tmp_path / "empty")))
    with pytest.raises(UserError, match="does not take --text"):
        load(Request(task="squad2", data=str(tmp_path), text="x"))


def test_whole_articles_are_held_out_and_whole_contexts_where_there_is_one_article() -> None:
    data = examples_of(invent(40, seed=3), ReadingNotes("", True, True))
    assert data.questions is not None
    assert data.second_texts is not None
    rest, held = hold_out(data)
    assert {data.questions.articles[i] for i in held}.isdisjoint(data.questions.articles[i] for i in rest)
    assert 0.04 < len(held) / len(data) <= 0.1
    single = replace(data, questions=replace(data.questions, articles=["one"] * len(data)))
    rest, held = hold_out(single)
    assert {data.second_texts[i] for i in held}.isdisjoint(data.second_texts[i] for i in rest)


def test_of_much_data_the_held_out_questions_have_the_shares_of_all() -> None:
    """Articles that are all answerable or not at all: the sample is still balanced, and no article is in both parts."""
    articles = [f"a{i // 100}" for i in range(40_000)]
    targets = np.array([int(int(name[1:]) % 3 > 0) for name in articles])
    answers = [(Answer("x", 0),) if target else () for target in targets]
    ids = [str(i) for i in range(40_000)]
    data = Examples(ids, ["x " + i for i in ids], targets, Questions(ids, articles, answers))
    rest, held = hold_out(data)
    assert len(held) <= 1000
    assert abs(targets[held].mean() - targets.mean()) < 0.05
    assert {articles[i] for i in held}.isdisjoint(articles[i] for i in rest)
    assert len(rest) > 0.89 * len(data)


def test_the_generator_is_deterministic_and_its_answers_stand_where_it_says() -> None:
    assert invent(9, seed=4) == invent(9, seed=4) != invent(9, seed=5)
    data = examples_of(invent(30, seed=1), ReadingNotes("", strict=True, for_training=True))
    assert data.targets is not None
    assert 0.25 < 1 - data.targets.mean() < 0.45


def test_the_hub_path_reads_a_dataset_in_the_hubs_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `datasets` library on local Parquet files that are laid out like rajpurkar/squad_v2."""
    (tmp_path / "squad_v2").mkdir()
    for split in ("train", "validation"):
        columns = {
            "id": ["x", "y"],
            "title": ["t", "t"],
            "context": ["Ann met Bob.", "Ann met Bob."],
            "question": ["Whom did Ann meet?", "Who is Zoe?"],
            "answers": [{"text": ["Bob"], "answer_start": [8]}, {"text": [], "answer_start": []}],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "squad_v2" / f"{split}-00000-of-00001.parquet")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: squad_v2\n  data_files:\n  - split: train\n    path: squad_v2/train-*\n"
        "  - split: validation\n    path: squad_v2/validation-*\n---\n"
    )
    monkeypatch.setattr("bertvision.tasks.squad.HUB_NAME", str(tmp_path))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data = load(Request(task="squad2"))
    assert data.train.questions is not None
    assert data.train.questions.answers == [(Answer("Bob", 8),), ()]
    assert list(data.dev) == ["dev"]


# ---- windows and labels


def test_windows_are_those_of_the_tokenizer_itself() -> None:
    made, data = tokenizer(), examples_of(invent(6, seed=1), ReadingNotes("", True, True))
    assert data.second_texts is not None
    found = windowed(made, data, 120, 16)
    expected = made(
        data.texts,
        data.second_texts,
        truncation="only_second",
        max_length=120,
        stride=16,
        return_overflowing_tokens=True,
    )
    assert len(found) == len(expected["input_ids"]) > len(data)
    assert found.examples.tolist() == expected["overflow_to_sample_mapping"]
    for i, encoding in enumerate(expected.encodings):
        here = slice(found.offsets[i], found.offsets[i + 1])
        assert found.tokens[here].tolist() == encoding.ids
        assert found.types[here].tolist() == encoding.type_ids
        assert found.segments[here].tolist() == [0 if s is None else s + 1 for s in encoding.sequence_ids]
        inside = found.segments[here] == 2
        assert found.characters is not None
        assert found.characters[here][inside].tolist() == np.array(encoding.offsets)[inside].tolist()


TEXTS = [
    ("The  cat\tsat\r\non the mat 😀 with Zoë and Zoe\u0308.", "Zoe\u0308"),
    ("naïve café — “quoted” 😀😀 text", "😀😀"),
    ("東京は日本の首都です。人口は多い。", "日本の首都"),
    ("tab\tseparated\tvalues\r\nnew line", "separated"),
    ("x" * 300 + " end of it", "end"),
    ("I love \u2764\ufe0f", "\u2764\ufe0f"),
    ("\u2764\ufe0f is a heart", "\u2764\ufe0f"),
    ("यह गुरु है", "गुरु"),
]


def test_an_answer_in_any_script_comes_back_from_its_label() -> None:
    encoder = load_encoder("minilm-l6", 2, 0, span=True)
    for context, answer in TEXTS:
        data = one_question(context, answer)
        found = tokenise(encoder, data, Recipe(max_length=40, stride=10), split_contexts=True)
        assert found.cut_answers == 0, answer
        assert best_spans(spoken(found.together), found.together, 30).texts(data) == [answer]


def test_every_invented_answer_comes_back_whatever_the_window() -> None:
    made, data = tokenizer(), examples_of(invent(20, seed=7), ReadingNotes("", True, True))
    assert data.questions is not None
    for limit, stride in ((128, 32), (90, 40), (64, 30)):
        windows, _ = labelled(windowed(made, data, limit, stride), data)
        found = best_spans(spoken(windows), windows, 40)
        for text, null, golds in zip(found.texts(data), found.null_probabilities, data.questions.answers, strict=True):
            assert (null > 0.5) == (not golds)
            assert not golds or text == golds[0].text


def test_an_overlong_question_is_cut_and_counted_and_a_huge_context_takes_many_windows() -> None:
    context = "the cat sat " * 9000 + "here is Bob"
    assert len(context) > 100_000
    data = one_question(context, "Bob", question="why " * 500)
    windows, _ = labelled(windowed(tokenizer(), data, 128, 32), data)
    assert windows.truncated == 1
    assert windows.lengths.max() <= 128
    assert len(windows) > 100
    assert best_spans(spoken(windows), windows, 30).texts(data) == ["Bob"]


def test_an_answer_cut_by_a_token_is_counted() -> None:
    data = one_question("the river", "ive")
    windows, cut = labelled(windowed(tokenizer(), data, 64, 16), data)
    assert cut == 1
    assert best_spans(spoken(windows), windows, 30).texts(data) == ["river"]


def test_the_space_before_a_word_is_no_part_of_it() -> None:
    """SentencePiece's kin count it to the token; the answer must not begin with it."""
    words = {"[UNK]": 0, "▁Ann": 1, "▁met": 2, "▁Bob": 3, "a": 4, "▁a": 5}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]")
    ((_, places),) = _with_places(made, ["Ann met Bob"])
    assert places.tolist() == [[0, 3], [4, 7], [8, 11]]


def test_an_answer_that_begins_or_ends_with_a_space_is_labelled_without_it() -> None:
    data = one_question("the cat  ", "cat ")
    windows, cut = labelled(windowed(tokenizer(), data, 64, 16), data)
    assert cut == 0
    assert best_spans(spoken(windows), windows, 30).texts(data) == ["cat"]


def test_a_window_too_small_for_anything_is_refused() -> None:
    with pytest.raises(UserError, match="--max-length 5 leaves no room"):
        windowed(tokenizer(), one_question("the cat", "cat"), 5, 1)


def test_windows_are_cached_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("bertvision.backbones.tokenise.WORTH_KEEPING", 1)
    made, data = tokenizer(), examples_of(invent(6, seed=1), ReadingNotes("", True, True))
    first = windowed(made, data, 64, 16)
    (kept,) = tmp_path.rglob("*.safetensors")
    monkeypatch.setattr("bertvision.backbones.tokenise._windowed", lambda *_: pytest.fail("not read from the cache"))
    again = windowed(made, data, 64, 16)
    assert all(np.array_equal(getattr(first, name), getattr(again, name)) for name in ("tokens", "characters"))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("bertvision.backbones.tokenise.WORTH_KEEPING", 1)
    kept.write_bytes(b"broken")
    assert np.array_equal(windowed(made, data, 64, 16).tokens, first.tokens)
    windowed(made, data, 64, 8)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2


# ---- decoding


def random_windows(draw: np.random.Generator) -> tuple[Windows, np.ndarray]:
    lengths = draw.integers(4, 14, 5)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    segments = np.concatenate([np.array([0, 1, 0] + [2] * (n - 3))[:n] for n in lengths]).astype(np.int8)
    characters = np.stack([np.arange(offsets[-1]) * 2, np.arange(offsets[-1]) * 2 + 1], 1)
    none = np.zeros(offsets[-1], np.int32)
    windows = Windows(none, none, segments, offsets, 0, np.array([0, 0, 1, 2, 2]), characters)
    return windows, draw.random((offsets[-1], 2)).astype(np.float32)


def test_the_best_spans_are_those_of_trying_every_one() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        windows, outputs = random_windows(draw)
        try_every_span(windows, outputs, length=int(draw.integers(1, 6)))


def try_every_span(windows: Windows, outputs: np.ndarray, length: int) -> None:
    found = best_spans(outputs, windows, length, top=3)
    for example in range(3):
        tried = []
        for window in np.flatnonzero(windows.examples == example):
            first, last = windows.offsets[window], windows.offsets[window + 1]
            context = [i for i in range(first, last) if windows.segments[i] == 2]
            tried += [
                (np.log(outputs[i, 0]) + np.log(outputs[j, 1]), 2 * i, 2 * j + 1)
                for i in context
                for j in context
                if i <= j < i + length
            ]
        tried.sort(reverse=True)
        for place, (score, start, end) in enumerate(tried[:3]):
            assert found.scores[example, place] == pytest.approx(score, abs=1e-5)
            assert (found.starts[example, place], found.ends[example, place]) == (start, end)
        nulls = [outputs[windows.offsets[w]] for w in np.flatnonzero(windows.examples == example)]
        assert found.nulls[example] == pytest.approx(min(np.log(pair).sum() for pair in nulls), abs=1e-5)


def test_the_papers_decoding_takes_two_independent_maxima() -> None:
    segments = np.array([0, 1, 0, 2, 2, 2], np.int8)
    characters = np.array([[0, 0]] * 3 + [[0, 1], [1, 2], [2, 3]])
    none = np.zeros(6, np.int32)
    windows = Windows(none, none, segments, np.array([0, 6]), 0, np.array([0]), characters)
    crossed = np.array([[0.1, 0.1], [0, 0], [0, 0], [0.2, 0.6], [0.1, 0.1], [0.6, 0.2]])
    assert argmax_spans(crossed, windows).null_probabilities[0] > 0.5  # the end lies before the start
    joint = best_spans(crossed, windows, 3)  # 0.2 x 0.6 and 0.6 x 0.2 are equal; both lie inside one token
    assert (joint.starts[0, 0], joint.ends[0, 0]) in {(0, 1), (2, 3)}
    assert joint.scores[0, 0] == pytest.approx(np.log(0.12))
    straight = crossed[[0, 1, 2, 5, 4, 3]]
    found = argmax_spans(straight, windows)
    assert (found.starts[0, 0], found.ends[0, 0]) == (0, 3)
    assert found.null_probabilities[0] < 0.5


def test_probabilities_of_n_best_answers_add_up_and_no_place_is_listed_twice() -> None:
    windows, outputs = random_windows(np.random.default_rng(1))
    both = replace(windows, characters=np.tile(windows.characters[:1], (len(windows.tokens), 1)))  # type: ignore[index]
    found = best_spans(outputs, windows, 5, top=6)
    share, answers = n_best(found, 0, "x" * 200, 6)
    assert share + sum(float(str(a["probability"])) for a in answers) <= 1 + 1e-9
    assert len({(a["start"], a["end"]) for a in answers}) == len(answers)
    assert len(n_best(best_spans(outputs, both, 5, top=6), 0, "x" * 200, 6)[1]) == 1


# ---- judging


def test_a_question_is_answerable_if_any_window_says_so() -> None:
    none = np.empty(0)
    windows = Windows(none, none, none, np.arange(5), 0, np.array([0, 0, 1, 1]), characters=none)
    outputs = np.array([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2], [0.9, 0.1]])
    assert per_example(outputs, windows).tolist() == [[0.3, 0.7], [0.8, 0.2]]


def test_raw_and_tuned_scores_part_where_the_null_probability_is_biased() -> None:
    data = examples_of(invent(20, seed=2), ReadingNotes("", True, True))
    windows, _ = labelled(windowed(tokenizer(), data, 128, 32), data)
    outputs = spoken(windows) * 0.1
    outputs[windows.offsets[:-1]] += 0.3  # every window is inclined to "no answer"
    judge = SpanJudge(data, windows, Request(task="squad2"))
    found = judge.predictions(outputs)
    tuned, raw = found.values[:, 1].mean(), found.values[:, 3].mean()
    assert tuned > 0.99 > raw + 0.3
    assert np.array_equal(qualities(judge.golds, found.answers()), found.values[:, :2])
    assert found.threshold is not None
    given = judge.predictions(outputs, 0.5)
    assert given.threshold == 0.5
    assert np.array_equal(given.values[:, :2], found.values[:, 2:4])  # untuned


def test_a_threshold_that_the_user_gives_or_the_papers_decoding_is_not_tuned() -> None:
    data = examples_of(invent(20, seed=2), ReadingNotes("", True, True))
    windows, _ = labelled(windowed(tokenizer(), data, 128, 32), data)
    for options, expected in (({"null_threshold": 0.25}, 0.25), ({"decoding": "argmax"}, 0.5)):
        judge = SpanJudge(data, windows, Request(task="squad2", **options))
        assert judge.predictions(spoken(windows)).threshold == expected


def test_the_expected_share_of_unanswerable_questions_moves_the_threshold() -> None:
    """Null probabilities that say little: who expects more unanswerable questions must answer fewer."""
    data = examples_of(invent(60, seed=2), ReadingNotes("", True, True))
    windows, _ = labelled(windowed(tokenizer(), data, 128, 32), data)
    draw, shares = np.random.default_rng(0), []
    outputs = spoken(windows) * 0.3 + draw.random((len(windows.tokens), 2)).astype(np.float32)
    for share in (0.1, 0.5, 0.9):
        judge = SpanJudge(data, windows, Request(task="squad2", null_share=share))
        shares.append(np.mean([not text for text in judge.predictions(outputs).answers()]))
    assert shares[0] <= shares[1] <= shares[2] > shares[0]


# ---- the real files


@real
@pytest.mark.slow
def test_labels_of_the_real_train_set_come_back() -> None:
    data = read_json(SHARED / "train-v2.0.json", ReadingNotes("train", False, True))
    assert (len(data), int((data.targets == 0).sum())) == (129_725, 42_132)
    some = data.take(range(0, len(data), 25))
    assert some.questions is not None
    encoder = load_encoder("minilm-l6", 2, 0, span=True)
    windows = tokenise(encoder, some, Recipe(max_length=386, stride=128), split_contexts=True).together
    found = best_spans(spoken(windows), windows, 60)
    pairs = [(g, t) for g, t in zip(some.questions.answers, found.texts(some), strict=True) if g]
    right = [Gold.of([golds[0].text]).quality(text)[0] for golds, text in pairs]
    assert np.mean(right) > 0.995


@real
def test_on_the_real_dev_set_perfect_is_100_and_silence_is_half() -> None:
    from bertvision.tasks.squad import golds as golds_of

    golds = golds_of(SHARED / "dev-v2.0.json")
    assert len(golds) == 11_873
    perfect = report(golds, {name: answers[0] if answers else "" for name, answers in golds.items()})
    assert perfect["exact"] == perfect["f1"] == perfect["HasAns_f1"] == 100
    silent = report(golds, dict.fromkeys(golds, ""))
    assert round(silent["exact"], 2) == round(silent["f1"], 2) == 50.07


def test_the_second_answer_is_another_place_also_where_windows_overlap() -> None:
    """Two windows show the same text: the best place comes twice before the second best does."""
    context, segments = "A B C", np.array([0, 1, 2, 2, 2] * 2, dtype=np.int8)
    places = [[0, 0], [0, 0], [0, 1], [2, 3], [4, 5]] * 2
    windows = Windows(
        tokens=np.zeros(10, np.int32), types=np.zeros(10, np.int8), segments=segments, offsets=np.array([0, 5, 10]),
        truncated=0, examples=np.array([0, 0]), characters=np.array(places),
    )  # fmt: skip
    outputs = np.array([[0.01] * 2, [0, 0], [0.5, 0.5], [0.01, 0.01], [0.48, 0.48]] * 2, dtype=np.float32)
    found = best_spans(outputs, windows, 1, top=3)
    examples = Examples(["q"], [context], None)
    assert found.texts(examples) == ["A"]
    assert found.runners_up(examples) == ["C"]
