"""The official SQuAD 2.0 metric, against an implementation that shares no line with ours."""

import collections
import re
import string

import numpy as np
import pytest

from bertvision.metrics.squad import Gold, report, tune


def plain_normal(text: str) -> str:
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(word for word in re.sub(r"\b(?:a|an|the)\b", " ", kept).split(" ") if word.strip()).strip()


def plain_score(golds: list[str], said: str, kind: str) -> float:
    golds = [g for g in golds if " ".join(plain_normal(g).split())] or [""]
    best = 0.0
    for gold in golds:
        left, right = plain_normal(gold).split(), plain_normal(said).split()
        if kind == "exact" or not left or not right:
            value = float(left == right)
        else:
            pool, same = collections.Counter(left), 0
            for word in right:
                if pool[word] > 0:
                    pool[word] -= 1
                    same += 1
            value = 2 * (same / len(right)) * (same / len(left)) / (same / len(right) + same / len(left)) if same else 0
        best = max(best, value)
    return best


def plain_report(golds: dict[str, list[str]], said: dict[str, str], nulls: dict[str, float]) -> dict[str, float]:
    result: dict[str, float] = {}
    for kind in ("exact", "f1"):
        each = {q: plain_score(golds[q], said[q], kind) for q in golds}
        result[kind] = 100.0 * sum(each.values()) / len(each)
        for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
            some = [each[q] for q in golds if bool(golds[q]) is wanted]
            if some:
                result[prefix + kind] = 100.0 * sum(some) / len(some)
        # Every prefix of the questions in order of their null probability is answered, the rest is not.
        order = sorted(nulls, key=lambda q: nulls[q])
        totals = []
        for count in range(len(order) + 1):
            answered = set(order[:count])
            totals.append(sum(
                (each[q] if golds[q] else float(not said[q])) if q in answered else float(not golds[q]) for q in golds
            ))  # fmt: skip
        result[f"best_{kind}"] = 100.0 * max(totals) / len(each)
    return result


WORDS = "the|a|an|The|cat|Cat.|cat's|dog|—|“q”|...|U.S.|| |theory|é|1,000".split("|")


def test_the_metric_equals_an_independent_one_on_a_thousand_files() -> None:
    for seed in range(1000):
        draw = np.random.default_rng(seed)

        def text(most: int = 5, draw: np.random.Generator = draw) -> str:
            return " ".join(draw.choice(WORDS, draw.integers(0, most)))

        names = [f"q{i}" for i in range(draw.integers(1, 25))]
        golds = {name: [text() for _ in range(draw.integers(0, 4))] for name in names}
        said = {q: str(draw.choice(golds[q])) if golds[q] and draw.random() < 0.5 else text() for q in names}
        nulls = {name: float(np.round(draw.random(), 1 if seed % 2 else 6)) for name in names}
        found, expected = report(golds, said, nulls), plain_report(golds, said, nulls)
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, abs=1e-10), (seed, key)
        assert found["exact"] == report(golds, said)["exact"]  # by default nothing is nulled
        assert ("NoAns_exact" in found) == any(not answers for answers in golds.values())
        everything = report(golds, said, nulls, threshold=-1.0)
        assert everything["exact"] == pytest.approx(100 * np.mean([not answers for answers in golds.values()]))


def test_perfect_and_empty_predictions_and_the_strict_threshold() -> None:
    golds = {"a": ["the Cat"], "b": [], "c": ["x", "y z"]}
    perfect = report(golds, {"a": "cat!", "b": "", "c": "y z"}, {"a": 0.2, "b": 0.2, "c": 0.9}, threshold=0.2)
    assert perfect["HasAns_exact"] == 50  # only what lies above the threshold is nulled
    assert report(golds, {"a": "cat!", "b": "", "c": "y z"})["f1"] == 100
    assert report(golds, dict.fromkeys(golds, ""))["exact"] == pytest.approx(100 / 3)
    assert report(golds, {"a": "", "b": "", "c": "y"})["HasAns_f1"] == pytest.approx(100 * (2 / 3) / 2)


def test_the_tuned_threshold_is_the_best_of_all() -> None:
    # Of equal thresholds the one that answers most: without unanswerable questions there is nothing to gain by silence.
    assert tune(np.array([0.1, 0.2, 0.9]), np.array([1.0, 1.0, 0.0]), np.zeros(3), np.ones(3)) == 1
    for seed in range(50):
        draw = np.random.default_rng(seed)
        nulls = np.round(draw.random(30), 1)
        answered, unanswered = draw.random(30), (draw.random(30) < 0.5).astype(float)
        weights = draw.random(30)

        def total(
            limit: float,
            nulls: np.ndarray = nulls,
            a: np.ndarray = answered,
            u: np.ndarray = unanswered,
            w: np.ndarray = weights,
        ) -> float:
            return float((w * np.where(nulls > limit, u, a)).mean())

        limits = [-1.0, 0.0, 1.0, *np.unique(nulls)]
        chosen = tune(nulls, answered, unanswered, weights)
        assert total(chosen) == pytest.approx(max(total(limit) for limit in limits))


def test_golds_normalise_and_compare_as_the_official_script_does() -> None:
    assert Gold.of(["..."]).texts == ("",)  # a gold that normalises to nothing does not count
    assert Gold.of(["..."]).answerable
    assert Gold.of(["“cat”"]).quality("cat") == (0.0, 0.0)  # quotes of Unicode are not punctuation
    assert Gold.of(["the theory"]).quality("Theory,") == (1.0, 1.0)
