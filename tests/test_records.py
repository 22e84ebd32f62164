"""What runs and stores keep on disk: version 0.1 is still read, every key it wrote is still written, and what cannot be
read is refused with a message that says what to do. Also how a request becomes a recipe."""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import info_of, scores_of, tiny_fit

import bertvision
from bertvision.errors import UserError
from bertvision.metrics.intervals import Score
from bertvision.options import OWN, Request, differences
from bertvision.recipe import DECIDED, Facts, Recipe, migrated, reopened, resolve
from bertvision.records import ENCODER, SCHEMA, BudgetPlan, Cut, CutSide, FromStore, ModelName, Results, RunRecord
from bertvision.runs.directory import Run

OLD = Path(__file__).parent / "data" / "version-0.1"
REMOVED = {"polish_from"}  # options of version 0.1 that are gone


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run and a store of version 0.1, as the folder they were made in."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def keys(value: Any, before: str = "") -> set[str]:
    """Every key of nested dictionaries and lists, as a path; names of models, heads and packages included."""
    if isinstance(value, dict):
        return {name for key in value for name in {f"{before}.{key}", *keys(value[key], f"{before}.{key}")}}
    return {name for part in value for name in keys(part, f"{before}[]")} if isinstance(value, list) else set()


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    kept = json.loads(path.read_text())
    change(kept)
    path.write_text(json.dumps(kept))


def test_every_key_of_version_01_is_still_written(old: Path, tmp_path: Path) -> None:
    """By a run of today with the same heads on the same data."""
    run = tiny_fit("reviews.csv", tmp_path / "new", heads="last-layer-views,closed-form", polish=None, epochs=0)
    gone = {f".options.{name}" for name in REMOVED}
    assert keys(info_of(old / "run")) - keys(info_of(run)) == gone
    before, now = scores_of(old / "run"), scores_of(run)
    assert keys(before) - keys(now) == set()
    for name in ("task", "metric"):
        assert before[name] == now[name]


def test_a_run_of_version_01_scores_today_as_it_did(old: Path, tmp_path: Path) -> None:
    """The same command gives the same held-out rows, and to the last digits the same scores. Only closed-form heads are
    solved differently by now, which also changes ensembles."""
    run = tiny_fit(
        "reviews.csv", tmp_path / "new", heads="last-layer-views,closed-form", polish=None, epochs=0, words=False
    )
    kept = Run("run")
    assert run.record.data == kept.record.data
    assert run.record.parameters == kept.record.parameters
    assert run.record.weights_sha256 == kept.record.weights_sha256
    for split, models in kept.results.last.scores.items():
        for name in (ENCODER, "last-layer-views+polish"):
            again = run.results.last.scores[split][name]
            for metric, score in models[name].items():
                assert again[metric].value == pytest.approx(score.value), (split, name, metric)


def test_run_json_is_the_same_after_reading_and_writing(old: Path, tmp_path: Path) -> None:
    first = RunRecord.read(old / "run" / "run.json")
    first.write(tmp_path / "run.json")
    assert RunRecord.read(tmp_path / "run.json") == first
    before, after = info_of(old / "run"), info_of(tmp_path)
    assert after["schema"] == SCHEMA
    assert keys(before) - keys(after) == {f".options.{name}" for name in REMOVED}
    for name in set(before) - {"options"}:
        assert after[name] == before[name], name
    changed = {name for name, value in before["options"].items() if name not in REMOVED | {"marks"}
               and after["options"][name] != value}  # fmt: skip
    assert changed == set()
    assert after["options"]["marks"] == "0"  # which version 0.1 decided without saying so


def test_every_part_of_run_json_survives_reading_and_writing(old: Path, tmp_path: Path) -> None:
    """Also those that only some runs have."""
    record = RunRecord.read(old / "run" / "run.json")
    side = CutSide("encoder", Score(0.5, 0.4, 0.6), 100, 1.5, 0.5)
    record.plan = BudgetPlan("3/2", 12.5, 7)
    record.store = FromStore("store", {"backbone": "tiny", "mark": None}, None, [0, 1], "int8")
    record.cut = Cut("run", "tiny", "1", 2, 3, side, replace(side, model="last-layer"))
    record.forced = [{"store": "other", "although": ["its states are from another encoder"]}]
    record.write(tmp_path / "run.json")
    assert RunRecord.read(tmp_path / "run.json") == record
    assert info_of(tmp_path)["cut"]["from"] == "run"
    assert "pairs" in info_of(tmp_path)["shape"]


def test_scores_json_is_the_same_after_reading_and_writing(old: Path, tmp_path: Path) -> None:
    first = Results.read(old / "run" / "scores.json")
    first.write(tmp_path / "scores.json")
    assert scores_of(tmp_path) == scores_of(old / "run")
    assert Results.read(tmp_path / "scores.json") == first
    assert first.shipped.score(first.selected.model, "accuracy", "held_out").value == first.shipped.goodness


