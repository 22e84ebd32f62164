"""From the probability of each token to start or end the answer, to answers: pieces of the context's text."""

from dataclasses import dataclass

import numpy as np

from bertvision.types import Examples, Windows

LEAST = 1e-30  # probabilities below count as this: its logarithm is finite
ALTERNATIVES = 20  # spans among which n-best probabilities are shared out


@dataclass(frozen=True)
class Spans:
    """The best spans of each example over all its windows, best first: (N, K) characters, and what they are worth."""

    starts: np.ndarray  # in the context's characters; -1 where there are fewer than K spans
    ends: np.ndarray
    scores: np.ndarray  # log p(start) + log p(end)
    nulls: np.ndarray  # (N,) the same of "no answer", in the window where that is least likely

    @property
    def null_probabilities(self) -> np.ndarray:
        """(N,) no answer against the best one."""
        best = np.maximum(self.scores[:, 0], 2 * np.log(LEAST))
        return 1 / (1 + np.exp(np.clip(best - self.nulls, -700, 700)))

    def texts(self, examples: Examples) -> list[str]:
        """The best span of each example as text."""
        assert examples.second_texts is not None
        places = zip(examples.second_texts, self.starts[:, 0], self.ends[:, 0], strict=True)
        return [context[start:end] if start >= 0 else "" for context, start, end in places]

    def runners_up(self, examples: Examples) -> list[str]:
        """What would come after the best span of each example: another place's text, or nothing where no answer is
        likelier than that."""
        assert examples.second_texts is not None
        others = (self.starts != self.starts[:, :1]) | (self.ends != self.ends[:, :1])
        others &= (self.starts >= 0) & (self.scores > self.nulls[:, None])
        found = others.argmax(1)  # spans are in order
        rows = zip(examples.second_texts, others.any(1), found, self.starts, self.ends, strict=True)
        return [context[starts[i] : ends[i]] if any_ else "" for context, any_, i, starts, ends in rows]


def best_spans(outputs: np.ndarray, windows: Windows, answer_length: int, top: int = 1) -> Spans:
    """Start <= end, at most `answer_length` tokens, only inside the context, over all windows of an example.

    `outputs` (all tokens, 2) are probabilities to start and to end. The k best spans have at most k different starts,
    so it is enough to look at all ends of the k best starts.
    """
    assert windows.characters is not None
    logs = np.log(np.maximum(outputs, LEAST)).astype(np.float64)
    logs[windows.segments != 2] = -np.inf
    owner = np.repeat(np.arange(len(windows)), windows.lengths)  # token -> window
    best = _best_per_start(logs, owner, answer_length)
    starts = _top_per_example(best, windows.examples[owner], windows.examples[-1] + 1, top)  # (N, K) tokens, or -1
    ends = starts[:, :, None] + np.arange(answer_length)  # (N, K, A)
    inside = (starts >= 0)[:, :, None] & (ends < len(owner))
    ends = np.minimum(ends, len(owner) - 1)
    inside &= owner[ends] == owner[starts][:, :, None]
    scores = np.where(inside, logs[starts, 0][:, :, None] + logs[ends, 1], -np.inf).reshape(len(starts), -1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, : max(1, top * 2)] if top > 1 else scores.argmax(1)[:, None]
    rows = np.arange(len(starts))[:, None]
    first, last = starts[rows, order // answer_length], ends.reshape(len(starts), -1)[rows, order]
    scores = scores[rows, order]
    found = np.isfinite(scores)
    return Spans(
        starts=np.where(found, windows.characters[first, 0], -1),
        ends=np.where(found, windows.characters[last, 1], -1),
        scores=scores,
        nulls=_nulls(outputs, windows),
    )


def argmax_spans(outputs: np.ndarray, windows: Windows) -> Spans:
    """The paper's decoding: start and end each at their most probable token of a window, unrelated to one another; an
    end before its start, or either at [CLS], means no answer. The most probable answer of an example's windows wins."""
    assert windows.characters is not None
    outputs = np.nan_to_num(outputs)  # a head that has diverged says nothing
    first = np.arange(len(windows))
    found = []
    for column in (0, 1):
        values = outputs[:, column]
        highest = np.maximum.reduceat(values, windows.offsets[:-1])
        owner = np.repeat(first, windows.lengths)
        hits = np.flatnonzero(values == highest[owner])
        found.append(hits[np.unique(owner[hits], return_index=True)[1]])
    starts, ends = found
    scores = np.log(np.maximum(outputs[starts, 0], LEAST)) + np.log(np.maximum(outputs[ends, 1], LEAST))
    answered = (windows.segments[starts] == 2) & (windows.segments[ends] == 2) & (ends >= starts)
    scores = np.where(answered, scores, -np.inf)
    count = windows.examples[-1] + 1
    chosen = _top_per_example(scores, windows.examples, count, 1)[:, 0]  # a window each
    real = answered[chosen]
    nulls = np.where(real, -np.inf, 0.0)  # all or nothing: this decoding weighs no answer against another
    return Spans(
        starts=np.where(real, windows.characters[starts[chosen], 0], -1)[:, None],
        ends=np.where(real, windows.characters[ends[chosen], 1], -1)[:, None],
        scores=np.where(real, scores[chosen], -np.inf)[:, None],
        nulls=nulls,
    )


def n_best(spans: Spans, row: int, context: str, top: int) -> tuple[float, list[dict[str, object]]]:
    """(probability of no answer, the best different answers with theirs): shares of e^score among all of them."""
    seen: dict[tuple[int, int], float] = {}
    for start, end, score in zip(spans.starts[row], spans.ends[row], spans.scores[row], strict=True):
        if start >= 0 and (int(start), int(end)) not in seen:  # windows overlap: the same place may be found twice
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
    """(all tokens,) the worth of the best span that starts at each token."""
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


def _nulls(outputs: np.ndarray, windows: Windows) -> np.ndarray:
    at_cls = np.log(np.maximum(outputs[windows.offsets[:-1]], LEAST)).astype(np.float64).sum(1)
    starts = np.flatnonzero(np.diff(windows.examples, prepend=-1))
    return np.minimum.reduceat(at_cls, starts)
