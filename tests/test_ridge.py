"""Ridge regression of closed-form heads, with scikit-learn's as the reference."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference
from sklearn.linear_model import RidgeCV

from bertvision.heads import ridge as module
from bertvision.heads.ridge import STRENGTHS, Ridge


def data(rows: int, features: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs far from 0, two targets that depend on a few of them, and weights."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, features, generator=draw).double() + 5
    targets = inputs[:, :4] @ torch.randn(4, 2, generator=draw).double() + torch.randn(rows, 2, generator=draw)
    return inputs, targets, 0.2 + torch.rand(rows, generator=draw).double()


def solved(inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> Ridge:
    found = Ridge(inputs.shape[1])
    for rows in torch.arange(len(inputs)).split(7):
        found.add(inputs[rows], targets[rows], weights[rows])
    found.solve()
    return found


def strengths(inputs: torch.Tensor, weights: torch.Tensor) -> np.ndarray:
    """As scikit-learn counts them: here they are shares of the mean eigenvalue that is not 0."""
    scaled = weights.sqrt()[:, None] * (inputs - weights @ inputs / weights.sum())
    return STRENGTHS.numpy() * float((scaled**2).sum() / torch.linalg.matrix_rank(scaled))


def doubled(rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.cat([part, part[:5]]) for part in data(rows, features))  # type: ignore[return-value]


def constant(rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs, targets, weights = data(rows, features)
    inputs[:, ::3] = 2.0
    return inputs, targets, weights


def rare(rows: int, features: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs, _, weights = data(rows, features)
    return inputs, (torch.arange(rows)[:, None] == torch.tensor([3, 7])).double(), weights


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("make", [data, doubled, constant, rare])
@pytest.mark.parametrize(("rows", "features"), [(20, 60), (40, 40), (41, 40), (80, 12)])
def test_strength_weights_and_rows_left_out_are_those_of_scikit_learn(
    make: object, rows: int, features: int, weighted: bool
) -> None:
    inputs, targets, weights = make(rows, features)  # type: ignore[operator]
    weights = weights if weighted else torch.ones(len(weights)).double()
    found = solved(inputs, targets, weights)
    alphas = strengths(inputs, weights)
    expected = RidgeCV(alphas, store_cv_results=True).fit(inputs.numpy(), targets.numpy(), weights.numpy())
    assert alphas[found.strength] == expected.alpha_
    np.testing.assert_allclose(found.weights.T, expected.coef_, atol=1e-8)
    np.testing.assert_allclose(found.offset, expected.intercept_, atol=1e-7)
    errors = weights[:, None] * (targets - found.left_out(inputs, targets, weights)) ** 2
    np.testing.assert_allclose(errors, expected.cv_results_[..., found.strength], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("rows", "features"), [(150, 60), (80, 12), (40, 60)])
def test_sums_over_many_rows_give_the_same(rows: int, features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets, weights = data(rows, features)
    alphas = strengths(inputs, weights)
    inputs += 1000  # which must cancel out
    exact = solved(inputs, targets, weights)
    monkeypatch.setattr(module, "KEPT", 20)
    found = solved(inputs, targets, weights)
    assert abs(found.strength - exact.strength) <= 1
    expected = Reference(alphas[found.strength]).fit(inputs.numpy(), targets.numpy(), weights.numpy())
    np.testing.assert_allclose(found.weights.T, expected.coef_, atol=1e-6)
    np.testing.assert_allclose(found.offset, expected.intercept_, rtol=1e-5)


@pytest.mark.parametrize("kept", [10, 2048])
def test_with_few_rows_and_many_features_interpolation_does_not_pay(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 and with a bounded denominator, generalised cross-validation took the weakest strength here."""
    monkeypatch.setattr(module, "KEPT", kept)
    draw = torch.Generator().manual_seed(0)
    signs = 2.0 * torch.randint(2, (2220, 1), generator=draw) - 1
    inputs = torch.randn(2220, 768, generator=draw) * torch.logspace(0, -2, 768) + 3
    inputs[:, :40] += 0.15 * signs
    rows, fresh = slice(0, 220), slice(220, 2220)
    found = solved(inputs[rows], signs[rows], torch.ones(220))
    errors = []
    for alpha in strengths(inputs[rows].double(), torch.ones(220).double()):
        said = Reference(alpha).fit(inputs[rows].double().numpy(), signs[rows].numpy()).predict(inputs[fresh].numpy())
        errors.append(float(np.mean((said - signs[fresh, 0].numpy()) ** 2)))
    assert errors[found.strength] < 1.05 * min(errors)
    assert errors[0] > 1.3 * min(errors)


def test_a_weight_of_two_is_the_row_twice_and_a_scale_of_all_weights_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows, features in ((30, 8), (10, 20)):
        inputs, targets, weights = data(rows, features)
        found = solved(inputs, targets, weights)
        scaled = solved(inputs, targets, 7 * weights)
        assert found.strength == scaled.strength
        torch.testing.assert_close(found.weights, scaled.weights)
        # A twin gives away a row that is left out, so the choice may differ: one strength.
        monkeypatch.setattr(module, "STRENGTHS", STRENGTHS[[9]])
        twice = torch.cat([torch.arange(rows), torch.arange(5)])
        weighted = solved(inputs, targets, 1.0 + (torch.arange(rows) < 5))
        listed = solved(inputs[twice], targets[twice], torch.ones(len(twice)).double())
        torch.testing.assert_close(weighted.weights, listed.weights)
        torch.testing.assert_close(weighted.offset, listed.offset)
        monkeypatch.undo()


def test_nothing_to_learn_from_is_the_mean() -> None:
    for inputs in (torch.ones(6, 3), torch.randn(1, 3, generator=torch.Generator().manual_seed(0))):
        targets = torch.arange(len(inputs))[:, None].double()
        found = solved(inputs, targets, torch.ones(len(inputs)).double())
        assert torch.isfinite(found.left_out(inputs, targets, torch.ones(len(inputs)).double())).all()
        torch.testing.assert_close(
            inputs.double() @ found.weights + found.offset, targets.mean().expand(len(inputs), 1)
        )
