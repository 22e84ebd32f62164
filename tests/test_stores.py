"""Stores: what is written is what the encoder said, whole whatever happens, and enough to train on."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import Command, sentences, write_csv

import bertvision
from bertvision.backbones import encoder as backbones
from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.stores.codec import Int8, codec, restored
from bertvision.stores.place import Place
from bertvision.stores.reader import Store
from bertvision.training import extract as extraction

INVENTED = {"limit": 40, "dev_limit": 20}


def extracted(table: Path, out: Path | str, **options: Any) -> Store:
    options = {"dtype": "fp32", "quiet": True} | options
    store = bertvision.extract("tiny", "table", train=str(table), out=out, **options)
    assert store is not None
    return store


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def windows_of(store: Store, **how: Any) -> dict[tuple[str, str], torch.Tensor]:
    """(split, id) -> states (L, T, D) without padding."""
    found = {}
    for batch in store.batches(7, **how):
        for i, name in enumerate(batch.ids):
            assert (batch.hidden[i][:, ~batch.mask[i]] == 0).all()
            found[store.rows.split[batch.rows[i]], name] = batch.hidden[i][:, batch.mask[i]]
    return found


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("components", [None, 6])
def test_codecs_keep_outliers_and_their_neighbours(dtype: str, components: int | None) -> None:
    draw = torch.Generator().manual_seed(0)
    basis = torch.randn(3, 5, 16, generator=draw)
    states = torch.einsum("nlc,lcd->nld", torch.randn(200, 3, 5, generator=draw), basis)
    states[..., 3] += 90  # a feature that is large in every token, as encoders have them
    states[7] *= 4  # and a token that is large as a whole
    made = codec(dtype, components, states)
    again = restored(dtype, components, made.constants).decode(made.encode(states))
    allowed = {"fp32": 1e-4, "fp16": 1e-3, "bf16": 1e-2, "int8": 1e-2}[dtype]
    others = [0, 1, 2, *range(4, 16)]
    assert (again - states)[..., others].abs().mean() < allowed * states[..., others].abs().mean()
    assert (again - states)[..., 3].abs().mean() < allowed * states[..., 3].abs().mean()


def test_int8_scales_beat_one_scale_per_row_or_per_feature() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(500, 2, 32, generator=draw) * torch.logspace(-1, 2, 32)
    states[::50] *= 6

    def error(found: torch.Tensor) -> float:
        return float((((found - states) / states.std(0)) ** 2).mean())

    ours = Int8.fitted(states[:200])
    row = states.abs().amax(-1, keepdim=True) / 127
    feature = states[:200].abs().amax(0) / 127
    both = [(states / scale).round().clamp(-127, 127) * scale for scale in (row, feature)]
    assert error(ours.decode(ours.encode(states))) < min(error(found) for found in both)


def test_a_store_holds_what_the_encoder_says(table: Path, tmp_path: Path) -> None:
    store = extracted(table, tmp_path / "store", views="tokens", layers="0+2-3")
    assert len(store) == 120
    texts = dict(zip(range(120), [text for text, _ in sentences(120)], strict=True))
    encoder = backbones.load("tiny", 2, 0).eval()
    found = windows_of(store, seed=3)
    assert len(found) == 120
    from bertvision.options import FitOptions
    from bertvision.tasks import load
    from bertvision.training.setting import parts_of
    from bertvision.types import Examples

    options = FitOptions(task="table", train=str(table))
    for split, part in parts_of(load(options), options).items():
        for row in (0, len(part) - 1):
            assert part.texts[row] in texts.values()
            windows = encoder.encode(Examples([part.texts[row]], None, None), 256)
            with torch.no_grad():
                layers = encoder(encoder.batch(windows, np.array([0])).inputs)[1]
            expected = torch.stack([layers[i][0] for i in (0, 2, 3)])
            assert torch.allclose(found[split, str(row)], expected, atol=1e-5)


def test_batches_depend_on_the_seed_alone_and_can_be_resumed(table: Path, tmp_path: Path) -> None:
    store = extracted(table, tmp_path / "store", views="tokens", shard_size=1, order=5)
    first = [batch.ids for batch in store.batches(8, seed=1)]
    assert first == [batch.ids for batch in store.batches(8, seed=1)]
    assert first != [batch.ids for batch in store.batches(8, seed=2)]
    assert first[4:] == [batch.ids for batch in store.batches(8, seed=1, start=4)]
    assert sum(map(len, first)) == len(store) == 120
    batch = next(store.batches(8))
    assert batch.hidden.shape == (8, 4, batch.mask.shape[1], 32)
    assert batch.hidden.dtype == torch.float32
    assert batch.pooled is not None
    assert batch.pooled.shape == (8, 32)
    train = store.only("train")
    assert sum(len(batch.ids) for batch in train.batches(8)) == len(train)
    with pytest.raises(UserError, match="has no test: it has train, held_out, dev"):
        store.only("test")


def test_abandoned_batches_leave_no_thread(table: Path, tmp_path: Path) -> None:
    import threading

    before = threading.active_count()
    reading = extracted(table, tmp_path / "store").batches(2)
    next(reading)
    reading.close()
    assert threading.active_count() == before


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
    from bertvision.evaluation import evaluate_on_store
    from bertvision.progress import Progress

    own = evaluate_on_store(tmp_path / "early", bertvision.open_store(tmp_path / "1-2"), False, Progress(quiet=True))
    assert own["dev"]["adapter-64"] == entry["dev"]["adapter-64"]
    later = evaluate_on_store(tmp_path / "early", bertvision.open_store(tmp_path / "1"), False, Progress(quiet=True))
    assert later["store_mark"] == "1"
    assert later["dev"]["encoder"] == run.mark("1")["dev"]["encoder"]
    answers = bertvision.load(tmp_path / "early").predict(["Who built it?"], ["The red house was built by a dog."])
    assert "alternatives" in answers[0]


def test_parts_on_their_own_make_the_same_store(table: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "a" / "store", tmp_path / "b" / "store"
    for folder in (whole.parent, parts.parent):
        folder.mkdir()
        shutil.copy(table, folder / "reviews.csv")
    common = {"views": "tokens", "dtype": "int8", "shard_size": 1, "train": "reviews.csv", "quiet": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "SHARD_UNIT", 20_000)
        patch.chdir(whole.parent)
        assert bertvision.extract("tiny", "table", out="store", **common) is not None
        patch.chdir(parts.parent)
        assert bertvision.extract("tiny", "table", out="store", shard="2/3", **common) is None
        with pytest.raises(
            UserError, match=r"unfinished: \d+ of \d+ shards. Go on with: bertvision extract tiny table"
        ):
            bertvision.open_store("store")
        assert bertvision.extract("tiny", "table", out="store", shard="1/3", **common) is None
        assert bertvision.extract("tiny", "table", out="store", shard="3/3", **common) is not None
    assert digests(whole) == digests(parts)
    assert len(list(whole.glob("train-*.safetensors"))) > 5


def test_killed_at_any_moment_the_same_command_ends_with_the_same_bytes(tmp_path: Path) -> None:
    write_csv(tmp_path / "reviews.csv", ("text", "label"), sentences(400))
    line = [sys.executable, "-c", "import bertvision.training.extract as e; e.SHARD_UNIT = 20_000\n"
            "from bertvision.cli import main; main()",
            "extract", "tiny", "table", "--train", "reviews.csv", "--views", "tokens", "--dtype", "int8",
            "--shard-size", "1", "--out", "store"]  # fmt: skip
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "reviews.csv", tmp_path / name)
    started = time.perf_counter()
    subprocess.run(line, cwd=tmp_path / "whole", check=True, capture_output=True)
    seconds = time.perf_counter() - started
    draw, kills = random.Random(0), 0
    for _ in range(6):
        process = subprocess.Popen(line, cwd=tmp_path / "killed", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(draw.uniform(0.5, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    subprocess.run(line, cwd=tmp_path / "killed", check=True, capture_output=True)
    assert kills
    assert digests(tmp_path / "whole" / "store") == digests(tmp_path / "killed" / "store")


def test_damage_is_named_with_the_command_that_mends_it(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    extracted(table, out)
    before, shard = digests(out), out / "train-00000.safetensors"
    whole = shard.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    shard.write_bytes(flipped)
    with pytest.raises(
        UserError, match=r"damaged: train-00000.safetensors. This rewrites just that: bertvision extract"
    ):
        bertvision.train(out, heads="adapter-64", out=tmp_path / "run", quiet=True)
    assert not list(tmp_path.glob("run*"))
    extracted(table, out, repair=True)
    assert digests(out) == before
    for name in ("rows-train.parquet", "windows-dev.safetensors"):
        (out / name).write_bytes((out / name).read_bytes()[:-9] + b"nonsense!")
        with pytest.raises(UserError, match=f"damaged: {name}"):
            bertvision.open_store(out)
        extracted(table, out, repair=True)
        assert digests(out) == before
    for content in (whole[:1000], None):
        shard.write_bytes(content) if content else shard.unlink()
        with pytest.raises(UserError, match=r"missing or cut off: train-00000.safetensors"):
            bertvision.open_store(out)
        extracted(table, out)  # without --repair too: it is plain to see
        assert digests(out) == before


def test_constants_and_converted_stores_are_mended_too(table: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "store"
    extracted(table, out, dtype="int8")
    before = digests(out)
    (out / "constants.safetensors").write_bytes(b"")
    (out / "dev-00000.safetensors").unlink()
    extracted(table, out, dtype="int8")
    assert digests(out) == before
    line = ("store", "convert", out, "--dtype", "fp16", "--out", tmp_path / "fp16")
    assert command(*line)[0] == 0
    before = digests(tmp_path / "fp16")
    shard = tmp_path / "fp16" / "train-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    code, _, error = command("store", "verify", tmp_path / "fp16")
    assert code == 1
    assert "store convert" in error
    assert command(*line, "--repair")[0] == 0
    assert digests(tmp_path / "fp16") == before


def test_what_a_killed_writer_left_is_not_in_the_way(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    out.mkdir()
    for name in (".plan.json.abc.tmp", ".train-00000.safetensors.abc.tmp"):
        (out / name).write_text("half")
    extracted(table, out)
    assert not list(out.glob(".*"))


def test_a_store_without_dev_is_trained_and_shown_by_what_was_held_out(
    table: Path, tmp_path: Path, command: Command
) -> None:
    extracted(table, tmp_path / "store", split="train")
    code, out, _ = command("train", tmp_path / "store", "--heads", "adapter-64-views", "--out", tmp_path / "run")
    assert code == 0
    assert "held-out accuracy" in out
    assert command("league", tmp_path / "run")[0] == 0


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
    from bertvision.evaluation import evaluate_on_store
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


def test_what_cannot_be_right_is_refused(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "store"
    extracted(table, out)
    with pytest.raises(UserError, match=r"store of something else \(dtype: fp32 there, int8 now\)"):
        extracted(table, out, dtype="int8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UserError, match="is not empty and not a store"):
        extracted(table, tmp_path / "full")
    with pytest.raises(UserError, match="is not a store"):
        bertvision.open_store(tmp_path / "full")
    with pytest.raises(UserError, match="There is no store"):
        bertvision.open_store(tmp_path / "nowhere")
    for bad, message in (
        ({"dtype": "fp8"}, "--dtype 'fp8' is none of"),
        ({"shard": "3/2"}, "--shard '3/2' is not i/n"),
        ({"layers": "2-9"}, r"layers are 0 \(embeddings\) to 3"),
        ({"layers": "top"}, "--layers 'top' is not a list"),
        ({"views": "first"}, "--views 'first': this task's states are kept as tokens, or of cls, mean"),
        ({"pca": 32}, "--pca 32 must be at least 1 and below"),
        ({"split": "test"}, "--split 'test' is none of"),
    ):
        with pytest.raises(UserError, match=message):
            extracted(table, tmp_path / "bad", **bad)
        assert not (tmp_path / "bad").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["header"]["schema"] = 99
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="has schema 99; this version of bertvision reads schema 1"):
        bertvision.open_store(out)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"GB are still to be written, the disk has 0.0 GB"):
        extracted(table, tmp_path / "large")


def test_states_that_are_not_finite_or_too_large_are_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = backbones.load
    for factor, dtype, message in (
        (float("nan"), "fp32", "not finite, e.g. for '"),
        (1e9, "fp16", "too large for fp16"),
    ):

        def broken(*names: Any, factor: float = factor, **how: Any) -> Any:
            encoder = load(*names, **how)
            encoder.model.base_model.embeddings.LayerNorm.bias.data += factor
            return encoder

        monkeypatch.setattr(backbones, "load", broken)
        with pytest.raises(UserError, match=message):
            extracted(table, tmp_path / dtype, dtype=dtype)
        assert not list((tmp_path / dtype).glob("*-0*.safetensors"))


def test_two_writers_of_one_part_and_a_full_disk(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertvision.stores import writer

    out, save = tmp_path / "store", writer.save_file

    def second(tensors: Any, path: Path) -> None:
        with pytest.raises(UserError, match="being written by another process"):
            extracted(table, out)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(
        writer,
        "save_file",
        lambda tensors, path: second(tensors, path) if "train" in str(path) else save(tensors, path),
    )
    with pytest.raises(UserError, match=r"disk is full .* What is written is kept; make room, then go on: bertvision"):
        extracted(table, out)
    assert not list(out.glob(".*tmp"))
    monkeypatch.setattr(writer, "save_file", save)
    assert len(extracted(table, out)) == 120


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said(table: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        extracted(table, tmp_path / "locked" / "store")


def test_a_store_may_lie_anywhere_that_fsspec_knows(table: Path, tmp_path: Path) -> None:
    local, remote = extracted(table, tmp_path / "store"), extracted(table, "memory://bucket/store")
    assert {name: entry["sha256"] for name, entry in local.manifest["files"].items()} == {
        name: entry["sha256"] for name, entry in remote.manifest["files"].items()
    }
    run = bertvision.train("memory://bucket/store", heads="adapter-64", out=tmp_path / "run", quiet=True)
    assert run.info["store"]["place"] == "memory://bucket/store"
    Place("memory://bucket").files.rm("/bucket", recursive=True)


def test_another_encoder_is_refused_unless_forced(table: Path, tmp_path: Path) -> None:
    from bertvision.evaluation import evaluate_on_store
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


def test_converted_stores_hold_the_same_states(table: Path, tmp_path: Path, command: Command) -> None:
    store = extracted(table, tmp_path / "store", views="tokens")
    assert command("store", "convert", tmp_path / "store", "--dtype", "int8", "--out", tmp_path / "int8")[0] == 0
    assert command("store", "verify", tmp_path / "int8")[0] == 0
    before, after = windows_of(store), windows_of(bertvision.open_store(tmp_path / "int8"))
    assert before.keys() == after.keys()
    for key, states in before.items():
        assert torch.allclose(states, after[key], atol=0.1), key
    _, shown, _ = command("store", "info", tmp_path / "int8", "--json")
    assert json.loads(shown)["states"] == "tokens of 4 layers, 32 features, int8"


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
    with encoder.cut(1):
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
    code, _, error = command("predict", tmp_path / "run", "a text")
    assert code == 1
    assert "whose encoder is not known" in error
    code, _, error = command(*line[:-2], "--states", "nothing")
    assert "has no dataset 'nothing': it has hidden_states, labels" in error
