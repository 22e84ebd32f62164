"""`extract`: one clean pass of an encoder over a task's texts, kept in a store."""

import importlib.metadata
import shlex
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.backbones import encoder as backbone_family
from bertvision.backbones.encoder import Encoder
from bertvision.errors import Interrupted, UserError
from bertvision.options import Request, flag, one_of
from bertvision.progress import Progress
from bertvision.runs import open_run
from bertvision.states.hidden import views_of
from bertvision.stores.codec import DTYPES
from bertvision.stores.format import TOKENS, Header, Shard, plan
from bertvision.stores.place import Place
from bertvision.stores.reader import Store, open_store
from bertvision.stores.writer import Writer
from bertvision.tasks.sampling import ranks
from bertvision.training.interrupts import Interrupts
from bertvision.training.provenance import tokenizer_digest, weights_digest
from bertvision.training.setting import Setting, prepare
from bertvision.training.shards import Reading
from bertvision.types import HELD_OUT, Questions

SHARD_MEGABYTES, SHARD_UNIT = 128, 10**6  # bytes in a megabyte; less in tests
# Options that decide what is stored; where the files lie does not.
DECIDING = (
    *("task", "text", "text_pair", "label", "kind", "strict"),
    *("max_length", "stride", "limit", "dev_limit", "pairs"),
)


@dataclass(frozen=True)
class ExtractOptions:
    """What to keep of the states, and where."""

    out: str
    split: str = "train,dev"
    dtype: str = "fp16"
    views: str = "auto"
    layers: str | None = None
    pca: int | None = None
    shard: str = "1/1"
    shard_size: int = SHARD_MEGABYTES
    order: int = 0
    repair: bool = False

    def __post_init__(self) -> None:
        one_of("--dtype", self.dtype, DTYPES)
        if self.shard_size < 1:
            raise UserError(f"--shard-size {self.shard_size} must be at least 1 (megabyte).")
        self.part()

    def part(self) -> tuple[int, int]:
        number, _, of = self.shard.partition("/")
        if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
            raise UserError(f"--shard '{self.shard}' is not i/n, such as 1/4 (the first of four parts).")
        return int(number) - 1, int(of)


def extract(source: str, fit: Request, options: ExtractOptions, progress: Progress) -> Store | None:
    """Write a store, or what is missing of it. None: other parts are not finished yet."""
    command = command_of(source, fit, options)
    Place(options.out)  # refuses what cannot be reached, before any work
    encoder, fit, origin = source_of(source, fit)
    setting = prepare(replace(fit, heads="none"), progress, encoder)
    # A single text, or a question, has no second one to be read by itself.
    pairs = "separate" if fit.pairs == "separate" and setting.encoded["train"].alone is not None else "joint"
    setting = replace(setting, options=replace(setting.options, pairs=pairs))
    splits = splits_of(setting, options.split)
    for split in splits if "data" in origin else ():
        if setting.parts[split].digest() != origin["data"][split]["sha256"]:
            raise UserError(
                f"The {split.replace('_', '-')} rows are not those of '{source}': what it was fine-tuned on must not be"
                " held out here. Leave out --limit and other options of the data; the run's own are taken."
            )
    where = {"encoder": origin["where"], "data": fit.data, "train": fit.train, "dev": fit.dev}
    with Interrupts() as interrupts:
        progress.guard = interrupts.check
        try:
            done = keep(setting, options, splits, origin, where, command)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted. What is written is kept; go on with: {command}") from None
    return open_store(options.out) if done else None


