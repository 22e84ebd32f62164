"""Stores: what is written is what the encoder said, whole whatever happens, and enough to train on."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
import transformers
from conftest import Command, info_of, sentences, write_csv

import bertvision
from bertvision.backbones import encoder as backbones
from bertvision.backbones import tiny
from bertvision.errors import UserError
from bertvision.inference import extract as extraction
from bertvision.options import Request
from bertvision.prepare import parts_of
from bertvision.stores.codec import Codec, Int8, bytes_per_row, codec, restored
from bertvision.stores.place import Place
from bertvision.stores.reader import AHEAD, Store
from bertvision.tasks import load


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


def there_and_back(made: Codec, states: torch.Tensor, reader: Codec | None = None) -> torch.Tensor:
    room = torch.empty_like(states.transpose(0, 1).contiguous())
    return (reader or made).decode(made.encode(states), room).transpose(0, 1)


def test_codecs_keep_outliers_and_their_neighbours() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(200, 3, 16, generator=draw)
    states[..., 3] += 90  # a feature that is large in every token, as encoders have them
    states[7] *= 4  # and a token that is large as a whole
    others = [0, 1, 2, *range(4, 16)]
    for dtype, allowed in {"fp32": 1e-7, "fp16": 1e-3, "bf16": 1e-2, "int8": 2e-2}.items():
        made = codec(dtype, states)
        again = there_and_back(made, states, restored(dtype, made.constants))
        assert (again - states)[..., others].abs().mean() < allowed * states[..., others].abs().mean(), dtype
        assert (again - states)[..., 3].abs().mean() < allowed * states[..., 3].abs().mean(), dtype
        stored = sum(value.numel() * value.element_size() for value in made.encode(states).values())
        assert stored == 200 * bytes_per_row(dtype, 3, 16), dtype


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
    assert error(there_and_back(ours, states)) < min(error(found) for found in both)


def test_int8_is_not_coarsened_by_a_feature_that_is_rarely_large() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(2000, 1, 32, generator=draw)
    states[::100, 0, 5] = 60.0
    others = [i for i in range(32) if i != 5]
    again = there_and_back(Int8.fitted(states[:1000]), states)
    assert (again - states)[::100, 0, others].abs().max() < 0.05  # by the deviation (6): ten times as much
    assert (again - states).abs().max() < 0.5


def test_a_store_holds_what_the_encoder_says(table: Path, tmp_path: Path) -> None:
    store = extracted(table, tmp_path / "store", views="tokens", layers="0+2-3")
    assert len(store) == 120
    model = transformers.AutoModel.from_pretrained(tiny.folder()).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.folder())
    found = windows_of(store, seed=3)
    assert len(found) == 120
    request = Request(task="table", train=str(table))
    for split, part in parts_of(load(request), request).items():
        for row in (0, len(part) - 1):
            with torch.no_grad():
                raw = model(**tokenizer(part.texts[row], return_tensors="pt"), output_hidden_states=True)
            expected = torch.stack([raw.hidden_states[i][0] for i in (0, 2, 3)])
            assert torch.allclose(found[split, str(row)], expected, atol=1e-5), (split, row)


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


KILLED_WHILE_WRITING = """
import os, sys
import bertvision.inference.extract as extraction
from bertvision.cli import main
from bertvision.stores.place import Place

extraction.SHARD_UNIT, stop, write = 20_000, int(sys.argv.pop(1)), Place.write
count = 0

def counted(place, name, fill):
    global count
    count += 1

    def fill_and_die(path):
        fill(path)
        if count == stop:
            os.kill(os.getpid(), 9)  # the file is written aside, but does not have its name yet

    return write(place, name, fill_and_die)

