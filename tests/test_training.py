"""The loop: marks, batches, heads that leave no trace, freezing, interruption and resumption."""

import json
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from bertvision.training.collect import collect, collect_separate, encode
from safetensors.torch import load_file

import bertvision
from bertvision.backbones.encoder import load
from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.runs.directory import Run
from bertvision.states.batches import bucketed, padding_share
from bertvision.states.hidden import PAIR_VIEWS
from bertvision.training import provenance
from bertvision.training.loop import loop_of
from bertvision.types import Examples

SHORT = Request(max_length=64)


def tiny_fit(table: Path, out: Path, **options: object) -> Run:
    settings = {"backbone": "tiny", "train": table, "polish": 2, "epochs": 1, "out": out} | options
    return bertvision.fit("table", quiet=True, **settings)


def scores_of(run: Run) -> list[object]:
    """Everything in scores.json that is not a time."""
    kept = run.scores
    for entry in kept["marks"]:
        entry.pop("seconds"), entry.pop("costs")
    return [kept]


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
    assert Request(**options).fractions() == [Fraction(mark) for mark in expected]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"marks": "2"}, "--marks asks for 2 epochs but --epochs is 1"),
        ({"marks": "a"}, "--marks 'a' is not a number"),
        ({"epochs": "-1"}, "must not be negative"),
        ({"batch_size": 0}, "--batch-size 0 must be at least 1"),
        ({"pairs": "both"}, "--pairs 'both' is none of: joint, separate, auto"),
        ({"freeze": "top"}, "--freeze 'top'"),
        ({"warmup": 1.5}, "--warmup 1.5"),
        ({"lr": float("nan")}, "--lr nan"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request(**options)


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
    dev = run.scores["marks"][0]["dev"]
    assert dev["encoder"]["accuracy"]["value"] > 0.9
    assert dev["adapter-64-views"]["accuracy"]["value"] > 0.9
    assert dev["adapter-64-views+polish"]["accuracy"]["value"] > 0.9


def test_polish_finds_in_a_frozen_encoder_what_its_output_layer_does_not_know(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", epochs=0, polish=40, head_lr=5e-3)
    dev = run.scores["marks"][0]["dev"]
    assert run.scores["selected"]["model"] != "encoder"
    assert dev[run.scores["selected"]["model"]]["accuracy"]["value"] > 0.9
    assert "adapter-64-views" not in dev  # a head that has not ridden yet says nothing


def test_polish_can_start_where_heads_rode(table: Path, tmp_path: Path) -> None:
    """After a long ride and a single epoch of polish, the head that goes on is far ahead of the one that starts."""
    truth = {}
    for start in ("scratch", "ridden"):
        options = {"epochs": 20, "marks": "20", "batch_size": 8, "lr": 3e-3, "head_lr": 3e-3, "polish": 1}
        run = tiny_fit(table, tmp_path / start, polish_from=start, heads="adapter-64", **options)
        dev = run.predictions("20")["dev"]
        truth[start] = dev["outputs"]["adapter-64+polish"][np.arange(12), dev["targets"]].mean()
    assert truth["ridden"] > truth["scratch"] + 0.2


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
    def size(**given: object) -> int | None:
        options = Request(task="table", train=str(table), backbone="tiny", **given)
        return prepare(options, Progress(quiet=True)).options.batch_size

    assert (size(), size(batch_size=5)) == (8, 5)
    monkeypatch.setattr("bertvision.training.setting.FEW", 97)  # of 120 rows so many are trained on
    assert (size(), size(limit=100)) == (16, 8)


def test_accumulated_batches_take_the_same_number_of_examples_per_step(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", batch_size=4, accumulate=4, marks="1")
    lines = (run.path / "log.jsonl").read_text().splitlines()
    assert len(lines) == run.scores["marks"][0]["step"] == -(-97 // 16)  # 120 rows less dev 12 less held-out 11


def test_the_seed_changes_the_run_but_not_the_rows(table: Path, tmp_path: Path) -> None:
    one, again, other = (tiny_fit(table, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert scores_of(one) == scores_of(again)
    assert one.info["data"] == other.info["data"]
    weights = [load_file(run.path / "marks/1/encoder/model.safetensors")["classifier.weight"] for run in (one, other)]
    assert not torch.equal(*weights)


def test_separate_views_are_those_of_each_text_encoded_alone() -> None:
    encoder = load("tiny", 2, seed=0).eval()
    texts, pairs = ["the cat is big", "a dog"], ["the small cat", "the dog and the river"]
    found = collect_separate(encoder, encode(encoder, Examples(texts, pairs, None), SHORT, windowed=False))
    for row in range(2):
        for view, text in (("first", texts[row]), ("second", pairs[row])):
            inputs = encoder.tokenizer([text], return_tensors="pt")
            with torch.no_grad():
                raw = encoder.model(**inputs, output_hidden_states=True).hidden_states
            expected = torch.stack([layer[0].mean(0) for layer in raw])
            assert torch.allclose(found.layers[row, :, PAIR_VIEWS.index(view)], expected, atol=1e-5)


def test_states_too_large_for_memory_go_to_a_file_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load("tiny", 2, seed=0)
    encoded = encode(
        encoder, Examples(["the cat is big", "a dog"], ["the small cat", "the dog"], None), SHORT, windowed=False
    )
    memory = [collect(encoder, encoded.together, pairs=True).layers, collect_separate(encoder, encoded).layers]
    monkeypatch.setattr("bertvision.training.collect.MEMORY_SHARE", 0.0)
    file = [collect(encoder, encoded.together, pairs=True).layers, collect_separate(encoder, encoded).layers]
    assert all(torch.equal(a, b) for a, b in zip(memory, file, strict=True))


# One label is the beginning of another; and random numbers of encoder and heads have to go on where they were.
VARIANTS = ("--heads", "default,adapter-64:dropout=0/0.2", "--dropout")


def command_line(table: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "bertvision", "fit", "table", "--backbone", "tiny", "--train", str(table),
        "--polish", "2", "--epochs", "40", "--marks", "1,20,40", "--batch-size", "4", "--out", str(out), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_is_resumed_to_the_same_numbers(how: int, table: Path, tmp_path: Path) -> None:
    subprocess.run(command_line(table, tmp_path / "whole", *VARIANTS), check=True, capture_output=True)
    process = subprocess.Popen(command_line(table, tmp_path / "run", *VARIANTS), stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run.partial" / "log.jsonl"
    while not log.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(how)
    _, errors = process.communicate()
    assert not (tmp_path / "run").exists()
    if how == signal.SIGINT:
        assert process.returncode == 1
        assert "--resume goes on" in errors
        assert "Traceback" not in errors
    refused = subprocess.run(command_line(table, tmp_path / "run", *VARIANTS), capture_output=True, text=True)
    assert refused.returncode == 1
    assert "unfinished run" in refused.stderr
    done = subprocess.run(command_line(table, tmp_path / "run", *VARIANTS, "--resume"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Resuming at step" in done.stderr
    assert scores_of(Run(tmp_path / "run")) == scores_of(Run(tmp_path / "whole"))
    for mark in ("1", "20", "40"):
        a, b = (load_file(tmp_path / name / "marks" / mark / "encoder/model.safetensors") for name in ("whole", "run"))
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert not (tmp_path / "run.partial").exists()


def test_resuming_with_other_options_or_data_is_refused(table: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(command_line(table, tmp_path / "run"), stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run.partial" / "log.jsonl").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate()
    settings = {"epochs": 40, "marks": "1,20,40", "batch_size": 4, "resume": True}
    with pytest.raises(UserError, match=r"--seed 0 -> 5"):
        tiny_fit(table, tmp_path / "run", seed=5, **settings)
    table.write_text(table.read_text().replace("great", "fine"))
    with pytest.raises(UserError, match="the data changed"):
        tiny_fit(table, tmp_path / "run", **settings)


def test_nothing_to_resume_and_an_existing_run_are_said(table: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        tiny_fit(table, tmp_path / "run", resume=True)
    tiny_fit(table, tmp_path / "run", heads="none", epochs=0)
    with pytest.raises(UserError, match="exists already"):
        tiny_fit(table, tmp_path / "run")


def test_a_full_disk_is_said_and_the_run_can_go_on(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000));"
        "sys.argv[0] = 'bertvision'; runpy.run_module('bertvision', run_name='__main__')"
    )
    # The operating system refuses any file above 300 kB, as a full disk would: the state does not fit.
    arguments = command_line(table, tmp_path / "run")[3:]
    done = subprocess.run([sys.executable, "-c", limited, *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert "The disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    # What it has written already must not be counted as missing.
    monkeypatch.setattr(provenance.shutil, "disk_usage", lambda place: SimpleNamespace(free=0))
    monkeypatch.setattr(sys, "argv", ["bertvision", *command_line(table, tmp_path / "run", "--resume")[3:]])
    run = tiny_fit(table, tmp_path / "run", epochs=40, marks="1,20,40", batch_size=4, resume=True)
    assert "--resume" not in run.info["command"]
    on_disk = sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert run.info["costs"]["disk_bytes"] <= on_disk
    assert json.loads((tmp_path / "run" / "scores.json").read_text())["marks"]