def keep(
    setting: Setting,
    options: ExtractOptions,
    splits: list[str],
    origin: dict[str, Any],
    where: dict[str, Any],
    command: str,
) -> bool:
    """Write what is missing of a store; is it whole now?"""
    place, progress = Place(options.out), setting.progress
    header = header_of(setting, options, origin, splits)
    shards = [shard for split in splits for shard in plan(split, setting.encoded[split].together.lengths, header)]
    reading = Reading(setting, header)
    place.make()
    writer = Writer(place, header, shards, command, where, options.part())
    with writer.writing(options.repair):
        missing = writer.missing()
        size, total = sum(s.bytes for s in missing), sum(s.bytes for s in shards)
        progress.say(f"{place}: {total / 1e6:,.1f} MB in {len(shards)} shards, {size / 1e6:,.1f} MB of it to write now")
        codec = writer.codec(lambda: reading.sample(shards[0]))
        for split in splits:
            _describe(writer, setting, split, [shard for shard in shards if shard.split == split])
        with (
            progress.bar("extract", sum(len(shard.windows) for shard in missing)) as bar,
            ThreadPoolExecutor(1) as aside,  # the disk works on one shard while the encoder works on the next
        ):
            writing: Future[None] | None = None
            for shard in missing:
                made = reading.shard(shard, codec, bar.tick)
                if writing is not None:
                    writing.result()
                writing = aside.submit(writer.write, shard, made)
            if writing is not None:
                writing.result()
        return writer.finish()


def command_of(source: str, fit: Request, options: ExtractOptions) -> str:
    """The command line that writes this store, whole: what goes on with it, and what mends it."""
    words = ["bertvision", "extract", source, fit.task]
    for given, plain, names in (
        (fit, Request(), (*DECIDING[1:], "data", "train", "dev")),
        (options, ExtractOptions(options.out), ("split", "dtype", "views", "layers", "pca", "shard_size", "order")),
    ):
        for name in names:
            value = getattr(given, name)
            if value != getattr(plain, name):
                words += [flag(name)] + ([] if value is True else [str(value)])
    return shlex.join([*words, "--out", options.out])


def source_of(source: str, fit: Request) -> tuple[Encoder | None, Request, dict[str, Any]]:
    """The encoder of `RUN[@MARK]` with its own output layer, or None for the name of a backbone."""
    name = source.rpartition("@")[0] if "@" in source else source
    if not (Path(name) / "run.json").exists():
        where = str(Path(source).absolute()) if Path(source).is_dir() else source
        return None, replace(fit, backbone=source), {"where": where, "mark": None}
    run, mark = open_run(source)
    info, given = run.info, run.record.recipe
    if "store" in info:
        raise UserError(f"'{source}' was trained on a store; its encoder is '{info['store']['encoder']}'.")
    shape, folder = run.record.shape, run.mark_folder(mark) / "encoder"
    if fit.task != given.task:
        raise UserError(f"'{source}' was fitted on {given.task}, so its states are of that task, not of {fit.task}.")
    defaults = Request()
    left_open = [n for n in (*DECIDING, "data", "train", "dev") if getattr(fit, n) == getattr(defaults, n)]
    kept = {name: getattr(given, name) for name in left_open}
    encoder = backbone_family.load(str(folder), shape.outputs, 0, span=shape.span, pooled=shape.pooled)
    origin = {
        "where": str(folder.absolute()),
        "mark": mark,
        "origin_sha256": info["weights_sha256"],
        "data": info["data"],
    }
    return encoder, replace(fit, backbone=given.backbone, **kept), origin


def splits_of(setting: Setting, asked: str) -> list[str]:
    """`train` is what heads learn from and what is held out of it; `dev` is every dev split."""
    found: list[str] = []
    for name in asked.split(","):
        if name == "train":
            found += ["train", HELD_OUT]
        elif name == "dev":
            found += [split for split in setting.parts if split not in ("train", HELD_OUT)]
        else:
            raise UserError(f"--split '{name}' is none of: train, dev.")
    return found