Place.write = counted
main()
"""


@pytest.mark.slow
def test_killed_at_any_write_the_same_command_ends_with_the_same_bytes(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_csv(tmp_path / name / "reviews.csv", ("text", "label"), sentences(120))

    def extract(name: str, stop: int) -> int:
        line = ["extract", "tiny", "table", "--train", "reviews.csv", "--views", "tokens", "--dtype", "int8"]
        line += ["--shard-size", "1", "--out", "store"]
        command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(stop), *line]
        return subprocess.run(command, cwd=tmp_path / name, capture_output=True).returncode

    assert extract("whole", 0) == 0
    for stop in (1, 2, 4, 7):  # the plan or a table, constants, shards
        assert extract("killed", stop) == -signal.SIGKILL, stop
        with pytest.raises(UserError, match=r"is not a store|is unfinished"):
            bertvision.open_store(tmp_path / "killed" / "store")
    assert extract("killed", 0) == 0
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
        ({"dtype": "fp8"}, "--dtype must be one of fp32, fp16, bf16, int8; got 'fp8'"),
        ({"shard": "3/2"}, r"--shard must be i/n, .* got '3/2'"),
        ({"shard_size": 0}, "--shard-size must be at least 1"),
        ({"layers": "2-9"}, r"layers are 0 \(embeddings\) to 3"),
        ({"layers": "top"}, "--layers must be a list such as 0-3.6; got 'top'"),
        ({"views": "first"}, "--views 'first': this task's states are stored as tokens, or of cls, mean"),
        ({"split": "test"}, "--split must be train, dev or train,dev; got 'test'"),
        ({"pca": 32}, "no option called 'pca'"),
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
    with pytest.raises(
        UserError, match=r"disk is full .* Make room, then go on \(what is written is kept\): bertvision"
    ):
        extracted(table, out)
    assert not list(out.glob(".*tmp"))
    monkeypatch.setattr(writer, "save_file", save)
    assert len(extracted(table, out)) == 120


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said(table: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written"):
        extracted(table, tmp_path / "locked" / "store")


def test_no_lock_files_are_left(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aside").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "aside"))
    assert bertvision.extract("tiny", "table", train=table, out=tmp_path / "parts", shard="1/2", quiet=True) is None
    extracted(table, tmp_path / "parts", dtype="fp16", shard="2/2")
    extracted(table, tmp_path / "whole", dtype="int8")
    assert list((tmp_path / "aside").iterdir()) == []
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") or "lock" in path.name]


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "..", "a/b", "a\\b", "file:x", ""])
def test_names_in_a_store_do_not_lead_out_of_its_folder(table: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "store"
    extracted(table, out)
    manifest, rows = json.loads((out / "manifest.json").read_text()), out / "rows-train.parquet"
    old = next(iter(manifest["files"]))
    renamed = manifest | {"files": {name if kept == old else kept: value for kept, value in manifest["files"].items()}}
    (out / "manifest.json").write_text(json.dumps(renamed))
    with pytest.raises(UserError, match="which is not in its folder"):
        bertvision.open_store(out)
    kept = pyarrow.parquet.read_table(rows)
    table_ = kept.set_column(kept.column_names.index("shard"), "shard", pyarrow.array([name] * len(kept)))
    pyarrow.parquet.write_table(table_, rows)
    manifest["files"][rows.name] |= {"bytes": rows.stat().st_size, "sha256": digests(out)[rows.name]}
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="which is not in its folder"):
        next(bertvision.open_store(out).batches(4))


def test_a_damaged_manifest_is_said(table: Path, tmp_path: Path) -> None:
    extracted(table, tmp_path / "store")
    file = tmp_path / "store" / "manifest.json"
    manifest = json.loads(file.read_text())
    short = {name: value for name, value in manifest["header"].items() if name != "features"}
    entries = {name: {"bytes": 1} for name in manifest["files"]}
    for damaged in (
        [],
        {},
        {"header": manifest["header"]},
        manifest | {"header": short},
        manifest | {"files": entries},
    ):
        file.write_text(json.dumps(damaged))
        with pytest.raises(UserError, match=r"manifest\.json' is not the manifest of a store, or is damaged"):
            bertvision.open_store(tmp_path / "store")


def test_a_limit_on_examples_that_are_not_stored_is_refused(command: Command, table: Path, tmp_path: Path) -> None:
    for split, given, meant in (("dev", "--limit", "--dev-limit"), ("train", "--dev-limit", "--limit")):
        call = ("extract", "tiny", table, "--split", split, given, 20, "--out", tmp_path / "store")
        code, _, err = command(*call)
        assert code == 1
        assert f"{given} is for" in err
        assert f"Use {meant} for {split}." in err
    assert not (tmp_path / "store").exists()
    limited = extracted(table, tmp_path / "store", split="dev", dev_limit=10)
    assert len(limited) == 10


def test_the_seed_of_a_new_output_layer_outlives_the_store(table: Path, tmp_path: Path, command: Command) -> None:
    """What the encoder says by its new output layer is the same after loading, whatever the seed."""
    said = []
    for seed in (0, 1):
        store = extracted(table, tmp_path / f"store-{seed}", seed=seed)
        assert ("--seed 1" in store.manifest["command"]) == (seed == 1)
        run = bertvision.train(store.place.url, heads="last-layer", polish=1, out=tmp_path / f"run-{seed}", quiet=True)
        kept = run.predictions("0")["dev"].outputs["encoder"]
        examples = parts_of(load(Request(task="table", train=str(table))), Request())["dev"]
        assert run.model("encoder").predict_proba(examples.texts)[:, -1] == pytest.approx(kept[:, -1], abs=1e-5)
        said.append(kept)
    assert not np.allclose(*said)
    code, _, err = command("extract", "tiny", table, "--seed", 1, "--dtype", "fp32", "--out", tmp_path / "store-1")
    assert code == 0, err  # the same store, from the command line


def test_a_store_may_lie_anywhere_that_fsspec_knows(table: Path, tmp_path: Path) -> None:
    local, remote = extracted(table, tmp_path / "store"), extracted(table, "memory://bucket/store")
    assert {name: entry["sha256"] for name, entry in local.manifest["files"].items()} == {
        name: entry["sha256"] for name, entry in remote.manifest["files"].items()
    }
    run = bertvision.train("memory://bucket/store", heads="adapter-64", out=tmp_path / "run", quiet=True)
    assert info_of(run)["store"]["place"] == "memory://bucket/store"
    Place("memory://bucket").files.rm("/bucket", recursive=True)


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


def test_batches_that_are_kept_are_not_written_over(table: Path, tmp_path: Path) -> None:
    """Memory is used again only where nobody can see it: not while a view of it, or a tensor made of one, is alive."""
    store = extracted(table, tmp_path / "store", views="tokens")
    whole = [batch.hidden.clone() for batch in store.batches(7, seed=3)]
    kept = [batch.hidden for batch in store.batches(7, seed=3)]
    views = [batch.hidden[:, 1:].transpose(0, 1) for batch in store.batches(7, seed=3)]
    assert all(torch.equal(one, other) for one, other in zip(whole, kept, strict=True))
    assert all(torch.equal(one[:, 1:].transpose(0, 1), other) for one, other in zip(whole, views, strict=True))


def test_memory_of_batches_is_used_again(table: Path, tmp_path: Path) -> None:
    store = extracted(table, tmp_path / "store", views="tokens")
    places = set()
    for batch in store.batches(7, seed=3):
        places.add(batch.hidden.untyped_storage().data_ptr())
        del batch
    # Those ahead, one in the making, the one just handed over and, for a moment, the one before it.
    assert len(places) <= AHEAD + 3 < len(store.order(7, 3))
