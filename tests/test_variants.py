"""Variants of heads: how they are written, that a stack of them is each of them alone, and what each option does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import tiny_fit
from test_heads import PAIRS, TEXTS, TOKENS, learn, planted, states

import bertvision
from bertvision.errors import UserError
from bertvision.heads import heads
from bertvision.heads.base import Head, Shape
from bertvision.heads.closed_form import ClosedForm
from bertvision.heads.variants import build, expand, make, parse
from bertvision.recipe import Recipe
from bertvision.states.hidden import HiddenStates
from bertvision.states.sources import Memory
from bertvision.tasks.sampling import ranks
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.polish import Lesson, polish
from bertvision.training.stacking import Stack, stacks
from bertvision.types import Examples


def targets_of(shape: Shape, count: int) -> torch.Tensor:
    return torch.tensor([[4, 4], [0, 0], [3, 5]]).repeat(count, 1)[:count] if shape.span else torch.arange(count) % 2


def trained(labels: list[str], shape: Shape) -> dict[str, Head]:
    """After three steps on the same batches, of examples with ranks from 0 to 1."""
    found = build(labels, shape, seed=5)
    trainer = HeadTrainer(found, "span" if shape.span else "class", lr=1e-3, seed=5)
    for seed in range(3):
        trainer.accumulate(states(shape, seed=seed), targets_of(shape, 6), ranks=torch.linspace(0, 0.99, 6))
        trainer.step(1.0)
    return found


def same(one: Head, other: Head) -> bool:
    """Equal but for rounding, which Adam makes larger where a gradient is nearly nothing."""
    kept = other.state_dict()
    return all(torch.allclose(value, kept[key], atol=1e-4) for key, value in one.state_dict().items())


@pytest.mark.slow
def test_gradients_of_a_stack_are_those_of_each_head_alone() -> None:
    failures = []
    for name in heads:
        for shape in (PAIRS, TOKENS):
            # Batch statistics cannot be stacked, and a head in closed form has no gradients.
            if heads[name].fits(shape) and not name.startswith("xception") and name != "closed-form":
                failures += [(name, shape.span, key) for key in differing_gradients(name, shape)]
    assert failures == []


def differing_gradients(name: str, shape: Shape) -> list[str]:
    """Parameters whose gradients differ between variants in one stack and each of them alone."""
    labels = expand(f"{name}:seed=0/1:data=50/100", shape)
    found = []
    for groups in ([labels], [[label] for label in labels]):
        made: dict[str, dict[str, torch.Tensor]] = {}
        for group in groups:
            trainer = HeadTrainer(build(group, shape, seed=5), "span" if shape.span else "class", lr=1e-3, seed=5)
            assert len(trainer.stacks) == 1, name
            trainer.accumulate(states(shape), targets_of(shape, 6), ranks=torch.linspace(0, 0.99, 6))
            made |= gradients(trainer.stacks[0])
        found.append(made)
    stacked, alone = found
    return [
        f"{label} {key}"
        for label in labels
        for key, one in stacked[label].items()
        if not torch.allclose(one, alone[label][key], rtol=1e-3, atol=1e-6)
    ]


def gradients(stack: Stack) -> dict[str, dict[str, torch.Tensor]]:
    """label -> parameter -> gradient; of one head alone, or slices of what a stack has in common."""
    (leaves,) = stack.leaves.values()
    return {
        label: {key: value.grad if len(stack.heads) == 1 else value.grad[i] for key, value in leaves.items()}
        for i, label in enumerate(stack.labels)
    }


def test_a_stack_of_variants_is_trained_as_each_of_them_alone() -> None:
    for name in ("adapter-64", "learned-pooling-views", "last-layer-views", "layer-attention"):
        labels = expand(f"{name}:seed=0/1:lr=1e-3/1e-2:data=0/50/100", PAIRS)
        before = torch.get_rng_state()
        together = trained(labels, PAIRS)
        assert torch.equal(torch.get_rng_state(), before)  # the encoder's dropout draws from there
        for label in labels:
            assert same(trained([label], PAIRS)[label], together[label]), label
        assert not same(together[labels[1]], together[labels[-1]]), name


def test_heads_that_cannot_be_stacked_are_trained_one_by_one() -> None:
    labels = expand("xception-abbreviated:seed=0/1,adapter-64:layers=0-1/0-2", PAIRS)
    together = trained(labels, PAIRS)
    assert len(stacks(together, dict.fromkeys(together, 1e-3))) == 4  # other layers are another structure
    for label in labels:
        assert same(trained([label], PAIRS)[label], together[label]), label


def test_options_are_spread_and_mistakes_are_named() -> None:
    assert expand("adapter-64:seed=0..2:data=0..20", TEXTS) == [
        f"adapter-64:seed={seed}:data={data}" for seed in (0, 1, 2) for data in (0, 10, 20)
    ]
    assert len(expand("default:seed=0/1", TEXTS)) == 2 * len(expand("default", TEXTS))
    variant = parse("adapter-64:lr=3e-4:data=25%:layers=0-1+3:views=cls+mean:normalised=yes:dropout=0.3")
    assert variant.layers == (0, 1, 3)
    assert variant.data == 0.25
    assert variant.views == ("cls", "mean")
    for asked, message in (
        ("adapter-64:size=3", "'size=3' should be OPTION=VALUE, of lr, seed, data"),
        ("adapter-64:lr", "'lr' should be OPTION=VALUE"),
        ("adapter-64:lr=fast", "lr cannot be 'fast'"),
        ("adapter-64:data=120", "data cannot be '120'"),
        ("adapter-64:seed=-1", "seed cannot be '-1'"),
        ("adapter-64:lr=1..3", "a range is for seed and data"),
        ("adapter-64:layers=2-9", r"layers are 0 \(embeddings\) to 3"),
        ("adapter-64:layers=", "layers cannot be ''"),
        ("adapter-64:views=first", "'first' is not one of this task's views: cls, mean"),
        ("top-1", "no head called 'top-1'"),
        ("adaptor-64:seed=1", "Did you mean 'adapter-64'"),
    ):
        with pytest.raises(UserError, match=message):
            expand(asked, TEXTS)
    with pytest.raises(UserError, match="'adapter-64' does not support views"):
        expand("adapter-64:views=cls", TOKENS)


def test_a_head_reads_the_layers_and_views_it_was_told_to() -> None:
    before, after = states(PAIRS), states(PAIRS)
    after.layers[:, 2] += 5
    after.layers[:, :, 0] += 5  # [CLS]
    for name in ("adapter-64", "learned-pooling-views", "layer-attention", "xception-abbreviated", "closed-form"):
        head = build([f"{name}:layers=0+3:views=mean+first"], PAIRS, 0)[f"{name}:layers=0+3:views=mean+first"].eval()
        assert torch.equal(head(before), head(after)), name
        whole = build([name], PAIRS, 0)[name].eval()
        assert not torch.equal(whole(before), whole(after)), name


def test_several_views_go_with_a_trained_pooler() -> None:
    shape = Shape(layers=4, features=16, outputs=2, paired=True, pooled=True)
    for name in ("adapter-64", "xception-abbreviated"):
        head = build([f"{name}:views=cls+mean+difference"], shape, 0)[f"{name}:views=cls+mean+difference"].eval()
        assert head(states(shape)).shape == (6, 2)


def test_normalised_states_and_dropout_are_as_asked() -> None:
    scaled = HiddenStates(3 * states(PAIRS).layers + 1, states(PAIRS).views)
    plain, normalised = make("adapter-64", PAIRS), make("adapter-64:normalised=yes", PAIRS)
    normalised.load_state_dict(plain.state_dict())
    assert torch.allclose(normalised(scaled), normalised(states(PAIRS)), atol=1e-5)
    assert not torch.allclose(plain(scaled), plain(states(PAIRS)), atol=1e-5)
    noisy = make("cnn-1xn:dropout=0.5", PAIRS).train()
    assert not torch.equal(noisy(scaled), noisy(scaled))
    calm = make("cnn-1xn:dropout=0", PAIRS).train()
    assert torch.equal(calm(scaled), calm(scaled))


def test_a_share_of_the_data_is_all_that_is_seen() -> None:
    labels = [f"{name}:data=50" for name in ("adapter-64-views", "closed-form", "closed-form-adapter")]
    found = []
    for shift in (0.0, 9.0):
        data, targets = planted(PAIRS, layer=1, count=64, seed=0)
        data.layers[32:] += shift
        heads_here = build(labels, PAIRS, 0)
        polish(heads_here, Lesson(Memory(data, 0), targets, "class", torch.arange(64) / 64), Recipe(polish=1))
        found.append(heads_here)
    for label in labels:
        assert same(found[0][label], found[1][label]), label


def test_ranks_are_nested_stratified_and_decided_by_the_data() -> None:
    targets = np.array([0] * 80 + [1] * 20)
    examples = Examples([f"text {i}" for i in range(100)], None, targets)
    found = ranks(examples)
    for share in (0.1, 0.5):
        assert (targets[found < share] == 1).sum() == 20 * share
        assert (targets[found < share] == 0).sum() == 80 * share
    assert (found == ranks(examples)).all()


@pytest.mark.parametrize("kind", ["class", "score"])
def test_closed_form_scores_and_rare_classes(kind: str) -> None:
    shape = Shape(layers=4, features=16, outputs=3 if kind == "class" else 1, paired=False, pooled=False)
    data = states(shape, 300)
    targets = torch.arange(300) % 2 if kind == "class" else data.layers[:, 2, 1, 5] * 2  # of three classes two occur
    if kind == "class":
        data.layers[:, 2, :, 5] += 6.0 * (2 * targets[:, None] - 1)
    head = build(["closed-form"], shape, 0)["closed-form"]
    assert isinstance(head, ClosedForm)
    learn({"closed-form": head}, data, targets, kind, 1, 0.0)
    answers = head.eval()(data)
    assert int(head.profile.argmax()) == 2
    if kind == "class":
        assert (answers.argmax(1) == targets).float().mean() > 0.98
        assert answers.softmax(1)[:, 2].max() < 1e-3
    else:
        assert torch.corrcoef(torch.stack([answers[:, 0], targets]))[0, 1] > 0.85


def test_no_example_at_all_leaves_a_closed_form_as_it_was() -> None:
    heads_here = build(["closed-form:data=1"], TEXTS, 0)
    before = heads_here["closed-form:data=1"].output.weight.clone()
    data, targets = planted(TEXTS, layer=1, count=20, seed=0)
    polish(heads_here, Lesson(Memory(data, 0), targets, "class", torch.linspace(0.5, 1, 20)), Recipe(polish=1))
    assert torch.equal(heads_here["closed-form:data=1"].output.weight, before)


def test_one_class_alone_does_not_trouble_a_closed_form() -> None:
    head = build(["closed-form"], TEXTS, 0)["closed-form"]
    learn({"closed-form": head}, states(TEXTS, 20), torch.zeros(20).long(), "class", 1, 0.0)
    assert (head(states(TEXTS)).argmax(1) == 0).all()


def test_a_run_with_every_new_kind_of_head_can_be_loaded_and_repeats_its_scores(table: Path, tmp_path: Path) -> None:
    run = tiny_fit(
        table,
        tmp_path / "run",
        heads="closed-form,closed-form-adapter,adapter-64:data=0/50/100:layers=1-3",
        epochs="1",
        marks="0,1",
        polish=2,
        polish_until="all",
    )
    last = run.results.last
    assert {"closed-form+polish", "closed-form-adapter+polish", "adapter-64:data=50:layers=1-3"} <= set(last.models)
    assert "closed-form" in last.models  # as the lead; otherwise nothing is solved while the encoder is trained
    assert len(last.layer_profiles["closed-form+polish"]) == 4
    assert bertvision.evaluate(tmp_path / "run@1").scores["dev"] == last.scores["dev"]
