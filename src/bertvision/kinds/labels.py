"""Kinds `class` and `score`: one label or one number per text."""

from functools import partial

import numpy as np
from torch import Tensor
from torch.nn import functional

from bertvision.kinds import Kind, Predictions, Scale, kinds
from bertvision.metrics.intervals import measure
from bertvision.options import Request
from bertvision.types import Examples, Windows


class LabelJudge:
    """Scores classes and numbers."""

    def __init__(self, examples: Examples, windows: Windows, options: Request, *, kind: str) -> None:
        assert examples.targets is not None
        self.kind, self.targets = kind, examples.targets

    def predictions(self, outputs: np.ndarray, threshold: float | None = None) -> Predictions:
        return Predictions(outputs)

    def measure(self, values: np.ndarray, metric: str) -> float:
        return measure(values, self.targets, metric, self.kind)

    def loss(self, outputs: np.ndarray) -> float:
        if self.kind == "class":
            known = np.flatnonzero(self.targets < outputs.shape[1])  # no model knows the classes that train lacks
            return -float(np.log(np.clip(outputs[known, self.targets[known]], 1e-9, None)).sum()) / max(1, len(known))
        return float(((outputs[:, 0] - self.targets) ** 2).mean())


def per_example(outputs: np.ndarray, windows: Windows) -> np.ndarray:
    """Predictions of examples (N, C) from those of windows (W, C).

    Those of a text's windows are averaged. Of a question, the window with the highest probability of the last class
    decides: it is answerable if any window is.
    """
    if len(windows) == windows.examples[-1] + 1:
        return outputs
    if windows.characters is None:
        starts = np.flatnonzero(np.diff(windows.examples, prepend=-1))
        return np.add.reduceat(outputs, starts) / np.bincount(windows.examples)[:, None]
    order = np.lexsort((outputs[:, -1], windows.examples))
    last = np.flatnonzero(np.diff(windows.examples, append=windows.examples[-1] + 1))
    return outputs[order[last]]


def _class_losses(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits, targets, reduction="none")


def _probabilities(logits: Tensor, scale: Scale) -> Tensor:
    return logits.double().softmax(-1)


def _score_losses(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.squeeze(-1) - targets) ** 2


def _values(logits: Tensor, scale: Scale) -> Tensor:
    return logits.double() * scale.deviation + scale.mean


kinds.add("class", Kind(_class_losses, _probabilities, partial(LabelJudge, kind="class")))
kinds.add("score", Kind(_score_losses, _values, partial(LabelJudge, kind="score")))
