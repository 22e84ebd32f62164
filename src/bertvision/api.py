"""The Python front door: what `import bertvision` offers, with typed arguments and docstrings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import Any, TypedDict, TypeVar, Unpack

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.inference.evaluate import Comparison, Evaluation
from bertvision.inference.model import Model
from bertvision.options import DECIDING, Request
from bertvision.progress import Progress
from bertvision.runs.directory import Run
from bertvision.stores.reader import Store
from bertvision.tasks.reading import named, read_columns

Paths = str | Path
# The options of a request that `extract` and `train` use.
EXTRACTING = (*DECIDING, "data", "train", "dev", "seed")
TRAINING = (
    "heads",
    "head_lr",
    "metric",
    "answer_length",
    "null_threshold",
    "null_share",
    "decoding",
    "seed",
    "words",
    "out",
)
F = TypeVar("F", bound=Callable[..., Any])


class Options(TypedDict, total=False):
    """Every option of `bertvision fit`; `bertvision fit --help` explains each."""

    train: Paths | None
    data: Paths | None
    budget: float | None
    backbone: Paths
    out: Paths | None
    dev: Any
    text: str | None
    text_pair: str | None
    label: str | None
    kind: str | None
    weight: Any
    strict: bool
    limit: int | None
    dev_limit: int | None
    max_length: int | None
    long: str | None
    stride: int
    freeze: str | int | None
    lr: float | None
    dropout: bool
    heads: str | Sequence[str]
    lead: str | None
    head_lr: float
    polish: int | None
    polish_until: str | float | None
    pairs: str
    words: bool
    mode: str
    epochs: str | float
    marks: str | Sequence[str | float] | None
    batch_size: int | None
    accumulate: int
    schedule: str
    warmup: float
    class_weight: str | Mapping[str, float] | None
    clip: float
    seed: int
    folds: str | int | None
    metric: str | None
    answer_length: int
    null_threshold: float | None
    null_share: float
    decoding: str


def _completing(*names: str) -> Callable[[F], F]:
    """Show these options (or all) in `help()` and in a notebook's completion, which do not read a TypedDict."""

    def complete(function: F) -> F:
        own = [p for p in signature(function).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        shown = set(names or Request.__dataclass_fields__) - {p.name for p in own} - {"task"}
        options = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in fields(Request)
            if f.name in shown
        ]
        function.__signature__ = Signature([*own, *options])  # type: ignore[attr-defined]
        return function

    return complete


@_completing()
def fit(
    task_or_data: Any = "table",
    labels: Any = None,
    *,
    resume: bool = False,
    quiet: bool = False,
    **options: Unpack[Options],
) -> Run:
    """Train a model: fine-tune an encoder with heads on all its layers, and select on held-out data.

    Args:
        task_or_data: A table file (`"reviews.csv"`), a task name (`"sts-b"`, see `bertvision ls tasks`), a pandas or
            polars data frame, a `datasets.Dataset`, a dictionary of columns, or texts (or pairs) with `labels`.
        labels: The labels of texts that are given as a list, array or series.
        resume: Continue the unfinished run at `out`.
        quiet: Print no progress.
        **options: Every option of `bertvision fit`, with underscores; `dev` may also be a data frame, or (texts,
            labels), and `weight` the weights themselves, one for each row.

    Returns:
        The finished run: `run.results` has the scores, `run.model()` answers new texts.

    Raises:
        UserError: If an option or the data cannot be used; nothing is written then.

    Example:
        >>> texts, labels = ["a good film", "a bad film"] * 50, ["pos", "neg"] * 50
        >>> run = bertvision.fit(texts, labels, budget=1)
        >>> run.model().predict("What a film!")["label"]
        'pos'
    """
    from bertvision.tasks.memory import WEIGHTS, dataset_in_memory
    from bertvision.training.fit import fit as run_fit

    given: dict[str, Any] = dict(options)
    task_or_data = given.pop("task", task_or_data)  # another name for it
    chosen = named(task_or_data) if isinstance(task_or_data, (str, Path)) and labels is None else None
    weights = None if isinstance(given.get("weight"), (str, NoneType)) else given.pop("weight")
    if chosen is not None and weights is not None:
        raise UserError("weight: for a file or a task, name the column; a sequence goes with data in memory.")
    if chosen is not None and not isinstance(given.get("dev"), (str, Path, NoneType)):  # a file, but dev data in memory
        if "train" not in chosen:
            raise UserError(f"dev: task '{task_or_data}' needs a file to report on; got {type(given['dev']).__name__}.")
        task_or_data, chosen = read_columns(Path(task_or_data)), None
    if chosen is not None:
        request, dataset = Request.of(**given | chosen), None
    else:
        dev = given.pop("dev", None)
        request = Request.of(task="table", **given | ({} if weights is None else {"weight": WEIGHTS}))
        dataset = dataset_in_memory(task_or_data, labels, dev, request, weights)
    return run_fit(request, resume=resume, progress=Progress(quiet), dataset=dataset)


