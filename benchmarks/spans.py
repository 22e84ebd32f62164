"""Windows and decoding on the whole of SQuAD 2.0: seconds and memory, and our windows against the tokenizer's own.

    python -m benchmarks.spans --data ../shared/data/SQuAD2 --out benchmarks/results/spans.json

The rival is what question-answering scripts do: the fast tokenizer on (question, context) pairs with overflowing tokens
and offsets, in batches of 1,000, kept as flat arrays as ours are; on the first 20,000 questions, in turn with ours.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.backbones import encoder as backbones
from bertvision.backbones.tokenise import _windowed, labelled
from bertvision.kinds.spans import SpanJudge, best_spans
from bertvision.metrics.squad import Gold
from bertvision.options import Request
from bertvision.tasks.squad import ReadingNotes, read_json
from bertvision.types import Examples

LENGTH, STRIDE, SOME = 386, 128, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/SQuAD2"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spans.json"))
    given = parser.parse_args()
    tokenizer = backbones.load("minilm-l6", 2, 0, span=True).tokenizer
    row: dict[str, Any] = {}
    train = read_json(given.data / "train-v2.0.json", ReadingNotes("train", False, True))
    started = time.perf_counter()
    windows = _windowed(tokenizer, train, LENGTH, STRIDE)
    windows, cut = labelled(windows, train)
    row["train"] = {
        "questions": len(train),
        "windows": len(windows),
        "seconds": round(time.perf_counter() - started, 1),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "answers_cut_by_tokens": cut,
        "answers_that_come_back": round(come_back(train, windows), 5),
    }
    some = train.take(range(SOME))
    ours, theirs = [], []
    for _ in range(3):
        ours.append(seconds(lambda: _windowed(tokenizer, some, LENGTH, STRIDE)))
        theirs.append(seconds(lambda: rival(tokenizer, some)))
    row["against_the_tokenizer"] = {"ours": min(ours), "theirs": min(theirs), "ratio": min(ours) / min(theirs)}
    dev = read_json(given.data / "dev-v2.0.json", ReadingNotes("dev", False, False))
    windows, _ = labelled(_windowed(tokenizer, dev, LENGTH, STRIDE), dev)
    outputs = np.random.default_rng(0).random((len(windows.tokens), 2)).astype(np.float32)
    judge = SpanJudge(dev, windows, Request(task="squad2"))
    row["decode_and_score_dev"] = {
        "questions": len(dev),
        "seconds": seconds(lambda: judge.predictions(outputs, 0.5)),
        "seconds_with_tuning": seconds(lambda: judge.predictions(outputs)),
    }
    print(json.dumps(row, indent=1))
    given.out.write_text(json.dumps(row, indent=1) + "\n")


def seconds(work: Any) -> float:
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 2)


def come_back(train: Examples, windows: Any) -> float:
    """Share of answerable questions whose first answer is decoded again from its label."""
    outputs = np.zeros((len(windows.tokens), 2), np.float32)
    places = windows.offsets[:-1, None] + windows.answers
    outputs[places[:, 0], 0] = outputs[places[:, 1], 1] = 1
    texts = best_spans(outputs, windows, 70).texts(train)
    assert train.questions is not None
    pairs = [(golds[0].text, text) for golds, text in zip(train.questions.answers, texts, strict=True) if golds]
    return float(np.mean([Gold.of([gold]).quality(text)[0] for gold, text in pairs]))


def rival(tokenizer: Any, examples: Examples) -> tuple[np.ndarray, ...]:
    assert examples.second_texts is not None
    parts: list[list[Any]] = [[], [], [], []]
    for i in range(0, len(examples), 1000):
        made = tokenizer(
            examples.texts[i : i + 1000], examples.second_texts[i : i + 1000], truncation="only_second",
            max_length=LENGTH, stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        for encoding in made.encodings:
            parts[0].append(np.array(encoding.ids, np.int32))
            parts[1].append(np.array(encoding.type_ids, np.int8))
            parts[2].append(np.array([0 if s is None else s + 1 for s in encoding.sequence_ids], np.int8))
            parts[3].append(np.array(encoding.offsets, np.int32))
    return tuple(np.concatenate(part) for part in parts)


if __name__ == "__main__":
    main()
