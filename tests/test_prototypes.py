"""Prototypes: closeness to the means of classes, with a computation from scratch as the reference."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from bertvision.heads.base import Rows, Shape
from bertvision.heads.prototypes import Prototypes
from bertvision.heads.variants import build
from bertvision.states.hidden import SINGLE_VIEWS, HiddenStates

ROWS, FEATURES, CLASSES = 40, 12, 5


def data(weighted: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs far from 0, of classes of which one has a single row, and weights."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, FEATURES, generator=draw).double() + 3
    classes = torch.arange(ROWS) % (CLASSES - 1)
    classes[7] = CLASSES - 1
    weights = 0.2 + torch.rand(ROWS, generator=draw).double() if weighted else torch.ones(ROWS).double()
    return inputs, functional.one_hot(classes, CLASSES).double(), weights


def solved(inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> Prototypes:
    found = Prototypes(FEATURES, CLASSES)
    for rows in torch.arange(ROWS).split(7):
        found.add(inputs[rows], targets[rows], weights[rows])
    found.solve()
    return found


def closeness(rows: np.ndarray, sums: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return rows @ np.divide(sums, lengths, where=lengths > 1e-9, out=np.zeros_like(sums)).T / FEATURES**0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_left_out_have_no_part_in_any_mean(weighted: bool) -> None:
    inputs, targets, weights = data(weighted)
    found = solved(inputs, targets, weights)
    left_out = found.left_out(inputs, targets, weights).numpy()
    for row in range(ROWS):
        others = np.arange(ROWS) != row
        mean = np.average(inputs[others].numpy(), 0, weights[others])
        heavy = (weights[:, None] * targets)[others].numpy()
        sums = heavy.T @ (inputs[others].numpy() - mean)
        assert np.allclose(left_out[row], closeness(inputs[[row]].numpy() - mean, sums)[0], atol=1e-9)
    mean = np.average(inputs.numpy(), 0, weights)
    sums = (weights[:, None] * targets).numpy().T @ (inputs.numpy() - mean)
    assert np.allclose(
        inputs.numpy() @ found.weights.numpy() + found.offset.numpy(), closeness(inputs.numpy() - mean, sums)
    )


@pytest.mark.parametrize("more", [0, 1, 3, 30])
def test_one_row_of_each_of_many_classes_is_enough(more: int) -> None:
    """Where hardly a class has a second row, a row that is left out says nothing about its class."""
    shape, draw = Shape(layers=3, features=64, outputs=30, paired=False, pooled=False), torch.Generator().manual_seed(0)
    centres = torch.randn(30, 1, 1, 64, generator=draw)

    def near(classes: torch.Tensor) -> HiddenStates:
        noise = torch.randn(len(classes), 3, 2, 64, generator=draw)
        return HiddenStates(centres[classes] + 0.6 * noise, SINGLE_VIEWS)

    known, asked = torch.arange(30 + more) % 30, torch.arange(90) % 30
    train, test = near(known), near(asked)
    for head in build(["closed-form", "embedding"], shape, 0).values():
        head.solve(lambda: [Rows(train, known)], "class")
        with torch.no_grad():
            assert (head.eval()(test).argmax(1) == asked).double().mean() > 0.9
