"""Training from stores, and where the states of a resting encoder come from: memory, a store, or the encoder again."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command, info_of, tiny_fit

import bertvision
from bertvision.backbones import encoder as backbones
from bertvision.backbones.tokenise import tokenise
from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.heads.variants import build
from bertvision.inference.evaluate import Evaluation, evaluate_on_store
from bertvision.options import Request
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.states.passes import Reads, collect
from bertvision.states.sources import Memory, Recompute, Stored
from bertvision.stores.reader import Store
from bertvision.training.planner import Machine, Rates, Work, choose, depth_of, estimates, plan
from bertvision.types import Examples

QUIET = Progress(quiet=True)


def extracted(table: Path, out: Path, **options: Any) -> Store:
    store = bertvision.extract("tiny", "table", train=str(table), out=out, **{"dtype": "fp32", "quiet": True} | options)
    assert store is not None
    return store


def on_store(run: Path, store: Path, *, force: bool = False) -> Evaluation:
    return evaluate_on_store(run, bertvision.open_store(store), force=force, progress=QUIET)


@pytest.mark.parametrize("options", [{}, {"layers": "1-3"}, {"views": "tokens"}, {"views": "tokens", "layers": "2+3"}])
def test_a_run_from_a_store_answers_texts_as_it_answered_the_store(
    options: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    extracted(table, tmp_path / "store", **options)
    heads = "adapter-64-views,closed-form,adapter-64:layers=1"
    run = bertvision.train(tmp_path / "store", heads=heads, epochs=2, out=tmp_path / "run", quiet=True)
    kept = run.results.last
    again = bertvision.evaluate(tmp_path / "run")
    for name, found in kept.scores["dev"].items():
        for part in ("value", "low", "high"):
            expected = getattr(found["accuracy"], part)
            assert getattr(again.scores["dev"][name]["accuracy"], part) == pytest.approx(expected), name
    assert run.record.store is not None
    assert run.record.store.source["weights_sha256"] == run.record.weights_sha256
    assert kept.score("closed-form", "accuracy").value > 0.9


def test_pairs_read_separately_and_scores_are_stored_too(pair_table: Path, tmp_path: Path) -> None:
    for pairs in ("joint", "separate"):
        extracted(pair_table, tmp_path / pairs, text="one", text_pair="two", pairs=pairs)
        run = bertvision.train(
            tmp_path / pairs, heads="cosines,learned-pooling-views", out=tmp_path / f"run-{pairs}", quiet=True
        )
        again = bertvision.evaluate(tmp_path / f"run-{pairs}").scores["dev"]
        for name, found in run.results.last.scores["dev"].items():
            assert again[name]["pearson"].value == pytest.approx(found["pearson"].value, abs=1e-4), (pairs, name)


def test_questions_from_a_fine_tuned_run_are_stored_trained_on_and_evaluated_across_marks(tmp_path: Path) -> None:
    run = tiny_fit(
        "squad2-invented", tmp_path / "run", heads="adapter-64", marks="1/2,1", polish=2, limit=40, dev_limit=20
    )
    for mark in ("1/2", "1"):
        store = bertvision.extract(
            f"{run.path}@{mark}", "squad2-invented", out=tmp_path / mark.replace("/", "-"), dtype="fp32", quiet=True
        )
        assert store is not None
        assert store.header.source["mark"] == mark
    heads = "adapter-64,adapter-64-ngram"
    trained = bertvision.train(tmp_path / "1-2", heads=heads, out=tmp_path / "early", quiet=True)
    entry = trained.results.last
    assert entry.mark == "1/2"
    # The encoder's own answers are in the store, and the same as in the run.
    assert entry.scores["dev"]["encoder"] == run.mark("1/2").scores["dev"]["encoder"]
    own = on_store(tmp_path / "early", tmp_path / "1-2")
    assert own.scores["dev"]["adapter-64"] == entry.scores["dev"]["adapter-64"]
    later = on_store(tmp_path / "early", tmp_path / "1")
    assert later.store_mark == "1"
    assert later.scores["dev"]["encoder"] == run.mark("1").scores["dev"]["encoder"]
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
    with pytest.raises(UserError, match=r"was killed\. Remove it to start again"):
        bertvision.train(tmp_path / "store", heads="adapter-64-views", out=tmp_path / "run", quiet=True)


def test_heads_are_left_out_whose_views_are_not_there(pair_table: Path, tmp_path: Path) -> None:
    pair = {"text": "one", "text_pair": "two"}
    extracted(pair_table, tmp_path / "pair", views="first,second", **pair)
    run = bertvision.train(
        tmp_path / "pair", heads=["cosines", "adapter-64", "closed-form"], out=tmp_path / "run", quiet=True
    )
    assert list(run.record.parameters) == ["cosines", "words"]
    extracted(pair_table, tmp_path / "half", views="cls,first", **pair)
    with pytest.raises(UserError, match="has cls, first, which cannot feed cosines"):
        bertvision.train(tmp_path / "half", heads="cosines", out=tmp_path / "none", quiet=True)
    assert not list(tmp_path.glob("none*"))


def test_heads_that_read_pairs_separately_are_not_asked_on_joint_states(pair_table: Path, tmp_path: Path) -> None:
    run = tiny_fit(
        pair_table, tmp_path / "run", heads="cosines", pairs="separate", epochs=0, text="one", text_pair="two", polish=8
    )
    for pairs in ("joint", "separate"):
        bertvision.extract(f"{run.path}@0", "table", pairs=pairs, dtype="fp32", out=tmp_path / pairs, quiet=True)
    assert "cosines+polish" not in on_store(run.path, tmp_path / "joint").scores["dev"]
    separate = on_store(run.path, tmp_path / "separate").scores["dev"]["cosines+polish"]["pearson"]
    assert separate.value == pytest.approx(run.mark("0").score("cosines+polish", "pearson").value, abs=1e-4)


def test_other_rows_than_the_run_was_fine_tuned_on_are_refused(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="none", limit=60)
    with pytest.raises(UserError, match="rows it was fine-tuned on must not be held out"):
        bertvision.extract(run.path, "table", limit=80, out=tmp_path / "store", quiet=True)
    assert not (tmp_path / "store").exists()


def test_another_encoder_is_refused_unless_forced(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(table, tmp_path / "run", heads="adapter-64", epochs=1)
    other = backbones.load("tiny", 2, 0)
    other.model.base_model.embeddings.word_embeddings.weight.data *= 2
    other.save(tmp_path / "other")
    bertvision.extract(tmp_path / "other", "table", train=table, dtype="fp32", out=tmp_path / "store", quiet=True)
    with pytest.raises(UserError, match=r"states are from another encoder \(other\). --force tries it"):
        on_store(run.path, tmp_path / "store")
    assert "forced" not in info_of(run)
    found = on_store(run.path, tmp_path / "store", force=True)
    assert "another encoder" in found.forced[0]
    assert "another encoder" in info_of(run)["forced"][0]["although"][0]


HEADS = "closed-form,learned-pooling-views,adapter-64-views,adapter-64:layers=0-2"


def test_wherever_states_come_from_heads_learn_the_same(table: Path, tmp_path: Path) -> None:
    answers = {}
    for mode in ("memory", "recompute", "stored"):
        run = tiny_fit(table, tmp_path / mode, heads=HEADS, epochs=0, polish=25, head_lr=1e-2, mode=mode)
        entry = run.results.last
        assert entry.modes["joint"] in {"stored": ("fp16", "int8")}.get(mode, (mode,))
        assert set(entry.ways) == {f"{name}+polish" for name in HEADS.split(",")}
        for name in ("closed-form", "adapter-64-views"):  # [CLS] of a random encoder is poor
            assert entry.score(f"{name}+polish", "accuracy", "held_out").value > 0.7, (mode, name)
        answers[mode] = run.predictions("0")["dev"].outputs["closed-form+polish"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory", "recompute", "reviews.csv", "stored"]
    assert np.allclose(answers["memory"], answers["recompute"], atol=0.02)  # the order of sums
    assert np.allclose(answers["memory"], answers["stored"], atol=0.1)


def test_every_source_gives_each_window_once_in_an_order_of_the_seed(table: Path, tmp_path: Path) -> None:
    store = extracted(table, tmp_path / "store")
    encoder = backbones.load("tiny", 2, 0)
    texts = Examples([f"the cat {'is big ' * (i % 5)}{i}" for i in range(70)], None, None)
    encoded = tokenise(encoder, texts, Recipe(), split_contexts=False)
    states = collect(encoder, encoded, Reads(), "joint")
    made = {
        "memory": lambda seed: Memory(states, seed),
        "recompute": lambda seed: Recompute(encoder, encoded, Reads(), seed),
        "stored": lambda seed: Stored(store, "train", seed),
    }
    for name, source in made.items():
        windows = len(store.only("train")) if name == "stored" else 70

        def orders(seed: int, source: Any = source) -> list[list[int]]:
            asked = source(seed)
            return [np.concatenate([step.rows for step in asked.epoch(number)]).tolist() for number in (0, 1)]

        for rows in (*orders(1), np.concatenate([step.rows for step in source(1).plain()]).tolist()):
            assert sorted(rows) == list(range(windows)), name
        assert orders(1) == orders(1) != orders(2), name
        assert orders(1)[0] != orders(1)[1], name
        assert source(1).steps(2) == sum(1 for number in (0, 1) for _ in source(1).epoch(number)), name


def test_layers_that_no_head_reads_are_not_computed() -> None:
    shape = Shape(7, 384, 2, paired=False, pooled=False)
    asked = {"adapter-64:layers=0-2": 2, "adapter-64:layers=0-2,closed-form:layers=4": 4, "adapter-64": 6}
    for labels, depth in asked.items():
        assert depth_of(shape, build(labels.split(","), shape, 0)) == depth
    # The pooler reads the last layer.
    pooled = replace(shape, pooled=True)
    assert depth_of(pooled, build(["closed-form:layers=0"], pooled, 0)) == 6


def test_the_planner_chooses_what_is_fastest_and_possible() -> None:
    work = Work(windows=100_000, tokens=17_000_000, epochs=4, shape=Shape(7, 384, 2, True, False, True))
    rates = Rates(
        flops=1e11, heads=500, read=1e8, write=1e8, decode={"fp16": 3e9, "int8": 1e9}, memory=20 * 10**9, disk=10**12
    )
    assert choose(estimates(work, rates), "auto").mode == "int8"  # a slow encoder: never twice
    assert choose(estimates(work, replace(rates, flops=1e14)), "auto").mode == "recompute"  # a fast one: no disk
    assert choose(estimates(replace(work, windows=1000, tokens=170_000), rates), "auto").mode == "memory"
    # Of texts only pooled views are kept, so that many more fit in memory than of questions.
    texts = replace(work, shape=replace(work.shape, span=False))
    assert choose(estimates(texts, rates), "auto").mode == "memory"
    assert choose(estimates(texts, replace(rates, memory=10**9)), "auto").mode != "memory"
    little = replace(rates, disk=10**9)
    assert choose(estimates(work, little), "auto").mode == "recompute"
    with pytest.raises(UserError, match=r"--mode stored is not possible here \(fp16: .* only 1.0 GB of disk"):
        choose(estimates(work, little), "stored")


def test_the_plan_is_printed_for_this_machine_and_for_another(table: Path, command: Command) -> None:
    line = ("plan", "table", "--train", table, "--backbone", "tiny", "--heads", "adapter-64")
    code, out, _ = command(*line)
    assert code == 0
    assert "recompute" in out
    large = ("--layers", 25, "--features", 1024, "--flops", 5e13, "--disk-rate", 2e9)
    code, out, _ = command(*line, *large, "--json")
    assert code == 0
    assert json.loads(out)["best"] in ("memory", "recompute")


def test_a_plan_counts_the_layers_of_hidden_states(table: Path) -> None:
    request = Request(train=str(table), backbone="tiny", heads="adapter-64", folds="0")
    sizes = {}
    for layers in (None, 4, 25):  # tiny has four, BERT-large twenty-five with the embeddings
        rows = plan(request, Machine(layers=layers, features=10**6), QUIET).modes
        sizes[layers] = next(row["states"] for row in rows if row["mode"] == "memory")
    windows = 97  # 120 rows, less a tenth for dev and a tenth of the rest that is held out
    assert sizes[None] == sizes[4]
    assert sizes[25] == f"{windows * 25 * 2 * 4 * 1e6 / 1e9:,.2f} GB"


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
    seen = []
    for batch in store.batches(7):
        for name, hidden, real in zip(batch.ids, batch.hidden, batch.mask, strict=True):
            kept = states[int(name)][mask[int(name)]] if tokens else states[int(name), :1]
            assert np.allclose(hidden[:, real].numpy(), kept.transpose(2, 0, 1)), name
            seen.append(int(name))
    assert sorted(seen) == list(range(80))
    best = "closed-form" if tokens else "adapter-64"  # the former reads the mean over tokens, which is not there
    settings = {"heads": "closed-form,adapter-64", "head_lr": 1e-2, "epochs": 20, "quiet": True}
    run = bertvision.train(tmp_path / "store", out=tmp_path / "run", **settings)
    assert run.results.last.score(best, "accuracy").value > 0.9
    assert ("closed-form" in run.results.last.models) == tokens
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
