"""Every option of `fit`, once: the command line, the Python call and run.json are all made from this list.

A `Request` is what the user asked for: what is None is left open. `recipe.resolve` turns it into a `Recipe`, in which
every value is decided.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Any

from bertvision.errors import UserError
from bertvision.registry import unknown

PAIRS = ("joint", "separate", "auto")
MODES = ("auto", "memory", "stored", "recompute")
SCHEDULES = ("linear", "constant")
DECODINGS = ("span", "argmax")
CUT, WINDOWS = "cut", "windows"  # what happens to a text that is longer than --max-length
KINDS = ("class", "score")  # that a table can have
OWN = "own"  # the value of --lead that means: no head, only the encoder's own output layer
ALL_MARKS = "all"  # the value of --polish-until that means: no limit

# Options of a request that decide what is stored. The location of the files does not.
DECIDING = tuple("task text text_pair label kind strict max_length long stride limit dev_limit pairs".split())
# The panels of `fit --help`, in order.
MAIN, DATA, ENCODER, HEADS, TRAINING, SELECTION, OUTPUT = (
    *("Main options", "Data", "Encoder", "Heads", "Training", "Selection and scoring", "Output"),
)


def option(default: Any, panel: str, help: str) -> Any:
    return field(default=default, metadata={"help": help, "panel": panel})


@dataclass(frozen=True)
class Request:
    """The options of one run, as asked; `replace(request, seed=1)` is how a sweep is written."""

    # fmt: off
    task: str = option("table", MAIN, "A GLUE task, `squad2`, `demo`, or `table` for your own file. `bertvision ls tasks` lists all.")
    train: str | None = option(None, MAIN, "File to train on. Task `table`: CSV, TSV, JSONL or Parquet; `squad2`: SQuAD JSON.")
    data: str | None = option(None, MAIN, "Folder with the task's files, or the folder above it. Default: download from the Hugging Face hub.")
    budget: float | None = option(None, MAIN, "Minutes the whole run may take, from start to end. Sets --epochs (at most 3; for few examples up to 10) and --marks and, if time is very short, --pairs, --folds, --limit and --dev-limit. Speed is watched all the time.")
    backbone: str = option("minilm-l6", MAIN, "The encoder: a name from `bertvision ls backbones`, a Hugging Face hub name or a folder.")
    out: str | None = option(None, MAIN, "Run directory to create. Default: runs/TASK-BACKBONE (`train`: runs/TASK-STORE), numbered if taken.")

    dev: str | None = option(None, DATA, "File to report on, in the format of --train. Task `table` without it: a tenth of train, at most 1,000 rows, is set aside.")
    text: str | None = option(None, DATA, "Task `table`: the text column. Default: `text` or `sentence`, the usual names of a pair (sentence1 and sentence2, ...), or the only column left.")
    text_pair: str | None = option(None, DATA, "Task `table`: the column with the second text of a pair.")
    label: str | None = option(None, DATA, "Task `table`: the label column. Default: `label`, `score`, `target` or `class`.")
    kind: str | None = option(None, DATA, "Task `table`: `class` or `score`. Default: inferred from the label column and printed.")
    weight: str | None = option(None, DATA, "Task `table`: a column with the weight of each row in training. Metrics do not use it.")
    strict: bool = option(False, DATA, "SQuAD tasks: stop at an answer that is not at its stated offset. Default: use the nearest occurrence (or drop the training question) and print how many.")
    limit: int | None = option(None, DATA, "Train on a fixed, stratified sample of this many examples (taken before holding out).")
    dev_limit: int | None = option(None, DATA, "Report on a fixed, stratified sample of this many dev examples.")
    max_length: int | None = option(None, DATA, "Maximum tokens per example. For longer texts see --long. Default: 256, SQuAD tasks 386.")
    long: str | None = option(None, DATA, "What to do with a text that is longer than --max-length: `cut` it, or read it in up to 8 overlapping `windows` and average their answers. Pairs are always cut, contexts of SQuAD tasks always read in windows. Default: cut.")
    stride: int = option(128, DATA, "Tokens by which neighbouring windows overlap: at most half a window of a context (SQuAD tasks), a quarter of a window of a text (--long windows).")

    freeze: str | None = option(None, ENCODER, "Part of the encoder to freeze: `none`, `embeddings`, a number N (embeddings and the first N layers) or `all`. Default: embeddings with a --lead, else none.")
    lr: float | None = option(None, ENCODER, "Peak learning rate of the encoder. Default: 1e-4 for encoders with fewer than 512 features, else 3e-5.")
    dropout: bool = option(False, ENCODER, "Fine-tune with the encoder's pre-training dropout. Without it a CPU step takes 0.4 to 0.9 of the time, and short runs learn more.")

    heads: str = option("default", HEADS, "Heads to train: names or sets (default, paper, ours, all) from `bertvision ls heads`, comma-separated, or `none`. Variants in one pass: `adapter-64:lr=1e-3/3e-4:seed=0..3`; other options of a head: data (per cent), layers, views, normalised, dropout.")
    lead: str | None = option(None, HEADS, "Head trained jointly with the encoder: `closed-form`, `closed-form-adapter` or `embedding`. It is initialised by regression and its gradients also update the encoder. `own`: only the encoder's output layer. Default: closed-form; `own` for `squad2`, without heads and with --freeze all.")
    head_lr: float = option(1e-3, HEADS, "Peak learning rate of the heads (the lead uses --lr).")
    polish: int | None = option(None, HEADS, "Extra epochs of head training on the frozen encoder at each mark; 0 disables it. Default: 8, spans 2.")
    polish_until: str | None = option(None, HEADS, "Polish only at marks up to this many epochs, or `all`. Default: 3/10 with a --lead, 0 for spans with a --budget, else (and if --polish is given) all.")
    pairs: str = option("auto", HEADS, "How polished heads read text pairs: `joint`, `separate` (each text alone) or `auto`: per head, whichever is better on held-out data (`extract` and `plan`: joint).")
    words: bool = option(True, HEADS, "Classes and scores: also fit a linear model on counted words (TF-IDF), which takes seconds, as the model `words`.")
    mode: str = option("auto", HEADS, "Where polished heads get hidden states: `memory`, `stored` (a temporary store on disk), `recompute` (run the encoder again each epoch) or `auto`: the fastest that fits, by a short measurement.")

    epochs: str = option("1", TRAINING, "How long to fine-tune the encoder. Fractions such as 3/10 are allowed; 0 trains heads only.")
    marks: str | None = option(None, TRAINING, "Epoch fractions at which to evaluate and save a checkpoint, e.g. 0,1/10,3/10,1. Default: 0, every whole epoch and, without a --lead, 3/10.")
    batch_size: int | None = option(None, TRAINING, "Examples (SQuAD tasks: windows) per batch. Default: 16, or 8 with fewer than 4,000 training examples.")
    accumulate: int = option(1, TRAINING, "Batches per optimiser step.")
    schedule: str = option("linear", TRAINING, "Learning rate after warm-up: `linear` decay to zero, or `constant`.")
    warmup: float = option(0.1, TRAINING, "Share of all steps over which the learning rate rises from zero.")
    class_weight: str | None = option(None, TRAINING, "Weights of the classes in training: `balanced` (all classes count alike) or JSON such as '{\"spam\": 3}' (other classes: 1). Metrics do not use them.")
    clip: float = option(1.0, TRAINING, "Maximum gradient norm of the encoder; 0 disables clipping.")
    seed: int = option(0, TRAINING, "Random seed of output layer, dropout, heads and batch order. It never changes which rows are held out.")

    folds: str | None = option(None, SELECTION, "Choose by cross-fitting: everything is trained once per fold, judged on the rows left out, and trained on all rows in the end. `2/5`: only two of five folds. 0: choose on a tenth of the rows instead. Default: 5 for fewer than 1,000 training examples (classes and scores), else 0.")
    metric: str | None = option(None, SELECTION, "What models are chosen by. Classes: `accuracy`, `f1` (of the second of two classes; of more classes the same as `macro-f1`), `macro-f1`, `balanced-accuracy`, `matthews`. Scores: `pearson`, `spearman`, `r2`. Default: the task's first metric; tables accuracy or pearson.")
    answer_length: int = option(30, SELECTION, "Task `squad2`: maximum tokens of an answer.")
    null_threshold: float | None = option(None, SELECTION, "Task `squad2`: answer nothing if the probability of no answer is above this. Default: tuned on held-out data, per model.")
    null_share: float = option(0.5, SELECTION, "Task `squad2`: expected share of unanswerable questions in use. Thresholds and models are chosen for it (SQuAD 2.0 has a third in train, half in dev).")
    decoding: str = option("span", SELECTION, "Task `squad2`: `span` scores start and end together; `argmax` takes each alone, as the paper did.")

    # fmt: on
    def __post_init__(self) -> None:
        for name, allowed in (("pairs", PAIRS), ("mode", MODES), ("schedule", SCHEDULES), ("decoding", DECODINGS)):
            one_of(flag(name), getattr(self, name), allowed)
        if self.kind is not None:
            one_of("--kind", self.kind, KINDS)
        if self.long is not None:
            one_of("--long", self.long, (CUT, WINDOWS))
        for name in ("batch_size", "max_length", "answer_length", "accumulate", "limit", "dev_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{flag(name)} must be at least 1; got {value}.")
        for name in ("polish", "stride", "null_threshold", "lr", "head_lr", "clip", "seed"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{flag(name)} must not be negative; got {value}.")
        if self.budget is not None and not self.budget > 0:
            raise UserError(f"--budget must be above 0 minutes; got {self.budget}.")
        if not 0 < self.null_share < 1:
            raise UserError(f"--null-share is a share of all questions, above 0 and below 1; got {self.null_share}.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"--warmup is a share of all steps, at least 0 and below 1; got {self.warmup}.")
        if self.freeze is not None and self.freeze not in ("none", "embeddings", "all") and not self.freeze.isdigit():
            raise UserError(f"--freeze must be none, embeddings, a number of layers or all; got '{self.freeze}'.")
        if self.folds is not None:
            folds_of(self.folds)
        if self.polish_until not in (None, ALL_MARKS):
            fraction("--polish-until", str(self.polish_until))
        last = fraction("--epochs", self.epochs)
        if self.marks is not None and (latest := marks_of(self.marks)[-1]) > last:
            raise UserError(f"--marks asks for {latest} epochs but --epochs is {last}: raise it or drop that mark.")

    @classmethod
    def of(cls, **given: Any) -> "Request":
        """From what a Python user writes: lists, numbers and paths where the command line has words."""
        known = cls.__dataclass_fields__
        for name, value in given.items():
            if name not in known:
                raise unknown("option", name, list(known))
            if isinstance(value, Mapping):
                given[name] = json.dumps(value)
            elif value is not None and known[name].type in ("str", "str | None", str, str | None):
                given[name] = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return cls(**given)

    @property
    def in_memory(self) -> bool:
        """Was the data given as Python objects, so that no file can be read again?"""
        return self.task == "table" and self.train is None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def marks_of(text: str) -> list[Fraction]:
    """`0,3/10,1` as ascending fractions of an epoch."""
    return sorted({fraction("--marks", part) for part in text.split(",")})


def fraction(name: str, text: str) -> Fraction:
    try:
        value = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name} must be a number or a fraction such as 3/10; got '{text}'.") from None
    if value < 0:
        raise UserError(f"{name} must not be negative; got {text}.")
    return value


def folds_of(text: str | None) -> tuple[int, int]:
    """(folds to use, folds in all) of `5`, `2/5` or 0, which means that there are none."""
    used, slash, count = (text or "0").partition("/")
    count = count if slash else used
    if not (used.isdigit() and count.isdigit() and (int(count) >= 2 or not slash) and int(used) <= int(count)):
        raise UserError(f"--folds must be 0, a number of folds such as 5, or some of them such as 2/5; got '{text}'.")
    return (int(used), int(count)) if int(count) > 1 else (0, 0)


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} must be one of {', '.join(allowed)}; got '{value}'.")


def flag(name: str, on: bool = True) -> str:
    return ("--" if on else "--no-") + name.replace("_", "-")


def differences(old: Request, new: Request, *, ignoring: tuple[str, ...] = ("out",)) -> list[str]:
    """The flags in which two requests differ."""
    names = [f.name for f in fields(Request) if f.name not in ignoring]
    return [
        f"{flag(name)} {getattr(old, name)} -> {getattr(new, name)}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
