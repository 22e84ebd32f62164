"""What `import bertvision` offers: data as people have it, models that answer, typed scores, heads of one's own, and
docstrings whose examples run."""

import doctest
import inspect
import math
import re
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from conftest import sentences, tiny_fit, write_csv

import bertvision
from bertvision import api
from bertvision.backbones import backbones
from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.runs.directory import Run

ROWS = sentences(120)
TEXTS, LABELS = [text for text, _ in ROWS], [label for _, label in ROWS]
NEW = sentences(40, seed=9)
QUICK = {"heads": "last-layer,closed-form", "epochs": 0}


class Frame:
    """The least that a data frame has: `columns`, and a column by its name."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self.found = list(columns), columns

    def __getitem__(self, name: str) -> list[Any]:
        return self.found[name]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose data was given in memory."""
    return tiny_fit(TEXTS, tmp_path_factory.mktemp("front") / "run", LABELS, heads="closed-form", epochs=0)


@pytest.fixture(scope="module")
def pair_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pairs = list(zip(TEXTS, [text for text, _ in sentences(120, seed=3)], strict=True))
    return tiny_fit(pairs, tmp_path_factory.mktemp("pairs") / "run", [i % 11 / 2 for i in range(120)], **QUICK)


def test_texts_are_the_same_data_however_they_are_given(table: Path, tmp_path: Path) -> None:
    import datasets

    given: dict[str, tuple[Any, ...]] = {
        "a file": (str(table),),
        "a path": (table,),
        "lists": (TEXTS, LABELS),
        "arrays": (np.array(TEXTS), np.array(LABELS)),
        "columns": ({"text": TEXTS, "label": LABELS},),
        "columns of arrays": ({"text": np.array(TEXTS), "label": np.array(LABELS)},),
        "a dataset": (datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}),),
        "a frame": (Frame(text=TEXTS, label=LABELS, year=[1990] * 120),),
    }
    runs = {name: tiny_fit(*data[:1], tmp_path / name, *data[1:], **QUICK) for name, data in given.items()}
    expected = runs["a file"]
    for name, made in runs.items():
        assert made.record.data == expected.record.data, name
        assert made.record.labels == ("neg", "pos"), name
        assert made.results.last.scores == expected.results.last.scores, name
        assert made.record.recipe.in_memory == (name not in ("a file", "a path")), name


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_of_both_libraries_are_read(library: str, table: Path, tmp_path: Path) -> None:
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({"text": TEXTS, "label": LABELS})
    expected = tiny_fit(table, tmp_path / "file", **QUICK).record
    assert tiny_fit(frame, tmp_path / "frame", **QUICK).record.data == expected.data
    series = tiny_fit(frame["text"], tmp_path / "series", frame["label"], **QUICK)
    assert series.record.data == expected.data
    frame = frames.DataFrame({"body": TEXTS, "stars": [i % 5 + 1 for i in range(120)]})
    numbers = tiny_fit(frame, tmp_path / "numbers", text="body", label="stars", **QUICK).record
    assert (numbers.kind, numbers.labels, numbers.roles["text"]) == ("class", ("1", "2", "3", "4", "5"), "body")


def test_a_task_is_given_by_its_name(tmp_path: Path) -> None:
    made = tiny_fit("demo", tmp_path / "run", limit=80, dev_limit=20, **QUICK)
    assert (made.record.recipe.task, made.record.data["dev"].examples) == ("demo", 20)


def test_pairs_are_tuples_lists_or_columns(tmp_path: Path) -> None:
    second, scores = [text for text, _ in sentences(120, seed=3)], [i % 11 / 2 for i in range(120)]
    pairs = list(zip(TEXTS, second, strict=True))
    given: dict[str, tuple[Any, ...]] = {
        "tuples": (pairs, scores),
        "an array": (np.array(pairs), np.array(scores)),
        "columns": ({"sentence1": TEXTS, "sentence2": second, "score": scores},),
    }
    found = [tiny_fit(*data[:1], tmp_path / name, *data[1:], **QUICK).record for name, data in given.items()]
    assert all(record.data == found[0].data for record in found)
    assert {(record.kind, record.shape.paired) for record in found} == {("score", True)}


