"""The pass: an encoder at rest gives the states of raw transformers, whatever else goes on, and leaves no trace."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from conftest import sentences, write_csv
from test_backbones import saved

import bertvision
from bertvision.backbones import tiny
from bertvision.backbones.encoder import Encoder, layers_of, load
from bertvision.backbones.tokenise import Encoded, tokenise
from bertvision.heads.variants import build
from bertvision.inference.answer import Target, answer
from bertvision.kinds import Scale
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.recipe import Recipe
from bertvision.states.hidden import PAIR_VIEWS, SINGLE_VIEWS
from bertvision.states.passes import Reads, Step, clean_pass, collect
from bertvision.states.sources import Memory, Recompute, Source, Stored, collect_tokens
from bertvision.types import Examples

SOURCE = Path(bertvision.__file__).parent
FIRST = ["the cat is big", "a dog", "the story is very good and the music is not", "red", "people like the river"]
SECOND = ["the small cat", "the dog and the river is fast", "a bad film", "blue green", "no"]
PAIRS = Examples(FIRST, SECOND, None)
SINGLE = Examples(FIRST, None, None)


def made(examples: Examples = PAIRS) -> tuple[Encoder, Encoded]:
    """In training mode, with dropout: a pass that does not switch it off is not repeatable."""
    encoder = load("tiny", 2, seed=0).train()
    return encoder, tokenise(encoder, examples, Recipe(max_length=64), split_contexts=False)


def by_row(steps: Iterator[Step]) -> dict[int, torch.Tensor]:
    """row -> states (L, T, D), of tokens without padding."""
    found = {}
    for step in steps:
        for i, row in enumerate(step.rows.tolist()):
            assert row not in found, "a row twice"
            states, mask = step.states.layers[i], step.states.mask
            found[row] = states if mask is None else states[:, mask[i].bool()]
    return found


def raw(*texts: str) -> tuple[torch.Tensor, list[int | None], torch.Tensor]:
    """Hidden states (L, T, D), which text each token is of, and the pooler's output, by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny.folder())
    model = transformers.AutoModel.from_pretrained(tiny.folder()).eval()
    inputs = tokenizer(*texts, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs, output_hidden_states=True)
    return torch.stack(found.hidden_states)[:, 0], inputs.sequence_ids(0), found.pooler_output[0]


def close(one: torch.Tensor, other: torch.Tensor, atol: float = 1e-5) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=atol)


# ---- what it yields


def test_every_window_comes_once_and_the_longest_first() -> None:
    encoder, encoded = made()
    steps = list(clean_pass(encoder, encoded, Reads(paired=True)))
    assert sorted(np.concatenate([step.rows for step in steps]).tolist()) == [0, 1, 2, 3, 4]
    assert encoded.together.lengths[steps[0].rows[0]] == encoded.together.lengths.max()
    asked = [np.array([3, 0]), np.array([2])]
    some = [step.rows.tolist() for step in clean_pass(encoder, encoded, Reads(paired=True), batches=asked)]
    assert some == [[3, 0], [2]]


def test_tokens_and_logits_of_joint_windows_are_those_of_raw_transformers() -> None:
    encoder, encoded = made()
    found = by_row(clean_pass(encoder, encoded, Reads(tokens=True)))
    for row, texts in enumerate(zip(FIRST, SECOND, strict=True)):
        assert close(found[row], raw(*texts)[0]), row
    with torch.no_grad():
        expected = [
            encoder.eval().model(**encoder.tokenizer(*texts, return_tensors="pt")).logits[0]
            for texts in zip(FIRST, SECOND, strict=True)
        ]
    encoder.train()
    for step in clean_pass(encoder, encoded, Reads(paired=True)):
        assert step.logits is not None
        for i, row in enumerate(step.rows):
            assert close(step.logits[i], expected[row]), row


