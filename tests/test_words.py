"""The model `words`: scikit-learn's numbers without scikit-learn's files, and a model like any other in a run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, info_of, scores_of, sentences, tiny_fit, write_csv
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union

import bertvision
from bertvision.errors import UserError
from bertvision.inference.evaluate import evaluate_on_store
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.records import GREEDY, WORDS
from bertvision.runs.directory import Run
from bertvision.types import HELD_OUT, TRAIN, Examples
from bertvision.words import model as words_model
from bertvision.words.features import Features
from bertvision.words.linear import ALPHAS, TOLERANCE, _left_out
from bertvision.words.model import Words, fit_words

NOUNS = "cat dog house river music city book car garden film".split()
VERBS = "sees likes finds paints sells".split()
SIGNS = ("wonderful", "dreadful", "average")
CHECKS = {"class": 3, "score": 1}


def texts(count: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Sentences in which one word of ten says which of three classes they are of, but one in ten times."""
    draw, found, classes = np.random.default_rng(seed), [], []
    for _ in range(count):
        sign = int(draw.integers(3))
        said = SIGNS[int(draw.integers(3))] if draw.random() < 0.1 else SIGNS[sign]
        nouns = draw.choice(NOUNS, 5)
        found.append(f"The {nouns[0]} {draw.choice(VERBS)} a {said} {nouns[1]}, {' '.join(nouns[2:])}!")
        classes.append(sign)
    return found, np.array(classes)


def examples_of(kind: str, count: int, seed: int = 0) -> Examples:
    found, classes = texts(count, seed)
    return Examples(found, None, classes if kind == "class" else classes * 2.5 + 1)


def pipeline(last: Any, longest: int) -> Any:
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, longest), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    return make_pipeline(make_union(words, characters), last)


def test_classes_are_those_of_a_pipeline_of_scikit_learn() -> None:
    train, new = examples_of("class", 800), examples_of("class", 50, 1)
    words = fit_words(train, "class", 3)
    assert words.linear.logistic
    one = LogisticRegression(C=words.linear.strength, solver="liblinear", dual=True, tol=TOLERANCE, random_state=0)
    theirs = pipeline(OneVsRestClassifier(one), 2).fit(train.texts, train.targets)
    rows = theirs[0].transform(new.texts)
    np.testing.assert_allclose(words.features.rows(new).toarray(), rows.toarray(), atol=1e-12)
    np.testing.assert_allclose(words.linear.decisions(rows), theirs[1].decision_function(rows), atol=1e-4)
    power = 1 / (1 + np.exp(-theirs[1].decision_function(rows))) ** words.linear.temperature
    share = 0.5 / 801  # that all classes have alike
    expected = (1 - share) * power / power.sum(1, keepdims=True) + share / 3
    np.testing.assert_allclose(words.outputs(new), expected, atol=1e-4)


def test_scores_are_those_of_a_pipeline_of_scikit_learn() -> None:
    train, new = examples_of("score", 200), examples_of("score", 50, 1)
    words = fit_words(train, "score", 1)
    theirs = pipeline(Ridge(alpha=words.linear.strength), 1).fit(train.texts, train.targets)
    np.testing.assert_allclose(words.outputs(new)[:, 0], theirs.predict(new.texts), atol=1e-2)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_left_out_exactly(weighted: bool) -> None:
    train = examples_of("score", 25)
    rows, draw = Features.fit(train, 1000)[1], np.random.default_rng(0)
    weights = draw.uniform(0.5, 2, 25) if weighted else np.ones(25)
    assert train.targets is not None
    targets = np.stack([train.targets, draw.standard_normal(25)], 1)
    found = dict(_left_out(rows, targets, weights))
    for alpha in (ALPHAS[1], ALPHAS[4]):
        for i in (0, 7, 24):
            rest = np.arange(25) != i
            one = Ridge(alpha=alpha, solver="cholesky").fit(
                rows.toarray()[rest], targets[rest], weights[rest] / weights.mean()
            )
            np.testing.assert_allclose(found[alpha][i], one.predict(rows.toarray()[[i]])[0], atol=1e-6)


