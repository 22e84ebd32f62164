"""Kind `span`: an answer is a piece of the context.

From each token's probability to start or end the answer, to the best spans, to scores by the official SQuAD 2.0 metric.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor
from torch.nn import functional

from bertvision.kinds import RAW_THRESHOLD, Kind, Predictions, Scale, kinds
from bertvision.metrics.squad import METRICS, Gold, qualities, tune
from bertvision.options import Request
from bertvision.types import Examples, Windows

LEAST = 1e-30  # smaller probabilities count as this, so that logarithms are finite
ALTERNATIVES = 20  # spans that share the probability of n-best answers


@dataclass(frozen=True)
class Spans:
    """The best spans of each example over all its windows, best first: (N, K) characters and scores."""

    starts: np.ndarray  # in the context's characters; -1 where there are fewer than K spans
    ends: np.ndarray
    scores: np.ndarray  # log p(start) + log p(end)
    nulls: np.ndarray  # (N,) the same for "no answer", in the window where that is least likely

    @property
    def null_probabilities(self) -> np.ndarray:
        """(N,) of "no answer" against the best span."""
        best = np.maximum(self.scores[:, 0], 2 * np.log(LEAST))
        return 1 / (1 + np.exp(np.clip(best - self.nulls, -700, 700)))

    def texts(self, examples: Examples) -> list[str]:
        """The best span of each example as text."""
        return self._texts(examples, np.zeros(len(examples), dtype=int), self.starts[:, 0] >= 0)

    def runners_up(self, examples: Examples) -> list[str]:
        """The second best answer of each example: another span, or an empty text if "no answer" is likelier."""
        others = (self.starts != self.starts[:, :1]) | (self.ends != self.ends[:, :1])
        others &= (self.starts >= 0) & (self.scores > self.nulls[:, None])
        return self._texts(examples, others.argmax(1), others.any(1))  # the first: spans are in order

    def _texts(self, examples: Examples, chosen: np.ndarray, found: np.ndarray) -> list[str]:
        """The text of one span per example; empty where none was found."""
        assert examples.second_texts is not None
        rows = np.arange(len(chosen))
        places = zip(examples.second_texts, self.starts[rows, chosen], self.ends[rows, chosen], found, strict=True)
        return [context[start:end] if any_ else "" for context, start, end, any_ in places]


class SpanJudge:
    """Scores answers by the official SQuAD 2.0 metric."""

    kind = "span"

    def __init__(self, examples: Examples, windows: Windows, options: Request) -> None:
        assert examples.questions is not None
        assert examples.targets is not None
        self.examples, self.windows, self.options = examples, windows, options
        self.targets = examples.targets
        self.golds = [Gold.of([answer.text for answer in found]) for found in examples.questions.answers]
        self.unanswered = qualities(self.golds, [""] * len(examples))
        self.weights = _weights(self.targets, options.null_share)

    def predictions(self, outputs: np.ndarray, threshold: float | None = None) -> Predictions:
        # Windows overlap: all windows of an example may give the best span before the second best appears.
        found = decode(outputs, self.windows, self.options, top=1 + int(np.bincount(self.windows.examples).max()))
        texts, nulls = found.texts(self.examples), found.null_probabilities
        answered = qualities(self.golds, texts)
        limit = self._tuned(nulls, answered) if threshold is None else threshold
        columns = [np.where((nulls > at)[:, None], self.unanswered, answered) for at in (limit, RAW_THRESHOLD)]
        values = np.hstack([*columns, answered[:, 1:]])
        return Predictions(values, limit, texts, nulls, found.runners_up(self.examples))

    def _tuned(self, nulls: np.ndarray, answered: np.ndarray) -> float:
        if self.options.null_threshold is not None:
            return self.options.null_threshold
        if self.options.decoding == "argmax":
            return RAW_THRESHOLD
        return tune(nulls, answered[:, 1], self.unanswered[:, 1], self.weights)

    def measure(self, values: np.ndarray, metric: str) -> float:
        """Weighted, so that data with few unanswerable questions does not select models that always answer."""
        return float(METRICS[metric].weighted(values, self.targets, self.weights[None], values.shape[1])[0])

    def loss(self, outputs: np.ndarray) -> float:
        assert self.windows.answers is not None
        places = self.windows.offsets[:-1, None] + self.windows.answers  # (W, 2)
        totals = np.add.reduceat(outputs, self.windows.offsets[:-1])  # above one where an ensemble took maxima
        return -float(np.log(np.maximum(outputs[places, [0, 1]] / totals, 1e-9)).mean())


def decode(outputs: np.ndarray, windows: Windows, options: Request, top: int = 1) -> Spans:
    if options.decoding == "argmax":
        return argmax_spans(outputs, windows)
    return best_spans(outputs, windows, options.answer_length, top)


def _weights(targets: np.ndarray, null_share: float) -> np.ndarray:
    """Weights with which a share `null_share` of the questions has no answer."""
    answerable = targets.mean()
    if answerable in (0, 1):
        return np.ones(len(targets))
    return np.where(targets == 1, (1 - null_share) / answerable, null_share / (1 - answerable))


def best_spans(outputs: np.ndarray, windows: Windows, answer_length: int, top: int = 1) -> Spans:
    """The best spans over all windows of an example: in the context, start <= end, at most `answer_length` tokens.

    `outputs` (all tokens, 2) are probabilities to start and to end. The k best spans have at most k different starts,
    so it is enough to try all ends of the k best starts.
    """
    logs = _logs(outputs)
    logs[windows.segments != 2] = -np.inf
    owner = np.repeat(np.arange(len(windows)), windows.lengths)  # token -> window
    best = _best_per_start(logs, owner, answer_length)
    starts = _top_per_example(best, windows.examples[owner], windows.examples[-1] + 1, top)  # (N, K) tokens, or -1
    ends = starts[:, :, None] + np.arange(answer_length)  # (N, K, A)
    inside = (starts >= 0)[:, :, None] & (ends < len(owner))
    ends = np.minimum(ends, len(owner) - 1)
    inside &= owner[ends] == owner[starts][:, :, None]
    scores = np.where(inside, logs[starts, 0][:, :, None] + logs[ends, 1], -np.inf).reshape(len(starts), -1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, : 2 * top] if top > 1 else scores.argmax(1)[:, None]
    rows = np.arange(len(starts))[:, None]
    first, last = starts[rows, order // answer_length], ends.reshape(len(starts), -1)[rows, order]
    at_cls = _logs(outputs[windows.offsets[:-1]]).sum(1)
    nulls = np.minimum.reduceat(at_cls, np.flatnonzero(np.diff(windows.examples, prepend=-1)))
    return _spans(windows, first, last, scores[rows, order], nulls)


def argmax_spans(outputs: np.ndarray, windows: Windows) -> Spans:
    """The paper's decoding: start and end are the most probable tokens of a window, each on its own.

    An end before its start, or either at [CLS], means no answer. The most probable answer of all windows wins.
    """
    outputs = np.nan_to_num(outputs)  # a head that diverged gives no answer
    parts = list(pairwise(windows.offsets))
    starts, ends = (np.array([low + column[low:high].argmax() for low, high in parts]) for column in outputs.T)
    answered = (windows.segments[starts] == 2) & (windows.segments[ends] == 2) & (ends >= starts)
    scores = np.where(answered, _logs(outputs[starts, 0]) + _logs(outputs[ends, 1]), -np.inf)
    chosen = _top_per_example(scores, windows.examples, windows.examples[-1] + 1, 1)  # (N, 1) windows
    nulls = np.where(answered[chosen[:, 0]], -np.inf, 0.0)  # all or nothing: no comparison with "no answer"
    return _spans(windows, starts[chosen], ends[chosen], scores[chosen], nulls)


def _spans(windows: Windows, first: np.ndarray, last: np.ndarray, scores: np.ndarray, nulls: np.ndarray) -> Spans:
    """Spans from their first and last tokens, (N, K); a score of -inf is no span."""
    assert windows.characters is not None
    found = np.isfinite(scores)
    starts, ends = windows.characters[first, 0], windows.characters[last, 1]
    return Spans(np.where(found, starts, -1), np.where(found, ends, -1), scores, nulls)


def n_best(spans: Spans, row: int, context: str, top: int) -> tuple[float, list[dict[str, object]]]:
    """The probability of no answer, and the best different answers with theirs: shares of e^score."""
    seen: dict[tuple[int, int], float] = {}
    for start, end, score in zip(spans.starts[row], spans.ends[row], spans.scores[row], strict=True):
        if start >= 0 and (int(start), int(end)) not in seen:  # overlapping windows may repeat a span
            seen[int(start), int(end)] = float(score)
    scores = np.array([spans.nulls[row], *seen.values()])
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    answers: list[dict[str, object]] = [
        {"answer": context[start:end], "start": start, "end": end, "probability": float(share)}
        for (start, end), share in zip(seen, shares[1:], strict=True)
    ]
    return float(shares[0]), answers[:top]


def _best_per_start(logs: np.ndarray, owner: np.ndarray, answer_length: int) -> np.ndarray:
    """(all tokens,) the score of the best span that starts at each token."""
    best = np.full(len(logs), -np.inf)
    for length in range(min(answer_length, len(logs))):
        stop = len(logs) - length
        reach = np.where(owner[length:] == owner[:stop], logs[length:, 1], -np.inf)
        np.maximum(best[:stop], logs[:stop, 0] + reach, out=best[:stop])
    return best


def _top_per_example(values: np.ndarray, examples: np.ndarray, count: int, top: int) -> np.ndarray:
    """(N, top) indices of the highest values of each example, best first; -1 where there are fewer."""
    order = np.lexsort((-values, examples))
    sizes = np.bincount(examples, minlength=count)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen = np.full((count, top), -1)
    kept = rank < top
    chosen[examples[order[kept]], rank[kept]] = order[kept]
    return chosen


def _logs(outputs: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(outputs, LEAST)).astype(np.float64)


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits (B, T, 2), targets (B, 2): the tokens where the answer starts and ends."""
    return functional.cross_entropy(logits, targets, reduction="none").mean(1)


def _probabilities(logits: Tensor, scale: Scale) -> Tensor:
    """(B, T, 2): over the tokens of a window, for start and end separately."""
    return logits.float().softmax(1)


kinds.add("span", Kind(_losses, _probabilities, SpanJudge))
