"""Data in memory (lists, arrays, data frames, `datasets`) as columns of a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks.reading import Columns, check_rows, read_columns
from bertvision.tasks.table import dataset_of
from bertvision.types import Dataset

GIVEN = "the data given"  # what error messages call it
WEIGHTS = "weights given"  # the column of weights that are given beside the data


def dataset_in_memory(data: Any, labels: Any, dev: Any, request: Request, weights: Any = None) -> Dataset:
    """`data` with `labels`, or a table that has a label column; `dev` is a table, (data, labels) or a file. `weights`:
    one for each row, if they are not a column."""
    given: tuple[object, Columns] | None = None
    if dev is not None:
        if isinstance(dev, (str, Path)):
            given = (Path(dev), read_columns(Path(dev)))
        else:
            pair = dev if isinstance(dev, tuple) and len(dev) == 2 else (dev, None)
            given = ("the dev data given", columns_of(*pair))
    return dataset_of(GIVEN, columns_of(data, labels, weights), request, given)


def columns_of(data: Any, labels: Any = None, weights: Any = None) -> Columns:
    """Columns by name. Sequences of texts become `text` (pairs also `text_pair`), their labels `label`."""
    if labels is None:
        columns = _table(data)
    else:
        texts, given = _listed(data), _listed(labels)
        if len(texts) != len(given):
            raise UserError(f"{len(texts)} texts but {len(given)} labels.")
        columns = {"text": texts}
        if texts and not isinstance(texts[0], str):
            if any(isinstance(text, str) or len(text) != 2 for text in texts):
                raise UserError("Each example must be a text, or a pair of texts.")
            columns = {"text": [text for text, _ in texts], "text_pair": [other for _, other in texts]}
        columns["label"] = given
    if weights is not None:
        columns[WEIGHTS] = _listed(weights)
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"'{name}' has {size}" for name, size in sizes.items())
        raise UserError(f"{GIVEN.capitalize()} has columns of different lengths: {listed}.")
    return check_rows(GIVEN, columns)


def _table(data: Any) -> Columns:
    """pandas and polars frames, `datasets.Dataset`, and dictionaries of columns."""
    if isinstance(data, Mapping):
        return {str(name): _listed(values) for name, values in data.items()}
    names = getattr(data, "columns", getattr(data, "column_names", None))
    if names is None:
        raise UserError(
            f"fit takes a file, a task name, a data frame, a `datasets` table, a dictionary of columns, or texts with"
            f" labels (fit(texts, labels)); got {type(data).__name__} without labels."
        )
    return {str(name): _listed(data[name]) for name in names}


def _listed(values: Any) -> list[Any]:
    """As Python values: numpy arrays and pandas series have `tolist`, polars series `to_list`."""
    for method in ("tolist", "to_list"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)
