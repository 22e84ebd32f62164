"""The nine GLUE tasks: one row each, read from the standard TSV files or from the Hugging Face hub."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bertvision.options import Request
from bertvision.tasks import Roles, Task, tasks
from bertvision.tasks.reading import check_rows, find_file, only, read_delimited, read_hub
from bertvision.tasks.table import from_columns, read_table
from bertvision.types import Dataset, Examples

HUB_NAME = "nyu-mll/glue"
ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}


@dataclass(frozen=True)
class GlueTask:
    """One GLUE task: the columns of its files and of its hub dataset, and the names of its labels."""

    name: str
    folder: str
    about: str
    texts: tuple[str, ...]  # columns in the files, by header name
    label: str
    metrics: tuple[str, ...] = ("accuracy",)
    labels: dict[str, str] | None = None  # value in the files -> name, in the hub's index order; None for scores
    hub_texts: tuple[str, ...] = ()  # default: as in the files
    header: bool = True
    dev: tuple[str, ...] = ("dev",)  # names of the dev splits
    files: tuple[str, ...] = ("dev.tsv",)
    hub_dev: tuple[str, ...] = ("validation",)
    torn: bool = False  # the official file has torn lines


TABLE = [
    GlueTask("cola", "CoLA", "is the sentence acceptable English", ("3",), "1", ("matthews", "accuracy"),
             {"0": "unacceptable", "1": "acceptable"}, ("sentence",), header=False),
    GlueTask("sst-2", "SST-2", "sentiment of a film review", ("sentence",), "label",
             labels={"0": "negative", "1": "positive"}),
    GlueTask("mrpc", "MRPC", "do two sentences say the same", ("#1 String", "#2 String"), "Quality",
             ("accuracy", "f1"), {"0": "not_equivalent", "1": "equivalent"}, ("sentence1", "sentence2")),
    GlueTask("sts-b", "STS-B", "similarity of two sentences, 0 to 5", ("sentence1", "sentence2"), "score",
             ("pearson", "spearman")),
    GlueTask("qqp", "QQP", "are two questions duplicates", ("question1", "question2"), "is_duplicate",
             ("accuracy", "f1"), {"0": "not_duplicate", "1": "duplicate"}, torn=True),
    GlueTask("mnli", "MNLI", "does the first sentence entail the second", ("sentence1", "sentence2"), "gold_label",
             labels={name: name for name in ("entailment", "neutral", "contradiction")},
             hub_texts=("premise", "hypothesis"), hub_dev=("validation_matched", "validation_mismatched"),
             dev=("dev", "dev_mismatched"), files=("dev_matched.tsv", "dev_mismatched.tsv")),
    GlueTask("qnli", "QNLI", "does the sentence answer the question", ("question", "sentence"), "label",
             labels=ENTAILMENT),
    GlueTask("rte", "RTE", "does the first text entail the second", ("sentence1", "sentence2"), "label",
             labels=ENTAILMENT),
    GlueTask("wnli", "WNLI", "what does the pronoun refer to (adversarial dev set)", ("sentence1", "sentence2"),
             "label", labels={"0": "not_entailment", "1": "entailment"}),
]  # fmt: skip


def load(row: GlueTask, options: Request) -> Dataset:
    hub = row.name.replace("-", "")
    torn: list[int] = []
    if options.data:
        missing = f"holds neither train.tsv nor a folder {row.folder} with train.tsv."
        train_file = find_file(Path(options.data), (row.name, hub), ("train.tsv",), missing)
        files = [train_file, *(train_file.parent / name for name in row.files)]
        train, *dev = [_read(row, file, torn, row.label) for file in files]
    else:
        splits = ("train", *row.hub_dev)
        parts = read_hub(row.name, f"with {row.folder}/train.tsv", HUB_NAME, hub, splits)
        roles, indices = _roles(row.hub_texts or row.texts, "label"), tuple(map(str, range(len(row.labels or ()))))
        train, *dev = [
            from_columns(f"{HUB_NAME}/{hub}", parts[split].to_dict(), roles, indices, labelled=True) for split in splits
        ]
    kind, labels = "class" if row.labels else "score", tuple((row.labels or {}).values())
    # Files without a header have no column names; a user's table of the same task has those of the hub.
    roles = _roles(row.texts, row.label) if row.header else _roles(row.hub_texts, "label")
    notes = (f"{len(torn)} torn lines in {row.folder}'s files were left out",) if torn else ()
    return Dataset(row.name, kind, labels, row.metrics, train, dict(zip(row.dev, dev, strict=True)), roles, notes)


def read(row: GlueTask, path: Path, roles: Roles, labels: tuple[str, ...]) -> Examples:
    """A further file: a TSV in the layout of GLUE, or a table. Torn lines are left out of scores; without labels they
    are an error, because each line is to be answered."""
    if path.suffix != ".tsv":
        return read_table(path, roles, labels)
    label = row.label if roles["label"] is not None else None
    return _read(row, path, None if label is None else [], label)


def _read(row: GlueTask, path: Path, torn: list[int] | None, label: str | None) -> Examples:
    wanted = only(*row.texts, label)
    columns = check_rows(path, read_delimited(path, row.header, torn if row.torn else None, wanted))
    return from_columns(path, columns, _roles(row.texts, label), tuple(row.labels or ()), labelled=True)


def _roles(texts: tuple[str, ...], label: str | None) -> Roles:
    return {"text": texts[0], "pair": texts[1] if len(texts) > 1 else None, "label": label}


for _row in TABLE:
    tasks.add(_row.name, Task(_row.about, _row.metrics, partial(load, _row), partial(read, _row), ("data",)))