def test_dev_data_is_a_frame_a_pair_or_a_file(table: Path, tmp_path: Path) -> None:
    texts, labels = [text for text, _ in NEW], [label for _, label in NEW]
    write_csv(tmp_path / "dev.csv", ("text", "label"), NEW)
    expected = tiny_fit(table, tmp_path / "files", dev=tmp_path / "dev.csv", **QUICK).record.data
    assert (expected["train"].examples, expected["dev"].examples) == (108, 40)
    devs = {"frame": Frame(text=texts, label=labels), "tuple": (texts, labels), "file": tmp_path / "dev.csv"}
    for name, dev in devs.items():
        assert tiny_fit(TEXTS, tmp_path / name, LABELS, dev=dev, **QUICK).record.data == expected, name
    # A file to train on and a table in memory to report on.
    mixed = tiny_fit(table, tmp_path / "mixed", dev=devs["frame"], **QUICK)
    assert mixed.record.data == expected
    assert mixed.record.recipe.in_memory


def test_weights_are_a_sequence_or_a_column(tmp_path: Path) -> None:
    weights = [i % 4 / 2 for i in range(120)]
    column = {"text": TEXTS, "label": LABELS, "heavy": weights}
    named = tiny_fit(column, tmp_path / "column", weight="heavy", **QUICK)
    given = tiny_fit(TEXTS, tmp_path / "given", LABELS, weight=np.array(weights), **QUICK)
    assert given.results.last.scores == named.results.last.scores
    unweighted = tiny_fit(TEXTS, tmp_path / "none", LABELS, **QUICK)
    assert unweighted.results.last.scores != named.results.last.scores


def test_data_that_cannot_be_used_is_explained_and_nothing_is_written(tmp_path: Path) -> None:
    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((TEXTS,), {}, r"texts with labels \(fit\(texts, labels\)\); got list without labels"),
        ((TEXTS, LABELS[:-1]), {}, "120 texts but 119 labels"),
        (([], []), {}, "the data given. has no rows"),
        (({"text": [], "label": []},), {}, "the data given. has no rows"),
        (({"text": TEXTS, "label": LABELS[:-1]},), {}, "different lengths: 'text' has 120, 'label' has 119"),
        (({"text": TEXTS, "stars": LABELS},), {"label": "star"}, "no column called 'star'. Did you mean 'stars'"),
        (({"body": TEXTS, "more": TEXTS, "label": LABELS},), {}, "which column is --text"),
        (([*TEXTS[:-1], None], LABELS), {}, "row 120: column 'text' holds None, not a text"),
        ((TEXTS, [*LABELS[:-1], None]), {}, "row 120: the label is empty"),
        ((TEXTS, ["pos"] * 120), {}, "all labels are 'pos'"),
        (([("a", "b", "c")] * 120, LABELS), {}, "Each example must be a text, or a pair of texts"),
        ((TEXTS, LABELS), {"dev": (["a"], ["meh"])}, "row 1: label 'meh' is not one of the classes: neg, pos"),
        ((TEXTS, LABELS), {"dev": "nowhere.csv"}, "no file 'nowhere.csv'"),
        (("demo",), {"dev": Frame(text=TEXTS, label=LABELS)}, "dev: task 'demo' needs a file to report on; got Frame"),
        ((TEXTS, LABELS), {"epoch": 1}, "no option called 'epoch'. Did you mean 'epochs'"),
        ((TEXTS, LABELS), {"mode": "disk"}, "--mode must be one of auto, memory, stored, recompute; got 'disk'"),
        ((TEXTS, LABELS), {"weight": [1.0] * 119}, "different lengths: .* 'weights given' has 119"),
        ((TEXTS, LABELS), {"weight": np.full(120, -1.0)}, "A weight must be a number, 0 or more"),
        (("demo",), {"weight": [1.0]}, "weight: for a file or a task, name the column"),
        (("reviws.csv",), {}, "There is no file 'reviws.csv'"),
        (("stsb",), {}, "no task called 'stsb'. Did you mean 'sts-b'"),
    ]
    for data, options, message in bad:
        with pytest.raises(UserError, match=message):
            tiny_fit(*data[:1], tmp_path / "run", *data[1:], **options)
    assert list(tmp_path.iterdir()) == []


