"""The nine GLUE tasks: one row each, read from the standard TSV files or from the Hugging Face hub."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.options import Request
from bertvision.tasks import Roles, Task, tasks
from bertvision.tasks.reading import Columns, finite_scores, read_delimited
from bertvision.tasks.table import read_table
from bertvision.types import Dataset, Examples

HUB_NAME = "nyu-mll/glue"
ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task: the columns of its files and of its hub dataset, and what its labels are called."""

    name: str
    folder: str
    about: str
    texts: tuple[str, ...]  # columns in the files, by header name
    label: str
    hub: str
    hub_texts: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    labels: dict[str, str] | None = None  # value in the files -> name, in the hub's index order; None for scores
    header: bool = True
    dev: tuple[str, ...] = ("dev",)  # names of the dev splits
    files: tuple[str, ...] = ("dev.tsv",)
    hub_dev: tuple[str, ...] = ("validation",)
    torn: bool = False  # the official file is known to hold torn lines


TABLE = [
    GlueTask("cola", "CoLA", "is the sentence acceptable English", ("3",), "1", "cola", ("sentence",),
             ("matthews", "accuracy"), {"0": "unacceptable", "1": "acceptable"}, header=False),
    GlueTask("sst-2", "SST-2", "sentiment of a film review", ("sentence",), "label", "sst2", ("sentence",),
             labels={"0": "negative", "1": "positive"}),
    GlueTask("mrpc", "MRPC", "do two sentences say the same", ("#1 String", "#2 String"), "Quality", "mrpc",
             ("sentence1", "sentence2"), ("accuracy", "f1"), {"0": "not_equivalent", "1": "equivalent"}),
    GlueTask("sts-b", "STS-B", "similarity of two sentences, 0 to 5", ("sentence1", "sentence2"), "score", "stsb",
             ("sentence1", "sentence2"), ("pearson", "spearman")),
    GlueTask("qqp", "QQP", "are two questions duplicates", ("question1", "question2"), "is_duplicate", "qqp",
             ("question1", "question2"), ("accuracy", "f1"), {"0": "not_duplicate", "1": "duplicate"},
             torn=True),
    GlueTask("mnli", "MNLI", "does the first sentence entail the second", ("sentence1", "sentence2"), "gold_label",
             "mnli", ("premise", "hypothesis"),
             labels={name: name for name in ("entailment", "neutral", "contradiction")},
             dev=("dev", "dev_mismatched"), files=("dev_matched.tsv", "dev_mismatched.tsv"),
             hub_dev=("validation_matched", "validation_mismatched")),
    GlueTask("qnli", "QNLI", "does the sentence answer the question", ("question", "sentence"), "label", "qnli",
             ("question", "sentence"), labels=ENTAILMENT),
    GlueTask("rte", "RTE", "does the first text entail the second", ("sentence1", "sentence2"), "label", "rte",
             ("sentence1", "sentence2"), labels=ENTAILMENT),
    GlueTask("wnli", "WNLI", "what does the pronoun refer to (adversarial dev set)", ("sentence1", "sentence2"),
             "label", "wnli", ("sentence1", "sentence2"), labels={"0": "not_entailment", "1": "entailment"}),
]  # fmt: skip


def load(row: GlueTask, options: Request) -> Dataset:
    return _from_folder(row, Path(options.data)) if options.data else _from_hub(row)