def test_runs_of_today_are_the_same_after_reading_and_writing(pair_table: Path, tmp_path: Path) -> None:
    run = tiny_fit(pair_table, tmp_path / "run", text="one", text_pair="two", heads="last-layer", marks="0,1")
    run.record.write(tmp_path / "run.json")
    run.results.write(tmp_path / "scores.json")
    assert (info_of(tmp_path), scores_of(tmp_path)) == (info_of(run), scores_of(run))


def test_a_run_of_version_01_predicts_and_evaluates(old: Path) -> None:
    run = Run("run")
    assert run.version == 1
    assert run.record.recipe.lead == "closed-form"
    model = bertvision.load("run")
    assert model.predict("a great film")["label"] in model.classes_
    kept = run.results.last.scores["dev"]
    again = bertvision.evaluate("run").scores["dev"]
    assert again.keys() == kept.keys()
    for name, found in again.items():
        assert found["accuracy"].value == pytest.approx(kept[name]["accuracy"].value), name
    found = bertvision.compare("run", "run").difference["dev"]["accuracy"]
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_an_old_run_with_a_head_that_was_removed_still_evaluates_no_further_than_it_can(old: Path) -> None:
    """`top-2` is gone: the models that need it are refused by name, the others still answer."""

    def rename(kept: dict[str, Any]) -> None:
        kept["top-2+polish"] = kept.pop("last-layer-views+polish")

    edit(old / "run/marks/0/heads.json", rename)
    edit(old / "run/scores.json", lambda kept: [rename(kept["marks"][0][split]) for split in ("held_out", "dev")])
    with pytest.raises(UserError, match="needs the head 'top-2', which this version does not have"):
        bertvision.load("run", "top-2+polish")
    assert bertvision.load("run", "closed-form+polish").predict(["a film"])
    assert bertvision.load("run", ENCODER).predict(["a film"])


def test_what_this_version_does_not_know_is_refused(old: Path) -> None:
    path = old / "run/run.json"
    kept = path.read_text()
    edit(path, lambda kept: kept["options"].update(quantise="int4"))
    with pytest.raises(UserError, match=r"options that this version does not know \(quantise\). Update bertvision"):
        bertvision.load("run")
    path.write_text(kept)
    edit(path, lambda kept: kept.update(schema=SCHEMA + 1))
    with pytest.raises(UserError, match=f"has schema {SCHEMA + 1}; this version reads up to {SCHEMA}"):
        bertvision.load("run")
    path.write_text(kept[:100])
    with pytest.raises(UserError, match=r"run\.json' cannot be read"):
        bertvision.load("run")


