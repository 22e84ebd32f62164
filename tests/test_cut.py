"""A cut encoder is the bottom of the old one, with heads of its own, in a run like any other; and every run's card."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command, sentences, write_csv
from huggingface_hub import ModelCard

import bertvision
from bertvision.backbones import licence
from bertvision.backbones.encoder import load
from bertvision.backbones.tokenise import tokenise
from bertvision.errors import UserError
from bertvision.recipe import Recipe
from bertvision.runs.directory import Run
from bertvision.types import Examples


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    write_csv(folder / "train.csv", ("text", "label"), sentences(120))
    return bertvision.fit(
        "table", train=folder / "train.csv", out=folder / "run", backbone="tiny", polish=2, marks="0,1", quiet=True,
        heads="learned-pooling-views,closed-form",
    )  # fmt: skip


def test_a_cut_encoder_says_what_the_bottom_of_the_old_one_said(run: Run, tmp_path: Path) -> None:
    made = bertvision.cut(run.path, 2, out=tmp_path / "cut", quiet=True)
    found = made.record.cut
    assert found is not None
    assert (found.origin, found.backbone, found.layers, found.of) == (str(run.path), "tiny", 2, 3)
    assert found.after.encoder_parameters < found.before.encoder_parameters
    assert found.before.milliseconds_alone > 0
    assert found.after.milliseconds_alone > 0
    assert found.before.score == run.results.shipped.score(run.results.selected.model, "accuracy")
    assert found.after.score == made.results.shipped.score(made.results.selected.model, "accuracy")
    old = load(str(run.mark_folder(found.mark) / "encoder"), 2, 0).eval()
    new = load(str(made.path / "marks/0/encoder"), 2, 0).eval()
    assert new.layers == 3  # the embedding output and two layers
    examples = Examples(["a great film", "sad music and a slow car"], None, None)
    with torch.no_grad():
        states = []
        for encoder in (old, new):
            windows = tokenise(encoder, examples, Recipe(max_length=64), False).together
            states.append(encoder(encoder.batch(windows, np.arange(len(windows))).inputs)[1])
    for one, other in zip(states[0][:3], states[1], strict=True):
        torch.testing.assert_close(one, other)
    assert bertvision.load(made.path).predict(["a great film"])[0]["label"] in ("pos", "neg")
    assert (
        "The encoder `tiny`, its first 2 layers, not fine-tuned, with small heads"
        in (made.path / "README.md").read_text()
    )
    assert not (run.path / "cuts").exists()
    encoder = str(made.path / "marks/0/encoder")  # not in the old run
    assert (made.record.recipe.backbone, made.record.request.backbone) == (encoder, encoder)
    assert made.record.request.polish == 2  # as the run was asked for


def test_a_cut_of_a_cut_names_the_first_backbone(run: Run, tmp_path: Path) -> None:
    once = bertvision.cut(run.path, 2, out=tmp_path / "once", quiet=True)
    twice = bertvision.cut(once.path, 1, out=tmp_path / "twice", quiet=True).record.cut
    assert twice is not None
    assert (twice.origin, twice.backbone, twice.layers, twice.of) == (str(once.path), "tiny", 1, 2)


def test_heads_are_trained_even_if_the_run_polished_none(run: Run, tmp_path: Path) -> None:
    train = run.record.request.train
    plain = bertvision.fit(
        "table", train=train, out=tmp_path / "plain", backbone="tiny", heads="adapter-64", polish=0, freeze="3",
        marks="1", quiet=True,
    )  # fmt: skip
    made = bertvision.cut(plain.path, 1, out=tmp_path / "cut", quiet=True)
    assert made.results.last.best_head == "adapter-64+polish"
    assert made.record.recipe.freeze != "3"


def test_without_a_number_the_tolerance_decides(run: Run, tmp_path: Path, command: Command) -> None:
    code, out, err = command("cut", run.path, "--tolerance", 100, "--out", tmp_path / "least", "--json")
    assert code == 0, err
    assert json.loads(out)["layers"] == 1  # everything is within a hundred points
    code, out, err = command("cut", run.path, "--layers", 1, "--heads", "closed-form", "--out", tmp_path / "other")
    assert code == 0, err
    assert "1 of 3 layers kept" in out


def test_a_run_without_heads_gets_some(run: Run, tmp_path: Path) -> None:
    train = run.record.request.train
    plain = bertvision.fit(
        "table", train=train, out=tmp_path / "plain", backbone="tiny", heads="none", marks="1", quiet=True
    )
    assert "in the head" not in (plain.path / "README.md").read_text()
    made = bertvision.cut(plain.path, 1, out=tmp_path / "cut", quiet=True)
    assert made.results.at("0").best_head


def test_changed_data_and_stores_are_refused_before_anything_is_made(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("analysis"))
    record = run.record
    write_csv(tmp_path / "other.csv", ("text", "label"), sentences(120, seed=9))
    record.recipe = replace(record.recipe, train=str(tmp_path / "other.csv"))
    record.write(tmp_path / "copy" / "run.json")
    for call in (lambda: bertvision.cut(tmp_path / "copy", 1, out=tmp_path / "cut", quiet=True),
                 lambda: bertvision.analyse(tmp_path / "copy", ["depth"])):  # fmt: skip
        with pytest.raises(UserError, match="has changed since"):
            call()
    assert not (tmp_path / "cut").exists()
    assert not (tmp_path / "copy" / "cuts").exists()


def test_what_cannot_be_cut_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this encoder has 3"):
        bertvision.cut(run.path, 3, out=tmp_path / "whole", quiet=True)
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="exists already"):
        bertvision.cut(run.path, 1, out=tmp_path / "there", quiet=True)
    with pytest.raises(UserError, match="layers"):
        bertvision.cut(run.path, 1, heads="adapter-64:layers=0-2", out=tmp_path / "whole", quiet=True)
    with pytest.raises(UserError, match="--epochs must be a number or a fraction such as 3/10; got 'much'"):
        bertvision.cut(run.path, 1, epochs="much", out=tmp_path / "whole", quiet=True)
    with pytest.raises(UserError, match="--tolerance must not be negative; got -1"):
        bertvision.cut(run.path, tolerance=-1, out=tmp_path / "whole", quiet=True)
    assert not (tmp_path / "whole").exists()
    assert not (run.path / "cuts").exists()


def test_every_run_has_a_card_with_what_was_measured(run: Run) -> None:
    text = (run.path / "README.md").read_text()
    (result,) = ModelCard.load(run.path / "README.md").data.eval_results
    score = run.results.shipped.score(run.results.selected.model, "accuracy")
    assert (result.metric_type, result.metric_value) == ("accuracy", round(score.value, 4))
    assert f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]" in text
    assert "## Layers" in text
    assert "## Cost" in text
    assert "its files do not say which" in text  # tiny has no licence
    assert run.record.command in text


def test_the_licence_is_what_the_encoders_own_card_says(tmp_path: Path) -> None:
    assert licence("minilm-l6") == "apache-2.0"
    assert licence(str(tmp_path)) is None
    (tmp_path / "README.md").write_text("---\ntags: [x]\nlicense: mit\n---\n# An encoder\n")
    assert licence(str(tmp_path)) == "mit"