def test_options_are_python_values(tmp_path: Path) -> None:
    given = {"heads": ["last-layer", "closed-form"], "marks": [0, 0.5], "epochs": 0.5, "freeze": 1}
    recipe = tiny_fit(TEXTS, tmp_path / "run", LABELS, **given).record.recipe
    assert (recipe.heads, recipe.freeze, recipe.fractions()) == ("last-layer,closed-form", "1", [0, 0.5])


def test_one_text_gives_one_answer_and_several_give_a_list(run: Run) -> None:
    model = bertvision.load(run)
    one, several = model.predict("a great film"), model.predict(["a great film", "a bad film"])
    assert set(one) == {"label", "probabilities"}
    assert isinstance(several, list)
    assert several[0]["probabilities"] == pytest.approx(one["probabilities"], abs=1e-6)
    assert model.predict(np.array(["a great film"]))[0]["label"] == model.predict(("a great film",))[0]["label"]
    assert model.predict(text for text in ["a great film", "a bad film"])[1]["label"] == several[1]["label"]
    assert model.predict([]) == []


def test_probabilities_are_rows_that_sum_to_one_and_agree_with_the_labels(run: Run, pair_run: Run) -> None:
    model = run.model()
    assert model.classes_.tolist() == ["neg", "pos"]
    found = model.predict_proba(TEXTS)
    assert found.shape == (120, 2)
    assert found.sum(1) == pytest.approx(np.ones(120))
    answers = model.predict(TEXTS)
    assert [answer["label"] for answer in answers] == model.classes_[found.argmax(1)].tolist()
    assert [answer["probabilities"]["pos"] for answer in answers] == pytest.approx(found[:, 1].tolist())
    assert model.predict_proba([]).shape == (0, 2)
    assert model.predict_proba("a great film").shape == (1, 2)
    scored = pair_run.model()
    assert scored.paired
    assert scored.classes_.tolist() == []
    assert set(scored.predict("a cat", "a dog")) == {"score"}
    with pytest.raises(UserError, match="answers with a score: it has no classes"):
        scored.predict_proba(["a"], ["b"])


def test_texts_to_predict_are_any_sequence(run: Run, pair_run: Run) -> None:
    pandas, model, two = pytest.importorskip("pandas"), run.model(), ["a great film", "a bad film"]
    expected = model.predict_proba(two)
    given = [
        tuple(two), np.array(two), np.array(two, dtype=object), pyarrow.array(two), iter(two),
        pandas.Series(two, index=["columns", "b"]), pandas.Series(two, dtype="string"), pandas.Index(two),
    ]  # fmt: skip
    with suppress(ImportError):
        import datasets

        given.append(datasets.Dataset.from_dict({"text": two})["text"])
    with suppress(ImportError):
        import polars

        given.append(polars.Series(two))
    for texts in given:
        assert model.predict_proba(texts) == pytest.approx(expected), type(texts)
    assert [answer["label"] for answer in model.predict(pandas.Series(two))] == [a["label"] for a in model.predict(two)]
    assert set(model.predict(np.array(two)[0])) == {"label", "probabilities"}
    both = pandas.DataFrame({"one": ["a", "b"], "two": ["c", "d"]}, index=[7, 3])
    assert pair_run.model().predict(both["one"], both["two"]) == pair_run.model().predict(["a", "b"], ["c", "d"])


def test_what_is_not_a_text_is_named_by_its_row(run: Run, pair_run: Run) -> None:
    pandas, model = pytest.importorskip("pandas"), run.model()
    for texts in (b"bytes", 3, 1.5, None, {"text": ["a"]}, pandas.DataFrame({"text": ["a"]}), Path("more.csv")):
        for answer in (model.predict, model.predict_proba):
            with pytest.raises(UserError, match=f"texts must be a text or a sequence .* got {type(texts).__name__}"):
                answer(texts)
    for second in (None, 3, b"b", math.nan, ["b"], pandas.NA):
        for texts in (["a", second], pandas.Series(["a", second], dtype=object)):
            with pytest.raises(UserError, match=r"^texts, row 2: .* is not a text"):
                model.predict(texts)
    with pytest.raises(UserError, match=r"^second_texts, row 1: nan is not a text"):
        pair_run.model().predict(["a"], pandas.Series([math.nan]))