def test_an_unknown_option_of_the_present_schema_is_refused_as_well(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", epochs=0)
    edit(run.path / "run.json", lambda kept: kept["options"].update(quantise="int4"))
    with pytest.raises(UserError, match=r"does not know \(quantise\)"):
        _ = run.record


def test_an_unfinished_run_of_version_01_cannot_be_resumed(old: Path) -> None:
    (old / "run").rename(old / "run.partial")
    with pytest.raises(UserError, match=r"'run.partial' was begun by version 0.1. Remove it and start again"):
        tiny_fit("reviews.csv", Path("run"), heads="last-layer-views,closed-form", resume=True)


def test_a_store_of_version_01_opens_and_heads_train_on_it(old: Path, tmp_path: Path) -> None:
    store = bertvision.open_store("store")
    assert (len(store), store.layers, store.features) == (40, 4, 32)
    batch = next(iter(store.batches(8, seed=0)))
    assert batch.hidden.shape == (8, 4, 2, 32)
    run = bertvision.train("store", heads="last-layer-views,closed-form", out=tmp_path / "run", quiet=True)
    assert run.record.store is not None
    assert run.record.weights_sha256 == Run("run").record.weights_sha256
    assert run.model("closed-form").predict("a great film")["label"] in ("neg", "pos")


def test_an_old_store_that_keeps_a_pca_or_has_another_schema_is_refused(old: Path) -> None:
    path = old / "store/manifest.json"
    edit(path, lambda kept: kept["header"].update(components=16))
    with pytest.raises(UserError, match=r"holds a PCA of its states, which this version cannot read: extract it"):
        bertvision.open_store("store")
    edit(path, lambda kept: kept["header"].update(components=None, schema=9))
    with pytest.raises(UserError, match="has schema 9; this version of bertvision reads schema 1"):
        bertvision.open_store("store")


def test_what_the_first_runs_did_not_say_is_what_they_did(old: Path) -> None:
    """Before there were leads and a choice of dropout: the output layer alone, with dropout, nothing frozen."""
    kept = info_of(old / "run")["options"]
    for name in ("lead", "dropout", "freeze", "polish_until", "budget", "polish_from"):
        del kept[name]
    recipe = migrated(kept)
    assert (recipe.lead, recipe.dropout, recipe.freeze, recipe.polish_until) == (OWN, True, "none", "all")


def test_names_of_models_are_read_and_written() -> None:
    for text in ("encoder", "ensemble-max", "adapter-64", "adapter-64:lr=1e-3:seed=2+polish"):
        assert str(ModelName.parse(text)) == text
    name = ModelName.parse("adapter-64:lr=1e-3:layers=0-1+3:seed=2+polish")
    assert (name.polished, name.ensemble, name.variant.seed) == (True, False, 2)
    assert str(name.without("seed", "lr")) == "adapter-64:layers=0-1+3+polish"
    assert name.by_layer([0.1, 0.2, 0.7]) == {0: 0.1, 1: 0.2, 3: 0.7}
    assert ModelName.parse("ensemble-greedy").ensemble


# How a request becomes a recipe.

LEADS = ["closed-form", "closed-form-adapter"]


def facts(kind: str = "class", heads: bool = True, examples: int = 10_000, features: int = 768) -> Facts:
    span = kind == "span"
    return Facts(kind, span, features, examples, ["last-layer"] if heads else [], [] if span else LEADS)


def test_every_open_value_is_decided() -> None:
    for kind, budget, heads, freeze in product(("class", "score", "span"), (None, 5.0), (True, False), (None, "all")):
        request = Request(budget=budget, freeze=freeze)
        recipe = resolve(request, facts(kind, heads))
        case = (kind, budget, heads, freeze)
        assert {name for name in DECIDED if getattr(recipe, name) is None} == set(), case
        same = [f.name for f in fields(Request) if f.name not in DECIDED]
        assert [getattr(recipe, name) for name in same] == [getattr(request, name) for name in same], case
        led = kind != "span" and heads and freeze is None
        assert recipe.lead == ("closed-form" if led else OWN), case
        assert recipe.freeze == (freeze or ("embeddings" if led else "none")), case
        assert recipe.max_length == (386 if kind == "span" else 256), case
        assert recipe.polish == (2 if kind == "span" else 8), case
        until = "3/10" if led else "0" if kind == "span" and budget else "all"
        assert recipe.polish_until == until, case
        assert recipe.marks == ("0,1" if led or budget else "0,3/10,1"), case


def test_decisions_depend_on_the_amount_of_data_and_the_width_of_the_encoder() -> None:
    small, large = resolve(Request(), facts(examples=3999, features=384)), resolve(Request(), facts(examples=4000))
    assert (small.batch_size, large.batch_size) == (8, 16)
    assert (small.lr, large.lr) == (1e-4, 3e-5)


def test_what_was_asked_for_is_never_decided_otherwise() -> None:
    given = {
        "lead": "closed-form-adapter", "marks": "0,1/2", "freeze": "2", "batch_size": 5, "lr": 7e-5, "max_length": 99,
        "polish": 3, "polish_until": "1/5", "folds": "2/3", "long": "windows",
    }  # fmt: skip
    assert set(given) == set(DECIDED)
    recipe = resolve(Request(**given), facts())
    assert {name: getattr(recipe, name) for name in DECIDED} == given
    assert resolve(Request(polish=3), facts()).polish_until == "all"  # who asks for polish gets it at every mark


def test_a_recipe_is_resolved_already() -> None:
    recipe = resolve(Request(seed=3), facts())
    assert resolve(recipe, facts("span", heads=False)) is recipe


def test_reopening_leaves_open_exactly_what_can_be_decided() -> None:
    recipe = resolve(Request(seed=3, heads="last-layer", epochs="2"), facts())
    request = reopened(recipe)
    assert not isinstance(request, Recipe)
    assert {f.name for f in fields(Request) if getattr(request, f.name) != getattr(recipe, f.name)} == set(DECIDED)
    assert all(getattr(request, name) is None for name in DECIDED)
    assert resolve(request, facts()) == recipe


def test_contradictions_are_refused() -> None:
    for request, message in (
        (Request(budget=1.0, epochs="2"), "--budget sets --epochs and --marks: leave these out"),
        (Request(budget=1.0, marks="0,1"), "--budget sets --epochs and --marks: leave these out"),
        (Request(lead="adapter-64"), "--lead must be one of own, closed-form, closed-form-adapter; got 'adapter-64'"),
    ):
        with pytest.raises(UserError, match=message):
            resolve(request, facts())
    with pytest.raises(UserError, match="--lead must be one of own; got 'closed-form'"):
        resolve(Request(lead="closed-form"), facts("span"))


def test_differences_name_the_flags_and_both_values() -> None:
    one = Request(train="a.csv", out="here")
    assert differences(one, replace(one, out="there")) == []
    assert differences(one, replace(one, seed=5, max_length=64)) == ["--max-length None -> 64", "--seed 0 -> 5"]
    assert differences(one, replace(one, seed=5), ignoring=("seed",)) == []
    assert differences(one, replace(one, out="there"), ignoring=()) == ["--out here -> there"]
