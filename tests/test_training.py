"""The loop: marks, batches, heads that leave no trace, freezing, interruption and resumption."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import scores_of, tiny_fit
from safetensors.torch import load_file

from bertvision.backbones.encoder import load
from bertvision.backbones.tokenise import JOINT, SEPARATE, tokenise
from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.recipe import Facts, Recipe, resolve
from bertvision.runs.directory import Run
from bertvision.states.batches import bucketed, padding_share
from bertvision.states.hidden import PAIR_VIEWS
from bertvision.states.passes import Reads, collect
from bertvision.training import provenance
from bertvision.training.loop import loop_of
from bertvision.types import Examples

SHORT = Recipe(max_length=64)
FACTS = Facts("class", False, 32, 100, ["last-layer"], ["closed-form"])


def timeless(run: Run | Path) -> dict[str, object]:
    """Everything in scores.json that is not a time."""
    kept = scores_of(run)
    for entry in kept["marks"]:
        del entry["seconds"], entry["costs"]
    return kept


def test_batches_hold_every_example_once_with_little_padding() -> None:
    lengths = np.random.default_rng(0).lognormal(3, 0.5, 3001).astype(int) + 3
    batches = bucketed(lengths, 16, seed=0, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(3001))
    assert padding_share(lengths, batches) < 0.1
    assert [len(b) for b in batches].count(16) == 187
    firsts = [lengths[b].mean() for b in batches]
    assert np.corrcoef(firsts, range(len(firsts)))[0, 1] < 0.3  # long and short batches alternate
    again, other = bucketed(lengths, 16, seed=0, epoch=0), bucketed(lengths, 16, seed=0, epoch=1)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    assert not np.array_equal(np.concatenate(batches), np.concatenate(other))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"marks": "0, 1/10,3/10,1,2", "epochs": "2"}, ["0", "1/10", "3/10", "1", "2"]),
        ({"marks": "0.5,1/2"}, ["1/2"]),
        ({"epochs": "3"}, ["0", "1", "2", "3"]),
        ({"epochs": "0"}, ["0"]),
        ({"epochs": "1/5"}, ["0", "1/5"]),
    ],
)
def test_marks_are_exact_fractions(options: dict[str, str], expected: list[str]) -> None:
    assert resolve(Request(**options), FACTS).fractions() == [Fraction(mark) for mark in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"marks": "2"}, "--marks asks for 2 epochs but --epochs is 1"),
        ({"marks": "a"}, "--marks must be a number or a fraction such as 3/10; got 'a'"),
        ({"epochs": "-1"}, "must not be negative"),
        ({"batch_size": 0}, "--batch-size must be at least 1; got 0"),
        ({"pairs": "both"}, "--pairs must be one of joint, separate, auto; got 'both'"),
        ({"freeze": "top"}, "--freeze must be none, embeddings, a number of layers or all; got 'top'"),
        ({"warmup": 1.5}, "--warmup is a share of all steps.*got 1.5"),
        ({"lr": float("nan")}, "--lr must not be negative; got nan"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request(**options)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True])
def test_heads_riding_along_do_not_change_the_encoder_by_one_bit(
    pairs: bool, table: Path, pair_table: Path, tmp_path: Path
) -> None:
    columns = {"text": "one", "text_pair": "two"} if pairs else {}
    for heads in ("none", "all"):
        data = pair_table if pairs else table
        # With dropout: heads must not draw from the encoder's random numbers either.
        tiny_fit(data, tmp_path / heads, heads=heads, lead="own", dropout=True, polish=0, marks="1/2,1", **columns)
    for mark in ("1-2", "1"):
        without, beside = (
            load_file(tmp_path / heads / "marks" / mark / "encoder" / "model.safetensors") for heads in ("none", "all")
        )
        assert without.keys() == beside.keys()
        assert all(torch.equal(without[key], beside[key]) for key in without)


def test_the_encoder_and_the_heads_learn(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", epochs=20, marks="20", batch_size=8, lr=3e-3, polish=20, head_lr=5e-3)
    dev = scores_of(run)["marks"][0]["dev"]
    assert dev["encoder"]["accuracy"]["value"] > 0.9
    assert dev["adapter-64-views"]["accuracy"]["value"] > 0.9
    assert dev["adapter-64-views+polish"]["accuracy"]["value"] > 0.9


def test_polish_finds_in_a_frozen_encoder_what_its_output_layer_does_not_know(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", epochs=0, polish=40, head_lr=5e-3)
    mark, chosen = run.results.last, run.results.selected.model
    assert chosen != "encoder"
    assert mark.score(chosen, "accuracy", "dev").value > 0.9
    assert "adapter-64-views" not in mark.models  # a head that has not ridden yet says nothing


def test_frozen_parts_stay_as_they_are(table: Path, tmp_path: Path) -> None:
    tiny_fit(table, tmp_path / "run", heads="none", freeze="1", marks="0,1")
    before, after = (load_file(tmp_path / "run/marks" / m / "encoder/model.safetensors") for m in ("0", "1"))
    same = {key for key in before if torch.equal(before[key], after[key])}
    assert {key for key in before if ".embeddings." in key or ".layer.0." in key} == same


def test_only_dropout_if_asked_for_makes_fine_tuning_random(table: Path) -> None:
    def trained(dropout: bool, stream: int) -> torch.Tensor:
        options = Request(task="table", train=str(table), backbone="tiny", heads="none", dropout=dropout)
        loop = loop_of(prepare(options, Progress(quiet=True)), {}, Accelerator(cpu=True))
        torch.manual_seed(stream)
        loop.advance(3, 3, lambda loss: None)
        return torch.cat([parameter.detach().flatten() for parameter in loop.parameters])

    assert torch.equal(trained(False, 1), trained(False, 2))
    assert not torch.equal(trained(True, 1), trained(True, 2))


def test_few_examples_come_in_smaller_batches_unless_said_otherwise(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(**given: object) -> int:
        options = Request(task="table", train=str(table), backbone="tiny", **given)
        return prepare(options, Progress(quiet=True)).recipe.batch_size

    assert (size(), size(batch_size=5)) == (8, 5)
    monkeypatch.setattr("bertvision.recipe.FEW", 97)  # of 120 rows so many are trained on
    assert (size(), size(limit=100)) == (16, 8)


def test_accumulated_batches_take_the_same_number_of_examples_per_step(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", batch_size=4, accumulate=4, marks="1")
    lines = (run.path / "log.jsonl").read_text().splitlines()
    assert len(lines) == run.results.last.step == -(-97 // 16)  # 120 rows less dev 12 less held-out 11


def test_the_seed_changes_the_run_but_not_the_rows(table: Path, tmp_path: Path) -> None:
    one, again, other = (tiny_fit(table, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert timeless(one) == timeless(again)
    assert one.record.data == other.record.data
    weights = [load_file(run.path / "marks/1/encoder/model.safetensors")["classifier.weight"] for run in (one, other)]
    assert not torch.equal(*weights)


def test_separate_views_are_those_of_each_text_encoded_alone() -> None:
    encoder = load("tiny", 2, seed=0).eval()
    texts, pairs = ["the cat is big", "a dog"], ["the small cat", "the dog and the river"]
    encoded = tokenise(encoder, Examples(texts, pairs, None), SHORT, split_contexts=False)
    found = collect(encoder, encoded, Reads(paired=True), SEPARATE)
    for row in range(2):
        for view, text in (("first", texts[row]), ("second", pairs[row])):
            inputs = encoder.tokenizer([text], return_tensors="pt")
            with torch.no_grad():
                raw = encoder.model(**inputs, output_hidden_states=True).hidden_states
            expected = torch.stack([layer[0].mean(0) for layer in raw])
            assert torch.allclose(found.layers[row, :, PAIR_VIEWS.index(view)], expected, atol=1e-5)


def test_states_too_large_for_memory_go_to_a_file_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load("tiny", 2, seed=0)
    examples = Examples(["the cat is big", "a dog"], ["the small cat", "the dog"], None)
    encoded = tokenise(encoder, examples, SHORT, split_contexts=False)
    for way in (JOINT, SEPARATE):
        memory = collect(encoder, encoded, Reads(paired=True), way).layers
        with monkeypatch.context() as patched:
            patched.setattr("bertvision.states.passes.MEMORY_SHARE", 0.0)
            file = collect(encoder, encoded, Reads(paired=True), way).layers
        assert file.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr()
        assert torch.equal(memory, file), way


def test_states_that_do_not_fit_in_memory_are_in_the_folder_of_the_run(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: list[Path] = []
    temporary = tempfile.TemporaryFile

    def noted(*, dir: Path) -> Any:
        where.append(dir)
        file = temporary(dir=dir)
        assert list(dir.iterdir()) == []  # it has no name: a crash leaves nothing
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    plain = tiny_fit(table, tmp_path / "plain", heads="last-layer,closed-form", epochs=0)
    assert where == []
    monkeypatch.setattr("bertvision.states.passes.MEMORY_SHARE", 0.0)
    run = tiny_fit(table, tmp_path / "run", heads="last-layer,closed-form", epochs=0, mode="memory")
    assert set(where) == {tmp_path / "run.partial" / "states"}
    assert not (run.path / "states").exists()
    assert scores_of(run)["marks"][0]["dev"] == scores_of(plain)["marks"][0]["dev"]


# One label is the beginning of another; and random numbers of encoder and heads have to go on where they were.
LONG = {
    "heads": "last-layer,closed-form,adapter-64:dropout=0/0.2", "dropout": True, "epochs": 16, "marks": "1,8,16",
    "batch_size": 4,
}  # fmt: skip


def command_line(table: Path, out: Path, options: dict[str, object]) -> list[str]:
    words = [str(table), "--backbone", "tiny", "--polish", "1", "--folds", "0", "--out", str(out)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return [sys.executable, "-m", "bertvision", "fit", *words]


def interrupted(call: list[str], how: int, seen: Callable[[], bool], errors: Path) -> subprocess.Popen[str]:
    """The process, sent the signal a moment after `seen`."""
    with errors.open("w") as file:
        process = subprocess.Popen(call, stderr=file, text=True)
        while not seen() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(how)
        process.wait()
    return process


@pytest.mark.slow
def test_an_interrupted_run_is_resumed_to_the_same_numbers(table: Path, tmp_path: Path) -> None:
    """First by Ctrl-C and then, when resumed, by a kill that leaves no time to save anything."""
    whole, out, errors = tiny_fit(table, tmp_path / "whole", **LONG), tmp_path / "run", tmp_path / "errors.txt"
    call = command_line(table, out, LONG)
    stopped = interrupted(call, signal.SIGINT, (tmp_path / "run.partial" / "log.jsonl").exists, errors)
    assert not out.exists()
    assert stopped.returncode == 1
    assert "To continue, rerun the same command with" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    with pytest.raises(UserError, match="unfinished run"):
        tiny_fit(table, out, **LONG)
    killed = interrupted([*call, "--resume"], signal.SIGKILL, lambda: "Resuming at" in errors.read_text(), errors)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    resumed = tiny_fit(table, out, resume=True, **LONG)
    assert timeless(resumed) == timeless(whole)
    for mark in ("1", "8", "16"):
        a, b = (load_file(run.mark_folder(mark) / "encoder" / "model.safetensors") for run in (whole, resumed))
        assert all(torch.equal(a[key], b[key]) for key in a), mark
    assert not (tmp_path / "run.partial").exists()


def test_resuming_with_other_options_or_data_is_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"heads": "last-layer", "marks": "1/2,1"}
    with monkeypatch.context() as patched:
        patched.setattr("bertvision.training.fit.card.write", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            tiny_fit(table, tmp_path / "run", **settings)
    with pytest.raises(UserError, match=r"--seed 0 -> 5"):
        tiny_fit(table, tmp_path / "run", seed=5, resume=True, **settings)
    table.write_text(table.read_text().replace("great", "fine"))
    with pytest.raises(UserError, match="the data changed"):
        tiny_fit(table, tmp_path / "run", resume=True, **settings)


def power_cut(*_: object) -> None:
    raise RuntimeError("power cut")


def test_nothing_to_resume_and_an_existing_run_are_said(table: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        tiny_fit(table, tmp_path / "run", resume=True)
    tiny_fit(table, tmp_path / "run", heads="none", epochs=0)
    with pytest.raises(UserError, match="exists already"):
        tiny_fit(table, tmp_path / "run")


@pytest.mark.slow
def test_a_full_disk_is_said_and_the_run_can_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "sys.argv[0] = 'bertvision'; runpy.run_module('bertvision', run_name='__main__')"
    )
    # The operating system refuses any file above 300 kB, as a full disk would: the state does not fit.
    settings = {"heads": "last-layer", "marks": "1/2,1"}
    call = command_line(table, tmp_path / "run", settings)
    done = subprocess.run([sys.executable, "-c", limited, *call[3:]], capture_output=True, text=True)
    assert done.returncode == 1
    assert "The disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    # What it has written already must not be counted as missing.
    monkeypatch.setattr(provenance.shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    monkeypatch.setattr(sys, "argv", ["bertvision", *call[3:], "--resume"])
    run = tiny_fit(table, tmp_path / "run", resume=True, **settings)
    assert "--resume" not in run.record.command
    on_disk = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert run.record.costs is not None
    assert run.record.costs.disk_bytes <= on_disk
    assert [mark.mark for mark in run.results.marks] == ["1/2", "1"]
