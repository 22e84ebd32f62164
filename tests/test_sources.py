"""Training from stores, and where the states of a resting encoder come from: memory, a store, or the encoder again."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from tests.test_stores import INVENTED, extracted, windows_of

import bertvision
from bertvision.backbones import encoder as backbones
from bertvision.errors import UserError
from bertvision.heads.base import Shape


@pytest.mark.parametrize("options", [{}, {"layers": "1-3"}, {"views": "tokens"}, {"views": "tokens", "layers": "2+3"}])
def test_a_run_from_a_store_answers_texts_as_it_answered_the_store(
    options: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    extracted(table, tmp_path / "store", **options)
    heads = "adapter-64-views,closed-form,adapter-64:layers=1" + ",token-attention" * ("views" in options)
    run = bertvision.train(tmp_path / "store", heads=heads, epochs=2, out=tmp_path / "run", quiet=True)
    kept = run.scores["marks"][0]
    again = bertvision.evaluate(tmp_path / "run")
    for name, found in kept["dev"].items():
        assert again["dev"][name]["accuracy"] == pytest.approx(found["accuracy"]), name
    assert run.info["store"]["source"]["weights_sha256"] == run.info["weights_sha256"]
    assert kept["dev"]["closed-form"]["accuracy"]["value"] > 0.9


def test_pairs_read_separately_and_scores_are_stored_too(pair_table: Path, tmp_path: Path) -> None:
    for pairs in ("joint", "separate"):
        store = bertvision.extract(
            "tiny", "table", train=str(pair_table), text="one", text_pair="two", pairs=pairs, dtype="fp32",
            out=tmp_path / pairs, quiet=True,
        )  # fmt: skip
        assert store is not None
        run = bertvision.train(
            tmp_path / pairs, heads="cosines,learned-pooling-views", out=tmp_path / f"run-{pairs}", quiet=True
        )
        again = bertvision.evaluate(tmp_path / f"run-{pairs}")
        for name, found in run.scores["marks"][0]["dev"].items():
            assert again["dev"][name]["pearson"] == pytest.approx(found["pearson"], abs=1e-4), name


def test_questions_from_a_fine_tuned_run_are_stored_trained_on_and_evaluated_across_marks(tmp_path: Path) -> None:
    run = bertvision.fit(
        "squad2-invented",
        backbone="tiny",
        heads="adapter-64",
        marks="1/2,1",
        out=tmp_path / "run",
        quiet=True,
        **INVENTED,
    )
    for mark in ("1/2", "1"):
        store = bertvision.extract(
            f"{run.path}@{mark}", "squad2-invented", out=tmp_path / mark.replace("/", "-"), dtype="fp32", quiet=True
        )
        assert store is not None
        assert store.header.source["mark"] == mark
    trained = bertvision.train(
        tmp_path / "1-2", heads="adapter-64,adapter-64-ngram", out=tmp_path / "early", quiet=True
    )
    entry = trained.scores["marks"][0]
    assert entry["epoch"] == "1/2"
    # The encoder's own answers are in the store, and the same as in the run.
    assert entry["dev"]["encoder"] == run.mark("1/2")["dev"]["encoder"]
    from bertvision.inference.evaluate import evaluate_on_store
    from bertvision.progress import Progress

    own = evaluate_on_store(tmp_path / "early", bertvision.open_store(tmp_path / "1-2"), False, Progress(quiet=True))
    assert own["dev"]["adapter-64"] == entry["dev"]["adapter-64"]
    later = evaluate_on_store(tmp_path / "early", bertvision.open_store(tmp_path / "1"), False, Progress(quiet=True))
    assert later["store_mark"] == "1"
    assert later["dev"]["encoder"] == run.mark("1")["dev"]["encoder"]
    answers = bertvision.load(tmp_path / "early").predict(["Who built it?"], ["The red house was built by a dog."])
    assert "alternatives" in answers[0]


def test_a_store_without_dev_is_trained_and_shown_by_what_was_held_out(
    table: Path, tmp_path: Path, command: Command
) -> None:
    extracted(table, tmp_path / "store", split="train")
    code, out, _ = command("train", tmp_path / "store", "--heads", "adapter-64-views", "--out", tmp_path / "run")
    assert code == 0
    assert "held-out accuracy" in out
    assert command("league", tmp_path / "run")[0] == 0
    code, out, _ = command("evaluate", tmp_path / "run", "--store", tmp_path / "store")
    assert code == 0
    assert "held-out" in out


def test_what_a_killed_command_left_is_not_said_to_be_resumable(table: Path, tmp_path: Path) -> None:
    extracted(table, tmp_path / "store")
    (tmp_path / "run.partial").mkdir()
    with pytest.raises(UserError, match="was killed: remove it"):
        bertvision.train(tmp_path / "store", heads="adapter-64-views", out=tmp_path / "run", quiet=True)


def test_heads_are_left_out_whose_views_are_not_there(pair_table: Path, tmp_path: Path) -> None:
    options = {"train": str(pair_table), "text": "one", "text_pair": "two", "dtype": "fp32", "quiet": True}
    bertvision.extract("tiny", "table", views="first,second", out=tmp_path / "pair", **options)
    run = bertvision.train(
        tmp_path / "pair", heads=["cosines", "adapter-64", "closed-form", "top-1"], out=tmp_path / "run", quiet=True
    )
    assert list(run.info["parameters"]) == ["cosines"]
    bertvision.extract("tiny", "table", views="cls,first", out=tmp_path / "half", **options)
    with pytest.raises(UserError, match="has not what cosines read"):
        bertvision.train(tmp_path / "half", heads="cosines", out=tmp_path / "none", quiet=True)


def test_heads_that_read_pairs_separately_are_not_asked_on_joint_states(pair_table: Path, tmp_path: Path) -> None:
    from bertvision.inference.evaluate import evaluate_on_store
    from bertvision.progress import Progress

    options = {"train": str(pair_table), "text": "one", "text_pair": "two", "quiet": True}
    run = bertvision.fit(
        "table", backbone="tiny", heads="cosines", pairs="separate", epochs=0, out=tmp_path / "run", **options
    )
    for pairs in ("joint", "separate"):
        bertvision.extract(f"{run.path}@0", "table", pairs=pairs, dtype="fp32", out=tmp_path / pairs, quiet=True)
    joint, separate = (
        evaluate_on_store(run.path, bertvision.open_store(tmp_path / pairs), False, Progress(quiet=True))
        for pairs in ("joint", "separate")
    )
    assert "cosines+polish" not in joint["dev"]
    expected = run.mark("0")["dev"]["cosines+polish"]["pearson"]
    assert separate["dev"]["cosines+polish"]["pearson"] == pytest.approx(expected, abs=1e-4)


def test_other_rows_than_the_run_was_fine_tuned_on_are_refused(table: Path, tmp_path: Path) -> None:
    run = bertvision.fit(
        "table", train=table, backbone="tiny", heads="none", limit=60, out=tmp_path / "run", quiet=True
    )
    with pytest.raises(UserError, match="what it was fine-tuned on must not be held out"):
        bertvision.extract(run.path, "table", limit=80, out=tmp_path / "store", quiet=True)
    assert not (tmp_path / "store").exists()


def test_another_encoder_is_refused_unless_forced(table: Path, tmp_path: Path) -> None:
    from bertvision.inference.evaluate import evaluate_on_store
    from bertvision.progress import Progress

    run = bertvision.fit(
        "table", train=str(table), backbone="tiny", heads="adapter-64", epochs=1, out=tmp_path / "run", quiet=True
    )
    other = backbones.load("tiny", 2, 0)
    other.model.base_model.embeddings.word_embeddings.weight.data *= 2
    other.save(tmp_path / "other")
    bertvision.extract(
        str(tmp_path / "other"), "table", train=str(table), dtype="fp32", out=tmp_path / "store", quiet=True
    )
    store = bertvision.open_store(tmp_path / "store")
    with pytest.raises(UserError, match=r"states are of another encoder \(other\). --force tries it"):
        evaluate_on_store(run.path, store, False, Progress(quiet=True))
    evaluate_on_store(run.path, store, True, Progress(quiet=True))
    assert "another encoder" in run.info["forced"][0]["although"][0]


HEADS = "closed-form,token-attention,top-1,adapter-64-views,adapter-64:layers=0-2"


def test_wherever_states_come_from_heads_learn_the_same(table: Path, tmp_path: Path) -> None:
    answers = {}
    for mode in ("memory", "recompute", "stored"):
        run = bertvision.fit(
            "table", train=str(table), backbone="tiny", heads=HEADS, epochs=0, polish=25, head_lr=1e-2, mode=mode,
            out=tmp_path / mode, quiet=True,
        )  # fmt: skip
        entry = run.scores["marks"][0]
        assert entry["modes"]["joint"] in {"stored": ("fp16", "int8")}.get(mode, (mode,))
        assert set(entry["pairs"]) == {f"{name}+polish" for name in HEADS.split(",")}
        for name in ("closed-form", "token-attention", "adapter-64-views"):  # [CLS] of a random encoder says little
            assert entry["held_out"][f"{name}+polish"]["accuracy"]["value"] > 0.7, (mode, name)
        answers[mode] = run.predictions("0")["dev"]["outputs"]["closed-form+polish"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "recompute", "reviews.csv", "stored"]
    assert np.allclose(
        answers["memory"], answers["recompute"], atol=0.02
    )  # the order of sums, and of the stack's steps
    assert np.allclose(answers["memory"], answers["stored"], atol=0.1)


def test_layers_that_no_head_reads_are_not_computed(table: Path) -> None:
    encoder = backbones.load("tiny", 2, 0).eval()
    from bertvision.types import Examples

    batch = encoder.batch(encoder.encode(Examples(["a good film"], None, None), 16), np.array([0]))
    whole = encoder(batch.inputs)[1]
    with encoder.up_to(1):
        first = encoder(batch.inputs)[1]
    assert len(first) == 2
    assert torch.equal(first[1], whole[1])
    assert len(encoder(batch.inputs)[1]) == 4


def test_the_planner_chooses_what_is_fastest_and_possible() -> None:
    from bertvision.training.planner import Rates, Work, choose, estimates

    work = Work(windows=100_000, tokens=17_000_000, epochs=4, shape=Shape(7, 384, 2, True, False, True))
    rates = Rates(
        flops=1e11, heads=500, read=1e8, write=1e8, decode={"fp16": 3e9, "int8": 1e9}, memory=20 * 10**9, disk=10**12
    )
    assert choose(estimates(work, rates), "auto").mode == "int8"  # a slow encoder: never twice
    assert choose(estimates(work, replace(rates, flops=1e14)), "auto").mode == "recompute"  # a fast one: no disk
    assert choose(estimates(replace(work, windows=1000, tokens=170_000), rates), "auto").mode == "memory"
    # Texts whose heads read every token are kept in memory as far as these are, and not left out.
    texts = replace(work, tokens=10_000_000, sequences=2, shape=replace(work.shape, span=False))
    roomy = replace(rates, memory=64 * 10**9)
    assert choose(estimates(texts, roomy), "auto").mode != "memory"
    assert choose(estimates(replace(texts, tokens=1_000_000), roomy), "auto").mode == "memory"
    little = replace(rates, disk=10**9)
    assert choose(estimates(work, little), "auto").mode == "recompute"
    with pytest.raises(UserError, match=r"--mode stored cannot be done here \(fp16: .* only 1.0 GB of disk"):
        choose(estimates(work, little), "stored")


def test_the_plan_is_printed_for_this_machine_and_for_another(table: Path, command: Command) -> None:
    code, out, _ = command("plan", "table", "--train", table, "--backbone", "tiny", "--heads", "adapter-64")
    assert code == 0
    assert "recompute" in out
    large = ("--layers", 24, "--features", 1024, "--flops", 5e13, "--disk-rate", 2e9, "--json")
    code, out, _ = command("plan", "table", "--train", table, "--backbone", "tiny", "--heads", "adapter-64", *large)
    assert code == 0
    assert json.loads(out)["best"] in ("memory", "recompute")


@pytest.mark.parametrize("tokens", [False, True])
def test_states_of_the_original_project_are_imported(tokens: bool, tmp_path: Path, command: Command) -> None:
    import h5py

    draw = np.random.default_rng(0)
    labels = np.arange(80) % 2
    states = draw.normal(size=(80, 6, 8, 3)).astype("f4")
    states[:, :, 2, 1] += 6 * (2 * labels[:, None] - 1)
    mask = np.arange(6)[None] < draw.integers(2, 7, (80, 1))
    with h5py.File(tmp_path / "old.h5", "w") as file:
        file["hidden_states"] = states * mask[..., None, None] if tokens else states[:, 0]
        file["labels"] = labels
    line = ("store", "import", tmp_path / "old.h5", "--kind", "class", "--out", tmp_path / "store", "--dtype", "fp32")
    assert command(*line)[0] == 0
    store = bertvision.open_store(tmp_path / "store")
    found = windows_of(store)
    for row, ((_, name), values) in enumerate(found.items()):
        if row % 9 == 0:
            kept = states[int(name)][mask[int(name)]] if tokens else states[int(name), :1]
            assert np.allclose(values.numpy(), kept.transpose(2, 0, 1))
    run = bertvision.train(tmp_path / "store", heads="closed-form,adapter-64", out=tmp_path / "run", quiet=True)
    best = "closed-form" if tokens else "adapter-64"
    assert run.scores["marks"][0]["held_out"][best]["accuracy"]["value"] > 0.9 or not tokens
    assert "| encoder |" not in (run.path / "README.md").read_text()  # nobody asked it
    assert "is not known" in bertvision.report(run.path, out=tmp_path / "report.md").read_text()
    damaged = next((tmp_path / "store").glob("held_out*.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    code, _, error = command("store", "verify", tmp_path / "store")
    assert code == 1
    mending = shlex.split(error.partition("This rewrites just that: bertvision ")[2])
    assert command(*mending)[0] == 0
    assert command("store", "verify", tmp_path / "store")[0] == 0
    code, _, error = command("predict", tmp_path / "run", "a text")
    assert code == 1
    assert "whose encoder is not known" in error
    code, _, error = command(*line[:-2], "--states", "nothing")
    assert "has no dataset 'nothing': it has hidden_states, labels" in error
