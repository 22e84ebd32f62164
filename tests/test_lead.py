"""The lead: a head through which the encoder is fine-tuned, from its solution in closed form on."""

from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command, scores_of
from conftest import tiny_fit as fit_tiny
from safetensors.torch import load_file

import bertvision
from bertvision import show
from bertvision.heads import heads
from bertvision.heads.base import Head, Rows, Shape
from bertvision.heads.variants import build
from bertvision.options import Request
from bertvision.prepare import Prepared, prepare
from bertvision.progress import Progress
from bertvision.runs.directory import Run
from bertvision.states.hidden import HiddenStates
from bertvision.training import lead
from bertvision.training.deadline import Clock, Watch
from bertvision.training.lead import lead_of, start
from bertvision.training.polish import supplied

tiny_fit = partial(fit_tiny, heads="last-layer")


def ready(table: Path, **options: object) -> Prepared:
    given = {"task": "table", "train": str(table), "backbone": "tiny"} | options
    return prepare(Request(**given), Progress(quiet=True))


def dev_texts(table: Path) -> list[str]:
    return ready(table).parts["dev"].texts


def weights(run: Run, mark: str = "1") -> dict[str, torch.Tensor]:
    return load_file(run.mark_folder(mark) / "encoder" / "model.safetensors")


def test_it_starts_where_closed_form_puts_it(table: Path, tmp_path: Path) -> None:
    setting = ready(table)
    found = lead_of(setting)
    start(found["closed-form"], setting)
    solved = build(["closed-form"], setting.shape, 0)
    with supplied(setting, "joint", solved, "0", tmp_path, Watch(Clock.start()).turn("states")) as supply:
        states = supply.source.states
        solved["closed-form"].solve(lambda: [Rows(states, setting.train_targets())], "class")
    assert isinstance(states, HiddenStates)
    with torch.no_grad():
        ours, theirs = (heads["closed-form"].eval()(states) for heads in (found, solved))
    assert ours.abs().max() > 0.1  # it is solved, not zero
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_a_sample_of_the_windows_is_enough(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = ready(table)
    monkeypatch.setattr(lead, "MOST", 40)
    seen: list[int] = []
    found = lead_of(setting)["closed-form"]
    monkeypatch.setattr(found, "solve", lambda batches, kind: seen.extend(len(rows.targets) for rows in batches()))
    start(found, setting)
    assert sum(seen) == 40


def test_gradients_reach_every_layer_but_the_embeddings_at_once(table: Path, tmp_path: Path) -> None:
    """The output layer alone is new: with it the pooler's input decides; the lead reads all layers."""
    run = tiny_fit(table, tmp_path / "run", marks="0,1")
    before, after = weights(run, "0"), weights(run)
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert same == {key for key in before if ".embeddings." in key}
    assert (run.record.recipe.lead, run.record.recipe.freeze) == ("closed-form", "embeddings")
    assert (run.record.request.lead, run.record.request.freeze) == (None, None)


def test_it_answers_at_every_mark_after_the_first_step_and_is_kept(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", marks="0,1")
    first, last = run.results.marks
    assert "closed-form" not in first.models
    kept = run.predictions("1")["dev"].outputs["closed-form"]
    loaded = bertvision.load(f"{run.path}@1", "closed-form")
    found = [[said["probabilities"][label] for label in ("neg", "pos")] for said in loaded.predict(dev_texts(table))]
    np.testing.assert_allclose(found, kept, atol=1e-5)
    assert "closed-form" in last.scores["dev"]
    assert run.record.parameters["closed-form"] > 0


def test_the_first_mark_gives_the_start_along(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where heads are polished at 0 and the lead is among them, nothing is read twice."""
    calls = []
    monkeypatch.setattr(lead, "start", lambda *given: calls.append(given))
    tiny_fit(table, tmp_path / "with", heads="last-layer,closed-form", marks="0,1")
    assert not calls
    tiny_fit(table, tmp_path / "without", marks="0,1")
    assert len(calls) == 1


@pytest.mark.parametrize("heads", ["last-layer", "last-layer,closed-form"])
def test_resumed_is_as_if_never_interrupted(
    heads: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertvision.training import marks

    whole = tiny_fit(table, tmp_path / "whole", heads=heads, marks="0,1/2,1")
    answers_at = marks.answers_at

    def crash(setting: Prepared, ridden: dict[str, Head], mark: str, *given: object) -> marks.Answers:
        if mark == "1/2":
            raise RuntimeError("power cut")
        return answers_at(setting, ridden, mark, *given)

    with monkeypatch.context() as patched:
        patched.setattr(marks, "answers_at", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            tiny_fit(table, tmp_path / "cut", heads=heads, marks="0,1/2,1")
    resumed = tiny_fit(table, tmp_path / "cut", heads=heads, marks="0,1/2,1", resume=True)
    one, other = weights(whole), weights(resumed)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_registry_knows_which_heads_have_a_closed_form() -> None:
    shape = Shape(3, 16, 2, paired=True, pooled=False)
    able = {name: recipe for name in heads if (recipe := heads[name]).fits(shape) and not name.startswith("xception")}
    assert {name for name in able if able[name].solved} == {n for n in able if able[n].build(shape).solved}


def test_own_is_the_output_layer_alone(table: Path, tmp_path: Path) -> None:
    """As without heads, where there is no lead: bit by bit."""
    alone = weights(tiny_fit(table, tmp_path / "none", heads="none", marks="1"))
    own = weights(tiny_fit(table, tmp_path / "own", lead="own", marks="1"))
    assert all(torch.equal(alone[key], own[key]) for key in alone)


def test_spans_and_frozen_encoders_have_none(table: Path) -> None:
    assert ready(table, freeze="all").recipe.lead == "own"
    assert not lead_of(ready(table, epochs="0"))
    assert ready(table, heads="none").recipe.freeze == "none"


def test_bad_leads_are_refused_before_anything_is_written(table: Path, tmp_path: Path, command: Command) -> None:
    for given in ("adapter-64", "closed-form:data=10", "closed-from"):
        code, _, err = command("fit", table, "--backbone", "tiny", "--lead", given, "--out", tmp_path / "run")
        assert code == 1, given
        assert f"--lead must be one of own, closed-form, closed-form-adapter, embedding; got '{given}'." in err
        assert not list(tmp_path.glob("run*"))


def test_a_store_still_tells_how_good_each_layer_is_and_a_lead_does_not(table: Path, tmp_path: Path) -> None:
    """What a lead knows of the layers is of the encoder before it was fine-tuned."""
    run = tiny_fit(table, tmp_path / "run", heads="last-layer,closed-form", polish=None, marks="0,1")
    first, last = scores_of(run)["marks"]
    assert set(first["layer_profiles"]) == {"closed-form+polish"}
    assert "layer_profiles" not in last
    bertvision.extract("tiny", "table", out=tmp_path / "store", quiet=True, train=table)
    stored = bertvision.train(tmp_path / "store", heads="closed-form", out=tmp_path / "stored", quiet=True)
    assert set(stored.results.last.layer_profiles) == {"closed-form"}


def test_the_table_of_a_run_shows_heads_of_every_mark(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show.run(tiny_fit(table, tmp_path / "run", polish=None, marks="0,1"))
    assert "last-layer+polish" in capsys.readouterr().out


def test_with_a_lead_nobody_stops_at_three_tenths_of_an_epoch_unless_asked(table: Path) -> None:
    """So little fine-tuning leaves it below its start."""
    assert ready(table, epochs="2").recipe.fractions() == [0, 1, 2]
    assert ready(table, epochs="3/10").recipe.fractions() == [0, Fraction(3, 10)]
    assert ready(table, lead="own").recipe.fractions() == [0, Fraction(3, 10), 1]
    assert ready(table, lead="own", epochs="0").recipe.fractions() == [0]
    assert ready(table, lead="own", marks="1").recipe.fractions() == [1]