def header_of(setting: Setting, options: ExtractOptions, origin: dict[str, Any], splits: list[str]) -> Header:
    encoder, dataset = setting.encoder, setting.dataset
    weights = weights_digest(encoder)
    layers = _layers(options.layers, encoder.layers)
    if options.pca is not None and not 0 < options.pca < encoder.features:
        raise UserError(f"--pca {options.pca} must be at least 1 and below the encoder's {encoder.features} features.")
    return Header(
        source={
            "backbone": Path(setting.options.backbone).name,
            "mark": origin["mark"],
            "weights_sha256": weights,
            "origin_sha256": origin.get("origin_sha256", weights),
            "tokenizer_sha256": tokenizer_digest(encoder),
        },
        task={
            "name": dataset.task,
            "kind": dataset.kind,
            "labels": list(dataset.labels),
            "metrics": list(dataset.metrics),
            "roles": dataset.roles,
            "scale": asdict(setting.scale),
            "outputs": dataset.outputs,
            "pairs": setting.shape.paired,
            "windowed": dataset.train.questions is not None,
        },
        options={name: getattr(setting.options, name) for name in DECIDING},
        data={
            split: {
                "examples": len(setting.parts[split]),
                "windows": len(setting.encoded[split]),
                "sha256": setting.parts[split].digest(),
            }
            for split in splits
        },
        layers=layers,
        features=encoder.features,
        views=_views(options.views, setting),
        dtype=options.dtype,
        components=options.pca,
        pooled=setting.shape.pooled,
        seed=options.order,
        shard_bytes=options.shard_size * SHARD_UNIT,
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")},
    )


def _layers(asked: str | None, count: int) -> list[int]:
    from bertvision.heads.variants import OPTIONS

    if asked is None:
        return list(range(count))
    try:
        found = list(OPTIONS["layers"](asked))
    except ValueError:
        raise UserError(f"--layers '{asked}' is not a list such as 0-3+6.") from None
    if found[-1] >= count:
        raise UserError(f"--layers '{asked}': the encoder's layers are 0 (embeddings) to {count - 1}.")
    return found


def _views(asked: str, setting: Setting) -> list[str]:
    """`auto`: tokens where the answer is one, else every pooled view."""
    known = views_of(setting.shape.paired)
    if asked == "auto":
        return list(TOKENS if setting.shape.span else known)
    if asked == "tokens":
        if setting.options.pairs == "separate":
            raise UserError("--views tokens: texts of a pair that are read separately are kept as pooled views only.")
        return list(TOKENS)
    found = asked.split(",")
    for view in found:
        if setting.shape.span or view not in known:
            wanted = "tokens" if setting.shape.span else f"tokens, or of {', '.join(known)}"
            raise UserError(f"--views '{view}': this task's states are kept as {wanted}.")
    return found


def _describe(writer: Writer, setting: Setting, split: str, shards: list[Shard]) -> None:
    """The tables beside the shards: a row per window and, where answers are scored, what scoring needs."""
    part, windows = setting.parts[split], setting.encoded[split].together
    order = np.concatenate([shard.windows for shard in shards]) if shards else np.zeros(0, dtype=np.int64)
    examples = windows.examples[order]
    ids = part.questions.ids if part.questions is not None else [str(row) for row in range(len(part))]
    assert part.targets is not None
    columns: dict[str, Any] = {
        "window": order,
        "example": examples,
        "id": [ids[i] for i in examples],
        "length": windows.lengths[order],
        "shard": np.repeat([shard.name for shard in shards], [len(shard.windows) for shard in shards]),
    }
    if split == "train":
        columns["rank"] = ranks(part)[examples]
    if setting.shape.span and windows.answers is not None:
        columns |= {"start": windows.answers[order, 0], "end": windows.answers[order, 1]}
    elif windows.answers is not None:
        columns["target"] = (windows.answers[order, 0] > 0).astype(np.int64)
    else:
        columns["target"] = part.targets[examples]
    writer.table(f"rows-{split}.parquet", columns)
    if split == "train":
        return
    known: dict[str, Any] = {"id": ids, "target": part.targets}
    if part.questions is not None:
        known |= _questions(part.questions)
        known |= {"question": part.texts, "context": part.second_texts}
    writer.table(f"examples-{split}.parquet", known)
    flat = {"offsets": windows.offsets, "examples": windows.examples, "segments": windows.segments}
    flat |= {name: value for name in ("characters", "answers") if (value := getattr(windows, name)) is not None}
    writer.tensors(
        f"windows-{split}.safetensors", {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in flat.items()}
    )


def _questions(questions: Questions) -> dict[str, Any]:
    return {
        "article": questions.articles,
        "answers": [[answer.text for answer in found] for found in questions.answers],
        "starts": [[answer.start for answer in found] for found in questions.answers],
    }
