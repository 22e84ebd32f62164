"""BERTVision: partial fine-tuning with small heads on the hidden states of every layer.

>>> run = bertvision.fit("table", train="reviews.csv")
>>> bertvision.load(run.path).predict(["What a film!"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError

if TYPE_CHECKING:
    from bertvision.analysis import Table
    from bertvision.model import Model
    from bertvision.options import Request
    from bertvision.runs import Run
    from bertvision.stores.reader import Store

__version__ = "0.1.0"
__all__ = [
    "UserError",
    "analyse",
    "compare",
    "cut",
    "evaluate",
    "extract",
    "fit",
    "load",
    "open_store",
    "report",
    "train",
]


def fit(task: str = "table", *, resume: bool = False, quiet: bool = False, **options: Any) -> "Run":
    """One run; the options are those of `bertvision fit --help`, with underscores. Returns the finished Run."""
    from bertvision.progress import Progress
    from bertvision.training.fit import fit as run_fit

    return run_fit(_options(task=task, **options), resume=resume, progress=Progress(quiet))


def _options(**given: Any) -> "Request":
    """Options as a Python user writes them: lists, numbers and paths where the command line has words."""
    from bertvision.options import Request
    from bertvision.registry import unknown

    known = Request.__dataclass_fields__
    for name, value in given.items():
        if name not in known:
            raise unknown("option", name, list(known))
        if value is not None and known[name].type in ("str", "str | None", str, str | None):
            given[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return Request(**given)


def extract(source: str | Path, task: str, *, out: str | Path, quiet: bool = False, **options: Any) -> "Store | None":
    """Keep the states of an encoder, or of RUN[@MARK], in a store; the options are those of `bertvision extract`."""
    from bertvision.progress import Progress
    from bertvision.training.extract import ExtractOptions
    from bertvision.training.extract import extract as write

    own = {name: options.pop(name) for name in list(options) if name in ExtractOptions.__dataclass_fields__}
    return write(str(source), _options(task=task, **options), ExtractOptions(str(out), **own), Progress(quiet))


def open_store(store: str | Path) -> "Store":
    """A finished store: `len(store)` windows, `store.batches(32, seed=0)` of hidden states (B, L, T, D)."""
    from bertvision.stores.reader import open_store as read

    return read(store)


def train(store: str | Path, *, epochs: int | None = None, quiet: bool = False, **options: Any) -> "Run":
    """Heads from a store alone; the options are those of `bertvision train --help`."""
    from bertvision.progress import Progress
    from bertvision.training.stored import train as run_train

    return run_train(open_store(store), _options(polish=epochs, epochs="0", **options), Progress(quiet))


def load(run: str | Path, model: str | None = None) -> "Model":
    """The model of a run directory; `RUN@3/10` asks for another mark, `model` for another than the selected one."""
    from bertvision.model import load as load_model

    return load_model(run, model)


def evaluate(run: str | Path, **where: Any) -> dict[str, Any]:
    """Scores of every model of a run on its dev data, on `data=FOLDER` or on `dev=FILE`."""
    from bertvision.evaluation import evaluate as evaluate_run

    return evaluate_run(run, **where)


def compare(one: str | Path, other: str | Path) -> dict[str, Any]:
    """Paired bootstrap: how much the second run scores above the first, on the same dev examples."""
    from bertvision.evaluation import compare as compare_runs

    return compare_runs(one, other)


def analyse(run: str | Path, only: Sequence[str] = (), **options: Any) -> "dict[str, list[Table]]":
    """What a run teaches: name of the analysis -> tables with `.title`, `.note` and `.rows` (a list of dicts)."""
    from bertvision.analysis.conduct import analyse as conduct

    return conduct(run, only, **options)


def cut(run: str | Path, layers: int | None = None, *, quiet: bool = False, **options: Any) -> "Run":
    """A new run with only the first layers of the encoder; the options are those of `bertvision cut`."""
    from bertvision.cutting import cut as shorten
    from bertvision.progress import Progress

    return shorten(run, layers, progress=Progress(quiet), **options)


def report(*runs: str | Path, out: str | Path = "report.html") -> Path:
    """One page on one or several runs; a name that ends in .md makes it Markdown."""
    from bertvision.reports import make

    return make(runs, out)