def test_views_of_joint_windows_are_means_of_raw_transformers_tokens() -> None:
    for examples, views in ((PAIRS, PAIR_VIEWS), (SINGLE, SINGLE_VIEWS)):
        encoder, encoded = made(examples)
        for step in clean_pass(encoder, encoded, Reads(paired=examples is PAIRS)):
            assert step.states.views == views
            assert step.states.mask is None
            assert step.states.pooled is not None
            for i, row in enumerate(step.rows):
                texts = (FIRST[row], SECOND[row]) if examples is PAIRS else (FIRST[row],)
                tokens, owners, pooled = raw(*texts)
                parts = {"first": [o == 0 for o in owners], "second": [o == 1 for o in owners]}
                expected = {"cls": tokens[:, 0], "mean": tokens.mean(1)}
                expected |= {
                    name: tokens[:, torch.tensor(inside)].mean(1) for name, inside in parts.items() if any(inside)
                }
                for place, view in enumerate(views):
                    assert close(step.states.layers[i, :, place], expected[view]), (row, view)
                assert close(step.states.pooled[i], pooled), row


def test_separate_texts_are_each_encoded_alone() -> None:
    encoder, encoded = made()
    for step in clean_pass(encoder, encoded, Reads(paired=True), way="separate"):
        assert step.states.views == PAIR_VIEWS
        assert step.logits is None  # the encoder's answer is about both texts together
        assert step.states.pooled is not None
        for i, row in enumerate(step.rows):
            (one, _, pooled), (two, _, other) = raw(FIRST[row]), raw(SECOND[row])
            expected = [(one[:, 0] + two[:, 0]) / 2, (one.mean(1) + two.mean(1)) / 2, one.mean(1), two.mean(1)]
            assert close(step.states.layers[i], torch.stack(expected, 1)), row
            assert close(step.states.pooled[i], (pooled + other) / 2), row


def test_padding_is_zero_in_token_states_and_answers_may_stand_in_the_second_text_or_at_cls() -> None:
    encoder, encoded = made()
    (step,) = clean_pass(encoder, encoded, Reads(tokens=True))
    mask, places = step.states.mask, step.states.places
    assert mask is not None
    assert places is not None
    assert mask.sum(1).tolist() == encoded.together.lengths[step.rows].tolist()
    assert (step.states.layers.transpose(1, 2)[~mask.bool()] == 0).all()
    assert (step.states.layers.transpose(1, 2)[mask.bool()] != 0).any(-1).all()
    for i, row in enumerate(step.rows):
        first, last = encoded.together.offsets[row : row + 2]
        expected = encoded.together.segments[first:last] == 2
        expected[0] = True
        assert places[i, : last - first].tolist() == expected.tolist()
        assert not places[i, last - first :].any()


@pytest.mark.parametrize("name", ["tiny", "modernbert"])
def test_layers_above_the_depth_are_zeros_and_those_below_are_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    """Also where, as in ModernBERT, a last norm is applied to whatever layer comes last."""
    encoder = load("tiny" if name == "tiny" else str(saved(name, tmp_path)), 2, seed=0)
    encoded = tokenise(encoder, PAIRS, Recipe(max_length=64), split_contexts=False)
    stack = list(layers_of(encoder.model.base_model))
    for reads in (Reads(paired=True), Reads(tokens=True)):
        whole = by_row(clean_pass(encoder, encoded, reads))
        for depth in range(encoder.layers):
            part = by_row(clean_pass(encoder, encoded, reads, depth=depth))
            for row, states in whole.items():
                assert part[row].shape == states.shape
                assert torch.equal(part[row][: depth + 1], states[: depth + 1]), (depth, row)
                assert (part[row][depth + 1 :] == 0).all(), (depth, row)
    assert list(layers_of(encoder.model.base_model)) == stack


def test_only_the_layers_asked_for_are_kept() -> None:
    encoder, encoded = made()
    for reads in (Reads(paired=True), Reads(tokens=True)):
        whole = by_row(clean_pass(encoder, encoded, reads))
        some = by_row(clean_pass(encoder, encoded, replace(reads, layers=(0, 2))))
        assert all(torch.equal(some[row], states[[0, 2]]) for row, states in whole.items())


def test_neighbours_in_a_batch_change_nothing() -> None:
    encoder, encoded = made()
    for reads, way in ((Reads(paired=True), "joint"), (Reads(paired=True), "separate"), (Reads(tokens=True), "joint")):
        alone = by_row(clean_pass(encoder, encoded, reads, way=way, batches=[np.array([row]) for row in range(5)]))
        together = by_row(clean_pass(encoder, encoded, reads, way=way, batches=[np.array([4, 0, 2, 1, 3])]))
        assert all(close(alone[row], together[row]) for row in range(5)), (reads, way)