def test_models_of_a_run_are_loaded_by_name_and_mark(run: Run) -> None:
    shipped = run.model()
    assert (shipped.name, shipped.mark) == (run.results.selected.model, "0")
    assert repr(shipped) == f"Model('{run.path}@0', '{shipped.name}')"
    assert repr(run) == f"Run('{run.path}')"
    assert run.model("encoder").name == bertvision.load(run, "encoder").name == "encoder"
    assert run.model(mark="0").name == bertvision.load(f"{run.path}@0").name == shipped.name
    assert isinstance(shipped, bertvision.Model)


def test_a_run_whose_data_was_in_memory_is_evaluated_on_a_file(run: Run, tmp_path: Path) -> None:
    for evaluate in (lambda: bertvision.evaluate(run), run.model().evaluate):
        with pytest.raises(UserError, match=r"was given in memory\. Give the file to score on"):
            evaluate()
    write_csv(tmp_path / "more.csv", ("text", "label"), NEW)
    found = bertvision.evaluate(run, dev=tmp_path / "more.csv")
    assert isinstance(found, bertvision.Evaluation)
    assert (found.run, found.mark, found.metric, list(found.scores)) == (str(run.path), "0", "accuracy", ["dev"])
    score = found.scores["dev"][found.selected]["accuracy"]
    assert isinstance(score, bertvision.Score)
    assert score.low <= score.value <= score.high
    truth = np.array([label == "pos" for _, label in NEW])
    said = run.model().predict_proba([text for text, _ in NEW])[:, 1] > 0.5
    assert score.value == pytest.approx((said == truth).mean())
    own = run.model().evaluate(tmp_path / "more.csv")  # scores the models that are loaded: one
    assert own.scores == {"dev": {found.selected: found.scores["dev"][found.selected]}}
    assert set(found.as_dict()) >= {"run", "mark", "task", "metric", "selected", "dev"}


def test_two_runs_are_compared_with_types(run: Run, tmp_path: Path) -> None:
    other = tiny_fit(TEXTS, tmp_path / "other", LABELS, heads="last-layer", epochs=0)
    found = bertvision.compare(run, other)
    assert isinstance(found, bertvision.Comparison)
    a, b = (scores["accuracy"].value for scores in found.scores["dev"])
    assert found.difference["dev"]["accuracy"].value == pytest.approx(b - a)
    assert (found.a.run, found.b.run) == (str(run.path), str(other.path))
    assert found.as_dict()["dev"]["difference"]["accuracy"]["value"] == pytest.approx(b - a)


OWN_HEAD = """
import bertvision

class Average(bertvision.Body):
    def __init__(self, features):
        super().__init__()
        self.width = features

    def forward(self, layers):  # (B, L, V, D) -> (B, V, D)
        return layers.mean(1)

@bertvision.register_head("test-average", about="mean of all layers", reads="texts")
def average(shape):
    return bertvision.Head(shape, Average(shape.features), views=("mean",))
"""


