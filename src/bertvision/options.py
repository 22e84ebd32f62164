"""Every option of `fit`, once: the command line, the Python call and run.json are all made from this list."""

from dataclasses import asdict, dataclass, field, fields
from fractions import Fraction
from typing import Any

from bertvision.errors import UserError

PAIRS = ("joint", "separate", "auto")
MODES = ("auto", "memory", "stored", "recompute")
SCHEDULES = ("linear", "constant")
STARTS = ("scratch", "ridden")
DECODINGS = ("span", "argmax")


def option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class FitOptions:
    """The options of one run; `replace(options, seed=1)` is how a sweep is written."""

    task: str = option(
        "table", "A GLUE task, `squad2`, `table` for your own file, or `demo`. `bertvision ls tasks` lists all."
    )
    data: str | None = option(
        None, "Folder with the task's files (or the folder above it). Without it: the Hugging Face hub."
    )
    train: str | None = option(
        None,
        "Task `table`: CSV, TSV (quotes are read as they stand), JSONL or Parquet file to train on; `squad2`: a SQuAD JSON file.",
    )
    dev: str | None = option(
        None, "File to report on, like --train. Task `table` without it: a tenth of train is set aside for that."
    )
    text: str | None = option(
        None,
        "Task `table`: column with the text. Default: `text` or `sentence`, or the usual names of a pair (sentence1 and sentence2, ...), or the only column left.",
    )
    text_pair: str | None = option(None, "Task `table`: column with the second text of a pair.")
    label: str | None = option(
        None, "Task `table`: column with the answer. Default: `label`, `score`, `target` or `class`."
    )
    kind: str | None = option(
        None, "Task `table`: `class` or `score`. Default: inferred from the label column, and said."
    )
    strict: bool = option(
        False,
        "Tasks `squad2` and `squad2-answerable`: stop at an answer that does not stand where the file says, instead of taking the nearest place where it does (or leaving a training question out) and saying how many.",
    )
    backbone: str = option("minilm-l6", "An encoder: a name of `bertvision ls backbones`, a hub name or a folder.")
    heads: str = option(
        "default",
        "Heads to train beside the encoder: names or sets of `bertvision ls heads`, comma-separated, or `none`. Sets: default, paper, ours, all. Variants behind a name: `adapter-64:lr=1e-3/3e-4:seed=0..3:data=0..100:layers=0-4:views=cls+mean:normalised=yes:dropout=0.2` (data in per cent), all in one pass.",
    )
    polish: int | None = option(
        None, "Epochs of head training on a clean pass at each mark; 0 switches polishing off. Default: 8, for spans 2."
    )
    polish_until: str | None = option(
        None,
        "Polish at marks up to this many epochs; after them, heads that rode along are as good, and a pass is saved. Default: 3/10 with a --lead, 0 for spans within a --budget, else (or if --polish is given) all marks.",
    )
    polish_from: str = option(
        "scratch", "Start of polished heads: `scratch`, or `ridden`: where they are at that mark."
    )
    mode: str = option(
        "auto",
        "Where polished heads get their states from while the encoder rests: `memory`, `stored` (on disk beside the run, removed in the end), `recompute` (the encoder computes them anew in each epoch), or `auto`: with a frozen encoder the fastest by a short measurement, else memory if it suffices.",
    )
    pairs: str = option(
        "auto",
        "How polished heads read a pair: `joint`, `separate` (each text alone), or `auto`: per head, on held-out data (`extract` and `plan`: joint).",
    )
    epochs: str = option(
        "1", "How long to fine-tune the encoder; a fraction such as 3/10 is fine, 0 leaves it as it is."
    )
    marks: str | None = option(
        None,
        "Fractions of an epoch at which to stop and evaluate, e.g. 0,1/10,3/10,1. Default: 0, every whole epoch and, without a --lead, 3/10. The run ends at the last one.",
    )
    budget: float | None = option(
        None,
        "Minutes that the whole run may take. A few batches are measured, then --epochs (at most 3) and --marks follow from it and, where even reading takes too long, --pairs and --limit; half-way through, --epochs are adjusted to the speed so far.",
    )
    batch_size: int | None = option(
        None,
        "Examples (for `squad2...`: windows) per batch. Default: 16; 8 for fewer than 4,000 training examples, so that an epoch has enough steps.",
    )
    lr: float | None = option(
        None, "Peak learning rate of the encoder. Default: 1e-4 for encoders narrower than 512 features, else 3e-5."
    )
    head_lr: float = option(1e-3, "Peak learning rate of the heads (of the lead: --lr).")
    max_length: int | None = option(
        None,
        "Tokens per example at most; longer ones are cut, counted and said, but `squad2...` splits them into windows. Default: 256, for `squad2...` 386.",
    )
    stride: int = option(128, "Tasks `squad2...`: tokens by which the windows of one context overlap.")
    answer_length: int = option(30, "Task `squad2`: tokens of an answer at most.")
    null_threshold: float | None = option(
        None,
        "Task `squad2`: say there is no answer where its probability is above this. Default: tuned on held-out data, per model.",
    )
    null_share: float = option(
        0.5,
        "Task `squad2`: share of unanswerable questions to expect in use. Thresholds and models are chosen for it, whatever the share in the held-out data (SQuAD 2.0: a third in train, half in dev).",
    )
    decoding: str = option(
        "span", "Task `squad2`: `span`: the best start and end together; `argmax`: each by itself, as the paper did."
    )
    lead: str | None = option(
        None,
        "Head whose loss fine-tunes the encoder beside that of its own output layer, from its solution in closed form on: `closed-form` or `closed-form-adapter`; `own`: the output layer alone. Default: closed-form, but `own` for `squad2`, without heads and with --freeze all.",
    )
    freeze: str | None = option(
        None,
        "Leave part of the encoder as it is: `none`, `embeddings`, a number N (embeddings and the first N layers), or `all`. Default: embeddings with a --lead, else none.",
    )
    dropout: bool = option(
        False,
        "Fine-tune with the dropout that the encoder was pre-trained with. Without it, a step on a CPU takes 0.4 (long texts) to 0.9 (short ones) of the time, and few epochs learn more; with many epochs on few examples it may be worth its price.",
    )
    schedule: str = option("linear", "Learning rate after warm-up: `linear` decay to zero, or `constant`.")
    warmup: float = option(0.1, "Share of all steps over which the learning rate rises from zero.")
    clip: float = option(1.0, "Largest norm of the encoder's gradient; 0 switches clipping off.")
    accumulate: int = option(1, "Batches per optimiser step.")
    limit: int | None = option(None, "Train on a fixed, stratified sample of this many examples (before holding out).")
    dev_limit: int | None = option(None, "Report on a fixed, stratified sample of this many dev examples.")
    seed: int = option(
        0, "Random seed of output layer, dropout, heads and batch order. It never changes which rows are held out."
    )
    out: str | None = option(
        None, "Run directory to make. Default: runs/TASK-BACKBONE (`train`: runs/TASK-STORE), numbered if taken."
    )

    def __post_init__(self) -> None:
        one_of("--pairs", self.pairs, PAIRS)
        one_of("--mode", self.mode, MODES)
        one_of("--polish-from", self.polish_from, STARTS)
        one_of("--schedule", self.schedule, SCHEDULES)
        one_of("--decoding", self.decoding, DECODINGS)
        if self.kind is not None:
            one_of("--kind", self.kind, ("class", "score"))
        for name in ("batch_size", "max_length", "answer_length", "accumulate", "limit", "dev_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{flag(name)} {value} must be at least 1.")
        for name in ("polish", "stride", "null_threshold", "lr", "head_lr", "clip", "seed"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UserError(f"{flag(name)} {getattr(self, name)} must not be negative.")
        if self.budget is not None and not self.budget > 0:
            raise UserError(f"--budget {self.budget} must be above 0 minutes.")
        if not 0 < self.null_share < 1:
            raise UserError(f"--null-share {self.null_share} is a share of all questions: above 0 and below 1.")
        if not 0 <= self.warmup < 1:
            raise UserError(f"--warmup {self.warmup} is a share of all steps: at least 0 and below 1.")
        if self.freeze is not None and self.freeze not in ("none", "embeddings", "all") and not self.freeze.isdigit():
            raise UserError(f"--freeze '{self.freeze}' is none of: none, embeddings, a number of layers, all.")
        if self.polish_until is not None:
            fraction("--polish-until", self.polish_until)
        self.fractions()

    def fractions(self) -> list[Fraction]:
        """The marks, ascending; the last one is where the run ends."""
        epochs = fraction("--epochs", self.epochs)
        if self.marks is None:
            wholes = [Fraction(n) for n in range(1, int(epochs) + 1)]
            return sorted({Fraction(0), *wholes, epochs})
        marks = sorted({fraction("--marks", part) for part in self.marks.split(",")})
        if marks[-1] > epochs:
            raise UserError(
                f"--marks asks for {marks[-1]} epochs but --epochs is {epochs}: raise it or drop that mark."
            )
        return marks

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def fraction(name: str, text: str) -> Fraction:
    try:
        value = Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise UserError(f"{name} '{text}' is not a number or a fraction such as 3/10.") from None
    if value < 0:
        raise UserError(f"{name} {text} must not be negative.")
    return value


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} '{value}' is none of: {', '.join(allowed)}.")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The flags in which two option sets differ, for --resume."""
    names = [f.name for f in fields(FitOptions)]
    return [f"{flag(n)} {old.get(n)} -> {new.get(n)}" for n in names if n in old and old[n] != new.get(n)]