def test_half_precision_gives_float32_states_close_to_those_of_float32() -> None:
    encoder, encoded = made()
    for reads in (Reads(paired=True), Reads(tokens=True)):
        exact = next(clean_pass(encoder, encoded, reads)).states
        rough = next(clean_pass(encoder, encoded, reads, precision=torch.bfloat16)).states
        assert rough.layers.dtype == torch.float32
        assert rough.pooled is not None
        assert exact.pooled is not None
        assert rough.pooled.dtype == torch.float32
        assert close(rough.layers, exact.layers, atol=0.1)
        assert close(rough.pooled, exact.pooled, atol=0.1)
        assert not torch.equal(rough.layers, exact.layers)  # it was in fact computed in half precision
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


# ---- what it leaves behind


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("end", ["exhausted", "abandoned", "failed"])
def test_mode_and_layers_of_the_encoder_are_restored_however_the_pass_ends(training: bool, end: str) -> None:
    encoder, encoded = made()
    encoder.train(training)
    stack = list(layers_of(encoder.model.base_model))
    steps = clean_pass(encoder, encoded, Reads(paired=True), batches=[np.array([0]), np.array([1])], depth=1)

    def consume() -> None:
        for step in steps:
            assert not encoder.training
            assert len(layers_of(encoder.model.base_model)) == 1
            if end == "failed":
                raise ArithmeticError(str(step.rows))
            if end == "abandoned":
                break

    if end == "failed":
        with pytest.raises(ArithmeticError):
            consume()
    else:
        consume()
    steps.close()  # type: ignore[attr-defined]  # what the end of the last reference to it does
    assert all(module.training == training for module in encoder.modules())
    assert list(layers_of(encoder.model.base_model)) == stack


def test_a_pass_that_nobody_holds_any_more_is_over() -> None:
    encoder, encoded = made()
    for _ in clean_pass(encoder, encoded, Reads(paired=True), depth=1, batches=[np.array([0]), np.array([1])]):
        break
    assert encoder.training
    assert len(layers_of(encoder.model.base_model)) == 3


def test_an_encoder_that_fails_is_restored_too() -> None:
    encoder, encoded = made()
    with pytest.raises(IndexError):
        list(clean_pass(encoder, encoded, Reads(paired=True), batches=[np.array([99])], depth=1))
    assert encoder.training
    assert len(layers_of(encoder.model.base_model)) == 3


def test_heads_learn_from_what_it_yields_and_the_encoder_does_not() -> None:
    encoder, encoded = made()
    shape = bertvision.Shape(encoder.layers, encoder.features, 2, True, True)
    head = build(["adapter-64-views"], shape, 0)["adapter-64-views"]
    for step in clean_pass(encoder, encoded, Reads(paired=True)):
        assert torch.is_grad_enabled()  # also while the pass is under way
        assert not step.states.layers.is_inference()
        assert not step.states.layers.requires_grad
        head(step.states).square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().sum() > 0 for value in head.parameters())
    assert all(value.grad is None for value in encoder.parameters())


def test_the_random_state_is_not_touched() -> None:
    encoder, encoded = made()
    before = torch.get_rng_state()
    first, second = (by_row(clean_pass(encoder, encoded, Reads(paired=True))) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)  # fine-tuning goes on with it
    assert all(torch.equal(first[row], second[row]) for row in first)


# ---- answers are the same wherever the states come from


def answered(source: Source | Iterator[Step], setting: Any, split: str, heads: Any) -> dict[str, np.ndarray]:
    steps = source if isinstance(source, Iterator) else source.plain()
    target = Target(setting.dataset.kind, setting.scale, setting.shape)
    return answer(steps, setting.windows[split], heads, target)


def differing(found: dict[str, dict[str, np.ndarray]], atol: float) -> list[str]:
    """Models on which a source differs from the pass itself; of memory the encoder's answer is not known."""
    expected = found["pass"]
    return [
        f"{source}: {name}"
        for source, answers in found.items()
        for name in expected
        if (name in answers or source != "memory") and not np.allclose(answers[name], expected[name], atol=atol)
    ]