def test_a_head_of_ones_own_is_trained_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertvision.heads import heads

    heads["last-layer"]  # registered before the copy below
    monkeypatch.setattr(heads, "_entries", dict(heads._entries))
    exec(OWN_HEAD, {})
    exec(OWN_HEAD, {})  # a notebook cell runs twice
    options = {"epochs": 0, "polish": 10, "head_lr": 1e-2}
    run = tiny_fit(TEXTS, tmp_path / "run", LABELS, heads="test-average,test-average:lr=1e-3", **options)
    assert {"test-average+polish", "test-average:lr=1e-3+polish"} < set(run.results.last.models)
    assert run.record.parameters["test-average"] == 32 * 2 + 2
    kept = run.predictions("0")["held_out"].outputs["test-average+polish"]
    model = run.model("test-average+polish")
    assert torch.is_tensor(model.heads["test-average+polish"].output.weight)
    held = sorted(kept[:, 1])
    everywhere = sorted(model.predict_proba(TEXTS)[:, 1])
    assert all(min(abs(value - other) for other in everywhere) < 1e-5 for value in held)
    with pytest.raises(UserError, match="'test-average' is for tasks with an answer per text"):
        tiny_fit("squad2-invented", tmp_path / "span", heads="test-average", limit=40, dev_limit=10)
    (tmp_path / "mine.py").write_text(OWN_HEAD)
    code = textwrap.dedent(f"""
        import sys
        import bertvision
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            bertvision.load({str(run.path)!r}, "test-average+polish")
        except bertvision.UserError as error:
            print(error)
        import mine
        print(bertvision.load({str(run.path)!r}, "test-average+polish").predict_proba({TEXTS[0]!r})[0, 1])
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    refused, answered = done.stdout.strip().splitlines()
    assert "needs the head 'test-average'" in refused
    assert "import the module that registers it first" in refused
    assert float(answered) == pytest.approx(model.predict_proba(TEXTS[0])[0, 1], abs=1e-6)


def test_help_and_completion_show_every_option() -> None:
    wanted = [field.name for field in fields(Request) if field.name != "task"]
    shown = inspect.signature(bertvision.fit).parameters
    assert list(shown) == ["task_or_data", "labels", "resume", "quiet", *wanted]
    for field in fields(Request):
        if field.name != "task":
            assert shown[field.name].default == field.default, field.name
    assert list(api.Options.__annotations__) == wanted
    for function, names in ((bertvision.extract, api.EXTRACTING), (bertvision.train, api.TRAINING)):
        assert set(names) <= set(inspect.signature(function).parameters), function.__name__


def test_every_public_name_is_listed_and_documented() -> None:
    assert set(bertvision.__all__) <= set(dir(bertvision))
    for name in bertvision.__all__:
        found = getattr(bertvision, name)
        text = inspect.getdoc(found) or ""
        assert text, name
        assert not text.startswith(f"{name}("), f"{name}: only what a dataclass says of itself"
        if inspect.isfunction(found) and len(inspect.signature(found).parameters) > 1:
            assert "Args:" in text, name
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        bertvision.fitt  # noqa: B018


def test_importing_bertvision_is_light() -> None:
    heavy = ["torch", "transformers", "numpy", "pyarrow", "sklearn", "typer"]
    code = f"import sys, bertvision; dir(bertvision); print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Loosely(doctest.OutputChecker):
    """Numbers and words may differ: what an example prints depends on the encoder and the data."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        return super().check_output(self.plain(want), self.plain(got), flags)

    def plain(self, text: str) -> str:
        return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "0", re.sub(r"'[^']*'", "''", text))


@pytest.mark.slow
def test_the_examples_of_docstrings_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the files they name, and with the random encoder in the place of the default one."""
    from bertvision.heads import heads

    tiny = backbones["tiny"]
    for family, name in ((backbones, "minilm-l6"), (heads, "last-layer")):
        assert name in family
        monkeypatch.setattr(family, "_entries", dict(family._entries))
    backbones.add("minilm-l6", tiny, replace=True)
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "reviews.csv", ("text", "label"), ROWS)
    write_csv(tmp_path / "more.csv", ("text", "label"), NEW)
    (tmp_path / "glue" / "STS-B").mkdir(parents=True)
    pairs = [f"{a}\t{b}\t{i % 6}" for i, (a, b) in enumerate(zip(TEXTS, reversed(TEXTS), strict=True))]
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "glue" / "STS-B" / name).write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]) + "\n")
    tiny_fit("reviews.csv", Path("runs/reviews"), heads="last-layer,closed-form")
    for name, epochs in (("short", 0), ("long", 1)):
        tiny_fit("reviews.csv", Path("runs") / name, heads="last-layer", epochs=epochs)
    objects = {name: getattr(bertvision, name) for name in bertvision.__all__} | {"the package": bertvision}
    ran = set()
    for name, found in objects.items():
        text = inspect.getdoc(found) or ""
        test = doctest.DocTestParser().get_doctest(text, {"bertvision": bertvision}, name, None, None)
        runner = doctest.DocTestRunner(Loosely(), verbose=False, optionflags=doctest.ELLIPSIS)
        said: list[str] = []
        runner.run(test, out=said.append)
        assert runner.summarize(verbose=False).failed == 0, "".join(said)
        ran |= {name} if test.examples else set()
    functions = {name for name in bertvision.__all__ if inspect.isfunction(getattr(bertvision, name))}
    assert functions | {"Model", "Run", "Evaluation", "the package"} <= ran