def load(run: Paths | Run, model: str | None = None) -> Model:
    """Load a trained model.

    Args:
        run: A run directory; `RUN@3/10` asks for another mark than the selected one.
        model: Another model of the run than the selected one, e.g. `ensemble-greedy`.

    Example:
        >>> bertvision.load("runs/reviews").predict("What a film!")["label"]
        'pos'
    """
    return Model(_path(run), model)


def evaluate(run: Paths | Run, *, data: Paths | None = None, dev: Paths | None = None) -> Evaluation:
    """Score every model of a run.

    Args:
        run: A run directory, or `RUN@MARK`.
        data: A folder with the task's files. Default: the run's own dev data.
        dev: One file to score on.

    Example:
        >>> found = bertvision.evaluate("runs/reviews", dev="more.csv")
        >>> found.scores["dev"]["encoder"]["accuracy"].value
        0.871
    """
    return Model(_path(run), everything=True).evaluate(dev, data=data)


def compare(a: Paths | Run, b: Paths | Run) -> Comparison:
    """How much the second run's model scores above the first's: a paired bootstrap on the same dev examples.

    Args:
        a: A run directory, or `RUN@MARK`.
        b: Another one, with the same dev data.

    Example:
        >>> bertvision.compare("runs/short", "runs/long").difference["dev"]["accuracy"].value
        0.013
    """
    from bertvision.inference.evaluate import compare as compare_runs

    return compare_runs(_path(a), _path(b))


