"""Weights of rows in training: of the encoder, the lead, heads trained by gradients and heads that are solved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from test_heads import PAIRS, TEXTS, planted, states
from test_lead import ready

from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import build
from bertvision.prepare import Prepared
from bertvision.recipe import Recipe
from bertvision.states.hidden import HiddenStates
from bertvision.states.sources import Memory
from bertvision.training import lead
from bertvision.training.head_trainer import HeadTrainer
from bertvision.training.loop import Loop, loop_of
from bertvision.training.polish import Lesson, polish
from bertvision.types import TRAIN

SOLVED = ("closed-form", "embedding")
SCORES = Shape(layers=4, features=16, outputs=1, paired=False, pooled=False)


def polished(
    names: tuple[str, ...], data: HiddenStates, targets: torch.Tensor, weights: torch.Tensor | None, kind: str = "class"
) -> dict[str, Head]:
    found = build(names, SCORES if kind == "score" else TEXTS, 0)
    lesson = Lesson(Memory(data, 0), targets, kind, weights=weights)
    polish(found, lesson, Recipe(polish=4, head_lr=5e-3))
    return {name: head.eval() for name, head in found.items()}


def scattered(count: int, seed: int = 0, share: float = 0.5) -> tuple[HiddenStates, torch.Tensor]:
    """Two classes that overlap in the last layer; the second has a share of the rows."""
    data, targets = states(TEXTS, count, seed), (torch.arange(count) % 20 < 20 * share).long()
    data.layers[:, -1, :, 3] += 0.7 * (2 * targets[:, None] - 1)
    return data, targets


@pytest.mark.parametrize("kind", ["class", "score"])
def test_weight_zero_is_no_row_and_a_factor_of_all_weights_is_nothing(kind: str) -> None:
    data, targets = scattered(120)
    targets = targets if kind == "class" else data.layers[:, -1, 1, 3]
    weights = 0.2 + torch.rand(120, generator=torch.Generator().manual_seed(0))
    some = torch.arange(120) % 3 > 0
    zero, few = torch.where(some, weights, 0.0), torch.nonzero(some)[:, 0]
    found = polished(SOLVED, data, targets, zero, kind)
    absent = polished(SOLVED, data.take(few), targets[few], 5 * weights[few], kind)
    unweighted = polished(SOLVED, data, targets, None, kind)
    for name in SOLVED:
        torch.testing.assert_close(found[name](data), absent[name](data), rtol=1e-3, atol=1e-3)
        assert not torch.allclose(found[name](data), unweighted[name](data), atol=1e-2), name


@pytest.mark.parametrize("name", ["closed-form", "embedding", "adapter-64-views"])
def test_a_rare_class_that_weighs_more_is_found_more_often(name: str) -> None:
    data, targets = scattered(400, share=0.1)
    test, truth = scattered(400, seed=1, share=0.1)
    balanced = torch.where(targets == 1, 5.0, 0.5 / 0.9)
    recalls = []
    for weights in (None, balanced):
        said = polished((name,), data, targets, weights)[name](test).argmax(1)
        recalls.append(float((said[truth == 1] == 1).float().mean()))
    assert recalls[0] < 0.6
    assert recalls[1] > recalls[0] + 0.2


def test_gradients_are_those_of_the_weighted_mean() -> None:
    data, targets = planted(PAIRS, layer=1, count=6, seed=0)
    found = []
    for rows, weights in ((torch.tensor([0, 1, 1, 2, 2, 2]), None), (torch.arange(3), torch.tensor([0.5, 1.0, 1.5]))):
        trainer = HeadTrainer(build(["last-layer", "last-layer:seed=1"], PAIRS, 0), "class", lr=1.0, seed=0)
        trainer.accumulate(data.take(rows), targets[rows], weights=weights)
        found.append([p.grad for stack in trainer.stacks for part in stack.leaves.values() for p in part.values()])
    assert len(found[0]) == 2
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def weighted(setting: Prepared, weights: np.ndarray) -> Prepared:
    """The same with weights of the training examples, in some unit."""
    return replace(setting, parts=setting.parts | {TRAIN: replace(setting.parts[TRAIN], weights=weights)})


def tuned(setting: Prepared) -> Loop:
    """After ten steps with a lead and a head that rides along."""
    setting.encoder.requires_grad_(True)
    loop = loop_of(setting, build(["last-layer-views"], setting.shape, 0), Accelerator(cpu=True))
    assert loop.lead is not None
    lead.start(loop.lead, setting)
    loop.advance(10, 100, lambda loss: None)
    return loop


def test_fine_tuning_and_its_lead_follow_the_weights(table: Path) -> None:
    """The encoder of each setting is another one with the same weights, since seeds decide."""
    plain, same, one_class = (ready(table) for _ in range(3))
    first = tuned(plain)
    equal = tuned(weighted(same, np.full(len(same.parts[TRAIN]), 4.0)))
    kept = equal.tensors()
    assert all(torch.equal(value, kept[key]) for key, value in first.tensors().items() if key.startswith("encoder."))
    targets = one_class.targets(TRAIN)
    loop = tuned(weighted(one_class, (targets == 1).astype(float)))
    before, after = (
        part.encoder(part.encoder.batch(part.windows[TRAIN], np.arange(20)).inputs)[0] for part in (plain, one_class)
    )
    assert (after.diff(dim=1) > before.diff(dim=1)).all()  # every row is nearer to the only class that counts
    assert loop.lead is not None
    assert (loop.lead.output.bias[1] - loop.lead.output.bias[0]) > 5


def test_weights_of_examples_are_those_of_their_windows(table: Path) -> None:
    setting = ready(table)
    assert setting.train_weights() is None
    count = len(setting.parts[TRAIN])
    found = weighted(setting, np.arange(count) % 3.0).train_weights()
    assert found is not None
    torch.testing.assert_close(found, torch.arange(count) % 3 / (torch.arange(count) % 3).float().mean())