@pytest.mark.parametrize("kind", CHECKS)
@pytest.mark.parametrize("count", [60, 600])
def test_a_word_that_decides_is_found(kind: str, count: int) -> None:
    train, new = examples_of(kind, count), examples_of(kind, 300, 1)
    said = fit_words(train, kind, CHECKS[kind]).outputs(new)
    assert new.targets is not None
    if kind == "class":
        assert np.mean(said.argmax(1) == new.targets) > (0.85 if count == 600 else 0.75)
        # Probabilities can be averaged with those of other models: one in fifteen is wrong.
        loss = -np.log(said[np.arange(300), new.targets]).mean()
        assert loss < 0.6
    else:
        assert np.corrcoef(said[:, 0], new.targets)[0, 1] > 0.75


@pytest.mark.parametrize("kind", ["class", "score"])
def test_what_two_texts_share_decides(kind: str) -> None:
    """No word says anything by itself; the overlap says all."""
    draw = np.random.default_rng(0)

    def pairs(count: int) -> Examples:
        shared = draw.integers(0, 6, count)
        first = [draw.permutation(NOUNS + VERBS) for _ in shared]
        second = [
            " ".join(draw.permutation([*words[:n], *words[n - 6 :]])) for words, n in zip(first, shared, strict=True)
        ]
        targets = (shared > 2).astype(np.int64) if kind == "class" else shared.astype(float)
        return Examples([" ".join(words[:6]) for words in first], second, targets)

    train, new = pairs(400), pairs(200)
    said = fit_words(train, kind, 2 if kind == "class" else 1).outputs(new)
    assert new.targets is not None
    if kind == "class":
        assert np.mean(said.argmax(1) == new.targets) > 0.95
    else:
        assert np.corrcoef(said[:, 0], new.targets)[0, 1] > 0.97


@pytest.mark.parametrize("kind", CHECKS)
def test_saved_and_loaded_it_says_the_same_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    train, new = examples_of(kind, 120), examples_of(kind, 70, 1)
    words = fit_words(train, kind, CHECKS[kind])
    words.save(tmp_path / "words")
    assert sorted(path.name for path in (tmp_path / "words").iterdir()) == ["words.json", "words.safetensors"]
    json.loads((tmp_path / "words" / "words.json").read_text())
    said = words.outputs(new)
    np.testing.assert_array_equal(Words.load(tmp_path / "words").outputs(new), said)
    alone = [words.outputs(new.take([row]))[0] for row in range(70)]
    np.testing.assert_array_equal(np.array(alone), said)  # whatever it is asked together with


def test_the_same_rows_give_the_same_model() -> None:
    train = examples_of("class", 600)
    one, other = (fit_words(train, "class", 3, seed=1) for _ in range(2))
    np.testing.assert_array_equal(one.linear.coefficients, other.linear.coefficients)


@pytest.mark.parametrize(("count", "little"), [(150, 1e-3), (150, 0.0), (300, 1e-3)])
def test_rows_of_little_weight_hardly_count(count: int, little: float) -> None:
    good, bad = texts(count, 0), texts(count, 1)
    weights = np.repeat([1.0, little], count)
    both = good[0] + bad[0], np.concatenate([good[1], (bad[1] + 1) % 3])
    new = examples_of("class", 200, 2)
    right = {}
    for name, given in (("even", None), ("weighted", weights)):
        said = fit_words(Examples(both[0], None, both[1], weights=given), "class", 3).outputs(new)
        right[name] = np.mean(said.argmax(1) == new.targets)
    assert right["weighted"] > 0.8
    assert right["even"] < 0.7