def read(row: GlueTask, path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file: in GLUE's own layout if it is a TSV, else a table."""
    if path.suffix == ".tsv":
        return _read(row, path, [], labelled=roles["label"] is not None)
    return read_table(path, roles, labels)


def _from_folder(row: GlueTask, data: Path) -> Dataset:
    folder = _find_folder(row, data)
    torn: list[int] = []
    train = _read(row, folder / "train.tsv", torn)
    dev = {name: _read(row, folder / file, torn) for name, file in zip(row.dev, row.files, strict=True)}
    notes = (f"{len(torn)} torn lines in {row.folder}'s files were left out",) if torn else ()
    return _dataset(row, train, dev, notes)


def _find_folder(row: GlueTask, data: Path) -> Path:
    """`data` itself, or the folder in it that has the task's name in any spelling."""
    if not data.is_dir():
        raise UserError(f"--data '{data}' is not a folder.")
    if (data / "train.tsv").exists():
        return data
    names = {row.name, row.folder.lower(), row.hub}
    for child in sorted(data.iterdir()):
        if child.name.lower() in names and (child / "train.tsv").exists():
            return child
    raise UserError(f"--data '{data}' holds neither train.tsv nor a folder {row.folder} with train.tsv.")


def _read(row: GlueTask, path: Path, torn: list[int], labelled: bool = True) -> Examples:
    kept = torn if row.torn else None
    columns = read_delimited(path, delimiter="\t", quoted=False, header=row.header, torn=kept)
    needed = (*row.texts, row.label) if labelled else row.texts
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(f"'{path}' has no column '{missing[0]}'. Its columns: {', '.join(columns)}.")
    if not columns[row.texts[0]]:
        raise UserError(f"'{path}' has no rows.")
    return _examples(row, path, columns, row.texts, columns[row.label] if labelled else None)


def _examples(
    row: GlueTask, source: object, columns: Columns, texts: tuple[str, ...], labels: list[str] | None
) -> Examples:
    targets: np.ndarray | None = None
    if labels is None:
        pass
    elif row.labels is None:
        targets = finite_scores(source, row.label, labels)
    else:
        index = {value: i for i, value in enumerate(row.labels)}
        for number, value in enumerate(labels, 1):
            if value not in index:
                raise UserError(f"'{source}', row {number}: label '{value}' is none of: {', '.join(index)}.")
        targets = np.array([index[value] for value in labels], dtype=np.int64)
    return Examples(columns[texts[0]], columns[texts[1]] if len(texts) > 1 else None, targets)


def _from_hub(row: GlueTask) -> Dataset:
    ways = (
        f"Either give its files: --data FOLDER (a folder with {row.folder}/train.tsv), or let the Hugging Face hub"
        f" send them: pip install 'bertvision[hub]', with network."
    )
    try:
        import datasets
    except ImportError:
        raise UserError(f"The data of '{row.name}' is not here. {ways}") from None
    try:
        parts = {name: datasets.load_dataset(HUB_NAME, row.hub, split=name) for name in ("train", *row.hub_dev)}
    except Exception as error:  # the hub client raises many kinds; to the user they all mean: no data
        raise UserError(f"The hub did not give '{row.name}' ({error}). {ways}") from None
    examples = {name: _from_hub_part(row, part) for name, part in parts.items()}
    dev = {name: examples[hub] for name, hub in zip(row.dev, row.hub_dev, strict=True)}
    return _dataset(row, examples["train"], dev, ())


def _from_hub_part(row: GlueTask, part: Any) -> Examples:
    names = list(row.labels or ())
    labels = [names[value] for value in part["label"]] if names else part["label"]
    columns = {name: list(part[name]) for name in row.hub_texts}
    return _examples(row, f"{HUB_NAME}/{row.hub}", columns, row.hub_texts, labels)


def _dataset(row: GlueTask, train: Examples, dev: dict[str, Examples], notes: tuple[str, ...]) -> Dataset:
    kind = "class" if row.labels else "score"
    labels = tuple((row.labels or {}).values())
    pair = row.texts[1] if len(row.texts) > 1 else None
    roles = {"text": row.texts[0], "pair": pair, "label": row.label}
    if not row.header:  # a table of the user's has names
        roles = {"text": row.hub_texts[0], "pair": None, "label": "label"}
    return Dataset(row.name, kind, labels, row.metrics, train, dev, roles, notes)


for _row in TABLE:
    tasks.add(_row.name, Task(_row.about, _row.metrics, partial(load, _row), partial(read, _row), ("data",)))
