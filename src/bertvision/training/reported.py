"""What a run reports on if its time runs out while models answer: a stratified sample of the dev rows.

It is the sample that --dev-limit takes, so everything that reads the run later finds the same rows.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bertvision.backbones.tokenise import Encoded
from bertvision.inference.answer import Outputs
from bertvision.inference.select import scores
from bertvision.kinds import Predictions
from bertvision.prepare import Prepared
from bertvision.records import MarkRecord
from bertvision.runs.directory import Run
from bertvision.runs.predictions import write_predictions
from bertvision.states.batches import by_length, padded
from bertvision.tasks.sampling import sample
from bertvision.training.deadline import Turn
from bertvision.types import HELD_OUT

DEV_LIMIT = "dev-limit"  # the purpose of the sample, as in `prepare`
FEWEST = 50  # rows, or all: fewer say little
GROWTH = 1.5  # from one sample to the next


def least_share(setting: Prepared) -> float:
    """The smallest share of the dev rows that a run may report on: all of those that a --dev-limit asks for."""
    return min(_smallest(setting, split) / max(1, len(setting.parts[split])) for split in dev_splits(setting))


def dev_splits(setting: Prepared) -> list[str]:
    return [split for split in setting.evaluated if split != HELD_OUT]


def _smallest(setting: Prepared, split: str) -> int:
    count = len(setting.parts[split])
    # Models are chosen on held-out rows, and windows of a question belong together: all are answered.
    whole = split == HELD_OUT or setting.shape.span or setting.recipe.dev_limit is not None
    return count if whole else min(count, FEWEST)


class Batches:
    """Batches of the windows of a split, in a `turn` of this share; of dev sample by sample, while there is time. The
    last sample that is complete has `size` rows."""

    def __init__(self, setting: Prepared, split: str, way: str, turn: Turn, share: float) -> None:
        self.part, self.encoded, self.turn, self.share = setting.parts[split], setting.encoded[split], turn, share
        self.size, self.lengths = _smallest(setting, split), self.encoded.lengths(way)
        self.tokens, self.began = 0, turn.watch.clock.elapsed()

    def __iter__(self) -> Iterator[np.ndarray]:
        lengths, answered = self.lengths, np.zeros(len(self.encoded), dtype=bool)
        size, total = self.size, padded(lengths, by_length(lengths))
        while True:
            new = windows_of(self.encoded, sample(self.part, size, DEV_LIMIT))
            new = new[~answered[new]]
            for order in by_length(lengths[new]):
                tokens = padded(lengths, [new[order]])
                if size > self.size and not self.turn.watch.fits(self._seconds(tokens)):
                    return
                yield new[order]
                self.tokens += tokens
                self.turn.done(self.share * tokens / total)
            answered[new], self.size = True, size
            if size == len(self.part):
                return
            size = min(len(self.part), int(GROWTH * size))

    def _seconds(self, tokens: int) -> float:
        """That so many more tokens take, at the speed of those before."""
        return tokens * (self.turn.watch.clock.elapsed() - self.began) / self.tokens


def windows_of(encoded: Encoded, rows: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.isin(encoded.together.examples, rows))


def sampled(setting: Prepared, said: dict[str, Outputs], size: int) -> dict[str, Outputs]:
    """By dev split, the outputs for a sample of `size` rows."""
    found = {}
    for split in dev_splits(setting):
        rows = sample(setting.parts[split], size, DEV_LIMIT)
        found[split] = {name: values[rows] for name, values in said[split].items()}
    return found


def narrowed(setting: Prepared, size: int) -> Prepared:
    """The setting with a sample of `size` rows of each dev split."""
    parts, encoded = dict(setting.parts), dict(setting.encoded)
    for split in dev_splits(setting):
        rows = sample(parts[split], size, DEV_LIMIT)
        parts[split], encoded[split] = parts[split].take(rows), encoded[split].take(rows)
    windows = {split: one.together for split, one in encoded.items()}
    recipe = replace(setting.recipe, dev_limit=size)
    return replace(setting, recipe=recipe, parts=parts, encoded=encoded, windows=windows)


def restated(run: Run, record: MarkRecord, before: Prepared, after: Prepared) -> None:
    """Let an earlier mark report on the same sample, in its record and in its predictions."""
    kept = run.predictions(record.mark)
    predictions = {HELD_OUT: {name: Predictions(values) for name, values in kept[HELD_OUT].outputs.items()}}
    assert after.recipe.dev_limit is not None
    for split in dev_splits(after):
        rows = sample(before.parts[split], after.recipe.dev_limit, DEV_LIMIT)
        predictions[split] = {name: Predictions(values[rows]) for name, values in kept[split].outputs.items()}
        record.scores[split] = scores(after.judges[split], predictions[split], after.dataset.metrics)
    targets = {split: after.targets(split) for split in predictions}
    write_predictions(run.predictions_file(record.mark), targets, predictions)