CASES: dict[str, Callable[[], Examples]] = {
    "ten rows": lambda: examples_of("class", 10),
    "one class": lambda: Examples(["a", "b c", "d"], None, np.array([1, 1, 1])),
    "empty texts": lambda: Examples(["", " ", ""] * 5, None, np.array([0, 1, 2] * 5)),
    "a class of one row": lambda: Examples([*texts(700)[0], "odd"], None, np.append(texts(700)[1] % 2, 2)),
    "equal texts": lambda: Examples(["same"] * 20, None, np.arange(20) % 2),
    "pairs of empty texts": lambda: Examples([""] * 12, [""] * 12, np.arange(12) % 3),
    "half characters and marks": lambda: Examples(
        ["\ud800 x", "\u2028!?", "naïve ﬁ"] * 4, None, np.array([0, 1, 2] * 4)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_odd_rows_still_give_probabilities(case: str, tmp_path: Path) -> None:
    train = CASES[case]()
    words = fit_words(train, "class", 4)  # the last class occurs in no row
    second = None if train.second_texts is None else ["zebra quartz", "", "x" * 50_000]
    said = words.outputs(Examples(["zebra quartz", "", "x " * 50_000], second, None))
    assert said.shape == (3, 4)
    np.testing.assert_allclose(said.sum(1), 1)
    assert said.min() > 0
    assert said[:, 3].max() < 0.1
    words.save(tmp_path)
    np.testing.assert_array_equal(Words.load(tmp_path).outputs(train), words.outputs(train))
    assert words.outputs(train.take([])).shape == (0, 4)


def test_equal_scores_are_predicted_as_they_are() -> None:
    words = fit_words(Examples(texts(30)[0], None, np.full(30, 2.5)), "score", 1)
    np.testing.assert_allclose(words.outputs(examples_of("score", 5)), 2.5)


def test_many_rows_and_long_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_model, "MOST_ROWS", 100)
    monkeypatch.setattr(words_model, "CHOOSING", 50)
    monkeypatch.setattr(words_model, "MOST_CHARACTERS", 100_000)
    train = examples_of("class", 900)
    long = Examples([text + " late" * 2000 for text in train.texts], None, train.targets)
    words = fit_words(long, "class", 3)
    assert words.rows == 100
    assert words.features.limit < 2000
    assert np.mean(words.outputs(long).argmax(1) == long.targets) > 0.7


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("words")
    write_csv(folder / "train.csv", ("text", "label"), sentences(120))
    write_csv(folder / "dev.csv", ("text", "label"), sentences(40, 1))
    return tiny_fit(
        folder / "train.csv", folder / "run", dev=folder / "dev.csv", heads="closed-form,last-layer", epochs=0, folds=0
    )


def test_words_are_a_model_of_the_run_like_any_other(run: Run) -> None:
    mark = run.results.last
    assert WORDS in mark.models
    assert WORDS not in mark.ways
    assert mark.score(WORDS, "accuracy").value == 1  # a word decides, which the random encoder hardly sees
    kept = bertvision.load(run, WORDS).predict_proba([text for text, _ in sentences(40, 1)])
    np.testing.assert_allclose(kept, run.predictions(mark.mark)["dev"].outputs[WORDS])
    again = bertvision.evaluate(run)
    assert again.scores["dev"].keys() == mark.scores["dev"].keys()
    for name, found in again.scores["dev"].items():
        assert found["accuracy"].value == pytest.approx(mark.score(name, "accuracy").value), name
    assert run.record.size(WORDS) == bertvision.load(run, WORDS).words.parameters
    card = (run.path / "README.md").read_text()
    assert "a linear model on its words" in card
    assert "| words" in card


def test_it_answers_without_the_encoder(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "marks" / "0" / "encoder")
    model = bertvision.load(tmp_path / "run", WORDS)
    assert model.predict("a great film")["label"] == "pos"
    assert len(model.predict(["a great film", "a bad film"])) == 2
    (tmp_path / "run" / WORDS / "words.json").write_text("{")
    with pytest.raises(UserError, match=r"model `words` of .* cannot be read"):
        bertvision.load(tmp_path / "run", WORDS)


def test_no_words_means_none(tmp_path: Path, table: Path, command: Command) -> None:
    out = tmp_path / "run"
    given = ("--backbone", "tiny", "--heads", "closed-form", "--epochs", "0", "--folds", "0", "--no-words")
    code, _, error = command("fit", table, *given, "--out", out)
    assert code == 0, error
    assert WORDS not in scores_of(out)["marks"][0]["dev"]
    assert not (out / WORDS).exists()
    assert info_of(out)["request"]["words"] is False
    assert command("report", out, "--out", tmp_path / "report.md")[0] == 0
    assert "--no-words" in (tmp_path / "report.md").read_text()


def test_reports_and_analyses_know_a_model_that_is_no_head(run: Run, tmp_path: Path) -> None:
    tables = bertvision.analyse(run)
    assert tables["cost"][0].rows[0]["head_parameters"] < run.record.size(WORDS)
    page = bertvision.report(run, out=tmp_path / "report.md").read_text()
    assert "words" in page
    assert "depth" in bertvision.analyse(run, ["depth"])


def test_a_cut_model_has_words_too(run: Run, tmp_path: Path) -> None:
    made = bertvision.cut(run, 1, out=tmp_path / "cut", quiet=True)
    np.testing.assert_array_equal(
        made.predictions("0")["dev"].outputs[WORDS], run.predictions("0")["dev"].outputs[WORDS]
    )
    assert (made.path / WORDS).exists()


def test_a_store_has_words_where_its_texts_are_at_hand(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev"):
        shutil.copy(run.path.parent / f"{name}.csv", tmp_path / f"{name}.csv")
    files = {name: tmp_path / f"{name}.csv" for name in ("train", "dev")}
    bertvision.extract("tiny", "table", out=tmp_path / "store", quiet=True, **files)
    made = bertvision.train(tmp_path / "store", heads="closed-form", out=tmp_path / "with", quiet=True)
    dev = made.predictions("0")["dev"].outputs[WORDS]
    np.testing.assert_allclose(dev, run.predictions("0")["dev"].outputs[WORDS])
    assert bertvision.load(made, GREEDY).predict("a great film")["label"] == "pos"
    evaluated = evaluate_on_store(made.path, bertvision.open_store(tmp_path / "store"), progress=Progress())
    said = capsys.readouterr().err
    assert "skipped, as the store has no texts: words" in said
    assert f"The selected model, {made.results.selected.model}, is one of them" in said
    assert WORDS not in evaluated.scores[HELD_OUT]
    write_csv(tmp_path / "train.csv", ("text", "label"), sentences(120, 3))
    bertvision.train(tmp_path / "store", heads="closed-form", out=tmp_path / "changed")
    assert "without the model `words`: the texts have changed" in capsys.readouterr().err
    (tmp_path / "train.csv").unlink()
    without = bertvision.train(tmp_path / "store", heads="closed-form", out=tmp_path / "without")
    assert "without the model `words`: the files with the texts are not at hand" in capsys.readouterr().err
    assert WORDS not in without.results.last.models
    assert bertvision.train(tmp_path / "store", heads="closed-form", words=False, out=tmp_path / "off", quiet=True)


def test_where_a_budget_lowers_the_limit_words_still_read_all_rows_but_those_held_out(table: Path) -> None:
    asked = Request(train=str(table), backbone="tiny", heads="closed-form", folds="0", budget=1)
    whole = prepare(asked, Progress(quiet=True))
    fewer = prepare(replace(whole.recipe, limit=40), Progress(quiet=True))
    words = replace(fewer, request=asked).with_words().words
    held_out = len(fewer.parts[HELD_OUT])
    assert words is not None
    assert words.rows == len(whole.parts[TRAIN]) + len(whole.parts[HELD_OUT]) - held_out > 40
    as_asked = fewer.with_words().words  # a limit that the user gave is kept
    assert as_asked is not None
    assert as_asked.rows == len(fewer.parts[TRAIN])
