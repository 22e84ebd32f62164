"""Every model's predictions at a mark, as one Parquet table: a row per example, a column per model."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from bertvision.kinds import Predictions

ANSWERS, SECONDS, NULLS = "answer: ", "second: ", "null: "  # prefixes of a span model's further columns


@dataclass(frozen=True)
class SplitPredictions:
    """What the models of a run said about one split."""

    targets: np.ndarray
    outputs: dict[str, np.ndarray]  # model -> (N, C): probabilities, scores, or for spans qualities (metrics/squad.py)
    answers: dict[str, np.ndarray]  # spans: model -> (N,) texts, empty where nothing is answered
    seconds: dict[str, np.ndarray]  # spans: the second most likely answers
    nulls: dict[str, np.ndarray]  # spans: the probabilities of no answer


def write_predictions(
    path: Path, targets: dict[str, np.ndarray], predictions: dict[str, dict[str, Predictions]]
) -> None:
    """`targets` by split, and `predictions` by split and model."""
    tables = []
    for split, found in predictions.items():
        count = len(targets[split])
        columns: dict[str, object] = {"split": [split] * count, "row": range(count), "target": targets[split]}
        columns |= {name: list(said.values) for name, said in found.items()}
        for name, said in found.items():
            if said.texts is not None:
                columns |= {ANSWERS + name: said.answers(), SECONDS + name: said.seconds()}
                columns[NULLS + name] = said.null_probabilities
        tables.append(pyarrow.table(columns))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    pyarrow.parquet.write_table(pyarrow.concat_tables(tables), aside)
    os.replace(aside, path)


def read_predictions(path: Path) -> dict[str, SplitPredictions]:
    """By split."""
    table = pyarrow.parquet.read_table(path)
    splits = {}
    for split in dict.fromkeys(table["split"].to_pylist()):
        part = table.filter(pyarrow.compute.equal(table["split"], split))
        columns = {name: part[name].to_numpy(zero_copy_only=False) for name in part.column_names}
        said = [
            {name.removeprefix(prefix): columns.pop(name) for name in list(columns) if name.startswith(prefix)}
            for prefix in (ANSWERS, SECONDS, NULLS)
        ]
        outputs = {n: np.stack(values) for n, values in columns.items() if n not in ("split", "row", "target")}
        splits[split] = SplitPredictions(columns["target"], outputs, *said)
    return splits