@_completing(*EXTRACTING)
def extract(
    source: Paths,
    task: str,
    *,
    out: Paths,
    split: str = "train,dev",
    dtype: str = "fp16",
    views: str = "auto",
    layers: str | None = None,
    shard: str = "1/1",
    shard_size: int = 128,
    order: int = 0,
    repair: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Store | None:
    """Keep the hidden states of an encoder in a store.

    Args:
        source: An encoder, as `fit(backbone=...)` takes it, or `RUN[@MARK]`: a fine-tuned one.
        task: The task whose texts it reads.
        out: The store to write: a folder, or a URL that fsspec knows.
        split: `train` (with the held-out rows), `dev`, or both.
        dtype: `fp32`, `fp16`, `bf16` or `int8`.
        views: `tokens`, or pooled views such as `cls,mean`. `auto`: what the task needs.
        layers: Layers to keep, e.g. `0-3+6`; 0 is the embeddings. Default: all.
        shard: `i/n`: write only this part. Parts may run anywhere, in any order.
        shard_size: Megabytes per file.
        order: Seed of the order in which windows are stored.
        repair: Check a finished store, and write damaged files again.
        quiet: Print no progress.
        **options: Data options of `bertvision fit`.

    Returns:
        The store, or None while other parts of it are missing.

    Example:
        >>> store = bertvision.extract("minilm-l6", "sts-b", data="glue/", out="stores/sts-b")
        >>> len(store)
        7249
    """
    from bertvision.inference.extract import StoreOptions
    from bertvision.inference.extract import extract as write

    chosen = StoreOptions(str(out), split, dtype, views, layers, shard, shard_size, order, repair)
    return write(str(source), Request.of(task=task, **options), chosen, Progress(quiet))


def open_store(store: Paths) -> Store:
    """Open a finished store.

    Example:
        >>> for batch in bertvision.open_store("stores/sts-b").batches(32, seed=0):
        ...     states = batch.hidden  # (B, L, T, D)
    """
    from bertvision.stores.reader import open_store as read

    return read(store)


@_completing(*TRAINING)
def train(
    store: Paths, *, epochs: int | None = None, polish: int | None = None, quiet: bool = False, **options: Any
) -> Run:
    """Train heads on a store: no encoder runs. Texts, if they are at hand, are read for the model `words` only.

    Args:
        store: The store.
        polish: Epochs of head training; `epochs` is another name for it. Default: 8, spans 2.
        quiet: Print no progress.
        **options: Options of `bertvision train`.

    Example:
        >>> run = bertvision.train("stores/sts-b", heads="learned-pooling,adapter-64", out="runs/two-heads")
        >>> run.results.last.best_head
        'adapter-64'
    """
    from bertvision.training.stored import train as run_train

    chosen = polish if polish is not None else epochs
    request = Request.of(**{**options, "polish": chosen, "epochs": "0"})
    return run_train(open_store(store), request, Progress(quiet))


def analyse(
    run: Paths | Run, only: Sequence[str] = (), *, deep: bool = False, tolerance: float = 0.5
) -> dict[str, list[Table]]:
    """What a run's predictions and heads show: errors, calibration, layers, cost.

    Args:
        run: A run directory, or `RUN@MARK`.
        only: Names of analyses (`bertvision ls analyses`). Default: all quick ones.
        deep: Also those that train heads or run the encoder (minutes).
        tolerance: Points of the metric that may be lost where the analysis `depth` suggests a cut.

    Returns:
        Name of the analysis -> tables with `.title`, `.note` and `.rows` (a list of dictionaries).

    Example:
        >>> tables = bertvision.analyse("runs/reviews", ["confusion"])
        >>> rows = tables["confusion"][0].rows
    """
    from bertvision.analysis.conduct import analyse as conduct

    return conduct(_path(run), only, deep=deep, tolerance=tolerance)


def cut(
    run: Paths | Run,
    depth: int | None = None,
    *,
    tolerance: float = 0.5,
    heads: str | None = None,
    epochs: str | float = "0",
    out: Paths | None = None,
    quiet: bool = False,
) -> Run:
    """A smaller, faster model: keep only the first transformer layers of a run's encoder, and train heads on them.

    Args:
        run: A run directory, or `RUN@MARK`.
        depth: Transformer layers to keep. Default: as few as `tolerance` allows.
        tolerance: Points of the metric that may be lost on held-out data.
        heads: Heads to train on the shorter encoder. Default: the run's.
        epochs: Fine-tune the shorter encoder for this long first.
        out: Run directory to create.
        quiet: Print no progress.

    Example:
        >>> small = bertvision.cut("runs/reviews", depth=2)
        >>> small.record.cut.layers
        2
    """
    from bertvision.cutting import cut as cut_run

    where, progress = None if out is None else str(out), Progress(quiet)
    return cut_run(_path(run), depth, tolerance=tolerance, heads=heads, epochs=epochs, out=where, progress=progress)


def report(*runs: Paths | Run, out: Paths = "report.html") -> Path:
    """Write one page about one or several runs.

    Args:
        *runs: Run directories, or `RUN@MARK`.
        out: The file to write. A name that ends in .md makes it Markdown, else it is HTML.

    Example:
        >>> bertvision.report("runs/reviews", out="report.html").name
        'report.html'
    """
    from bertvision.reports import make

    return make([_path(run) for run in runs], out)


def _path(run: Paths | Run) -> Paths:
    return run.path if isinstance(run, Run) else run