def test_classes_and_scores_are_answered_alike_from_memory_a_store_and_the_encoder(tmp_path: Path) -> None:
    rows = [(text, f"{text} the cat", str(i % 7 / 2)) for i, (text, _) in enumerate(sentences(60))]
    write_csv(tmp_path / "pairs.csv", ("one", "two", "score"), rows)
    write_csv(tmp_path / "texts.csv", ("text", "label"), sentences(60))
    pair = {"train": str(tmp_path / "pairs.csv"), "text": "one", "text_pair": "two"}
    for name, data, way in (
        ("joint", pair, "joint"),
        ("separate", pair, "separate"),
        ("texts", {"train": str(tmp_path / "texts.csv")}, "joint"),
    ):
        request = Request(task="table", backbone="tiny", heads="all", pairs="auto" if name == "texts" else way, **data)
        setting = prepare(request, Progress(quiet=True))
        encoder, encoded, reads = setting.encoder, setting.encoded["dev"], setting.reads
        heads = build([label for label in setting.names if label != "xception"], setting.shape, 0)
        options = {} if name == "texts" else {"pairs": way}
        store = bertvision.extract("tiny", "table", out=tmp_path / name, dtype="fp32", quiet=True, **data, **options)
        assert store is not None
        found = {
            "pass": answered(clean_pass(encoder, encoded, reads, way=way), setting, "dev", heads),
            "memory": answered(Memory(collect(encoder, encoded, reads, way), 0), setting, "dev", heads),
            "recompute": answered(Recompute(encoder, encoded, reads, 0, way=way), setting, "dev", heads),
            "store": answered(Stored(store, "dev"), setting, "dev", heads),
        }
        assert set(found["memory"]) == set(heads)
        assert ("encoder" in found["pass"]) == (way == "joint")
        assert differing(found, 1e-4) == [], name


def test_spans_are_answered_alike_from_memory_a_store_and_the_encoder(tmp_path: Path) -> None:
    options = {"limit": 40, "dev_limit": 20}
    setting = prepare(
        Request(task="squad2-invented", backbone="tiny", heads="default", **options), Progress(quiet=True)
    )
    encoder, encoded, reads = setting.encoder, setting.encoded["dev"], setting.reads
    heads = build(setting.names, setting.shape, 0)
    store = bertvision.extract("tiny", "squad2-invented", out=tmp_path / "store", dtype="fp32", quiet=True, **options)
    assert store is not None
    found = {
        "pass": answered(clean_pass(encoder, encoded, reads), setting, "dev", heads),
        "memory": answered(Memory(collect_tokens(encoder, encoded, 0), 0), setting, "dev", heads),
        "recompute": answered(Recompute(encoder, encoded, reads, 0), setting, "dev", heads),
        "store": answered(Stored(store, "dev"), setting, "dev", heads),
    }
    assert differing(found, 1e-3) == []  # memory holds float16
    assert differing({key: found[key] for key in ("pass", "recompute", "store")}, 1e-5) == []


def test_answering_puts_heads_into_evaluation_mode() -> None:
    encoder, encoded = made()
    shape = bertvision.Shape(encoder.layers, encoder.features, 2, True, True)
    heads = build(["adapter-64-views:dropout=0.5"], shape, 0)
    heads["adapter-64-views:dropout=0.5"].train()
    target = Target("class", Scale(), shape)
    one, two = (
        answer(clean_pass(encoder, encoded, Reads(paired=True)), encoded.together, heads, target) for _ in range(2)
    )
    assert list(one) == ["encoder", "adapter-64-views:dropout=0.5"]
    assert all(np.array_equal(one[name], two[name]) for name in one)


# ---- there is one pass


def places(pattern: str) -> set[str]:
    """Source files with a line that matches."""
    found = re.compile(pattern)
    return {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if found.search(path.read_text())}


def test_nothing_but_the_pass_and_the_training_loop_runs_an_encoder() -> None:
    assert places(r"encoder\([^)]*\binputs\b") == {"states/passes.py", "training/loop.py"}
    assert places(r"inference_mode") == set()
    assert places(r"encoder\.eval\(") == {"states/passes.py"}
    assert places(r"\.eval\(\)") == {
        "states/passes.py",  # the encoder
        "inference/answer.py",  # heads
        "inference/model.py",  # what is loaded is never trained
        "heads/description.py",  # a head, to count what it computes
    }
    assert places(r"encoder\.train\(") == {"states/passes.py", "training/loop.py"}
    assert places(r"(?<!def )\bby_length\(") == {
        "states/passes.py",
        "training/polish.py",  # states of as many rows as there is time for
        "training/reported.py",  # answers to as many rows as there is time for
    }
