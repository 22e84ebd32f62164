"""`extract`: one pass of an encoder over a task's texts, kept in a store."""

import importlib.metadata
import shlex
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.backbones import encoder as encoders
from bertvision.backbones.digest import tokenizer_digest, weights_digest
from bertvision.backbones.encoder import Encoder
from bertvision.backbones.tokenise import JOINT, SEPARATE
from bertvision.errors import Interrupted, UserError
from bertvision.heads.variants import OPTIONS
from bertvision.inference.shards import ShardMaker
from bertvision.interrupts import Interrupts
from bertvision.options import DECIDING, Request, flag, one_of
from bertvision.prepare import Prepared, prepare
from bertvision.progress import Progress
from bertvision.records import RunRecord
from bertvision.runs.directory import RECORD, open_run
from bertvision.states.hidden import views_of
from bertvision.stores.codec import DTYPES
from bertvision.stores.format import SHARD_MEGABYTES, SHARD_UNIT, TOKENS, Header, Shard, plan
from bertvision.stores.place import Place
from bertvision.stores.reader import Store, open_store
from bertvision.stores.writer import Writer
from bertvision.tasks.sampling import ranks
from bertvision.types import HELD_OUT, TRAIN, Questions

FILES = ("data", "train", "dev")  # where the data is: this does not decide what is stored


@dataclass(frozen=True)
class StoreOptions:
    """What to keep of the states, and where."""

    out: str
    split: str = "train,dev"
    dtype: str = "fp16"
    views: str = "auto"
    layers: str | None = None
    shard: str = "1/1"
    shard_size: int = SHARD_MEGABYTES
    order: int = 0
    repair: bool = False

    def __post_init__(self) -> None:
        one_of("--dtype", self.dtype, DTYPES)
        if self.shard_size < 1:
            raise UserError(f"--shard-size must be at least 1 (megabyte); got {self.shard_size}.")
        self.part()

    def part(self) -> tuple[int, int]:
        number, _, of = self.shard.partition("/")
        if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
            raise UserError(f"--shard must be i/n, such as 1/4 (the first of four parts); got '{self.shard}'.")
        return int(number) - 1, int(of)


@dataclass(frozen=True)
class Origin:
    """Whose states are stored: a backbone, or the encoder of a run at a mark."""

    where: str
    mark: str | None = None
    record: RunRecord | None = None  # of the run


def extract(source: str, request: Request, options: StoreOptions, progress: Progress) -> Store | None:
    """Write a store, or what is missing of it. None: other parts are not finished yet."""
    command = command_of(source, request, options)
    _check_limits(request, options.split)
    Place(options.out)  # refuses what cannot be reached, before any work
    encoder, request, origin = source_of(source, request)
    setting = prepare(replace(request, heads="none", folds="0"), progress, encoder=encoder)
    # A single text, or a question, has no second one to be read by itself.
    separate = request.pairs == SEPARATE and setting.encoded[TRAIN].alone is not None
    setting = replace(setting, recipe=replace(setting.recipe, pairs=SEPARATE if separate else JOINT))
    splits = splits_of(setting, options.split)
    for split in splits if origin.record is not None else ():
        assert origin.record is not None
        if origin.record.recipe.folds != "0" and split in (TRAIN, HELD_OUT):
            if origin.mark == "0":
                continue  # its encoder has seen no row
            raise UserError(
                f"'{source}' was cross-fitted: its encoder has seen every training row, so none can be held out here."
                " Use --split dev, or fit it with --folds 0."
            )
        if setting.parts[split].digest() != origin.record.data[split].sha256:
            raise UserError(
                f"The {split.replace('_', '-')} rows are not those of '{source}': rows it was fine-tuned on must not be"
                " held out here. Leave out --limit and other data options; the run's own are used."
            )
    where = {"encoder": origin.where, **{name: getattr(request, name) for name in FILES}}
    with Interrupts() as interrupts:
        try:
            with progress.guarded(interrupts.check):
                done = write_store(setting, options, splits, origin, where, command)
        except KeyboardInterrupt:
            raise Interrupted(f"Interrupted. Finished shards are kept. To continue: {command}") from None
    return open_store(options.out) if done else None


def _check_limits(request: Request, split: str) -> None:
    """Refuse a limit on examples that are not stored."""
    asked = split.split(",")
    if request.limit is not None and "train" not in asked:
        raise UserError(f"--limit is for training examples, which --split {split} leaves out. Use --dev-limit for dev.")
    if request.dev_limit is not None and "dev" not in asked:
        raise UserError(f"--dev-limit is for dev examples, which --split {split} leaves out. Use --limit for train.")


def write_store(
    setting: Prepared, options: StoreOptions, splits: list[str], origin: Origin, where: dict[str, Any], command: str
) -> bool:
    """Write what is missing of a store; is it whole now?"""
    assert setting.recipe.pairs in (JOINT, SEPARATE)  # `auto` is a choice per head, not a way to read
    place, progress = Place(options.out), setting.progress
    header = header_of(setting, options, origin, splits)
    shards = [shard for split in splits for shard in plan(split, setting.windows[split].lengths, header)]
    maker = ShardMaker(setting, header)
    place.make()
    writer = Writer(place, header, shards, command, where, options.part())
    with writer.writing(options.repair):
        missing = writer.missing()
        size, total = sum(s.bytes for s in missing), sum(s.bytes for s in shards)
        progress.say(f"{place}: {total / 1e6:,.1f} MB in {len(shards)} shards, {size / 1e6:,.1f} MB of it to write now")
        codec = writer.codec(lambda: maker.sample(shards[0]))
        for split in splits:
            _describe(writer, setting, split, [shard for shard in shards if shard.split == split])
        with (
            progress.bar("extract", sum(len(shard.windows) for shard in missing)) as bar,
            ThreadPoolExecutor(1) as aside,  # the disk works on one shard while the encoder works on the next
        ):
            writing: Future[None] | None = None
            for shard in missing:
                made = maker.shard(shard, codec, bar.tick)
                if writing is not None:
                    writing.result()
                writing = aside.submit(writer.write, shard, made)
            if writing is not None:
                writing.result()
        return writer.finish()


def command_of(source: str, request: Request, options: StoreOptions) -> str:
    """The complete command line that writes this store: it also continues and repairs it."""
    words = ["bertvision", "extract", source, request.task]
    for given, plain, names in (
        (request, Request(), (*DECIDING[1:], *FILES, "seed")),
        (options, StoreOptions(options.out), ("split", "dtype", "views", "layers", "shard_size", "order")),
    ):
        for name in names:
            value = getattr(given, name)
            if value != getattr(plain, name):
                words += [flag(name)] + ([] if value is True else [str(value)])
    return shlex.join([*words, "--out", options.out])


def source_of(source: str, request: Request) -> tuple[Encoder | None, Request, Origin]:
    """The encoder of `RUN[@MARK]` with its own output layer, or None for the name of a backbone."""
    name = source.rpartition("@")[0] if "@" in source and not Path(source).exists() else source
    if not (Path(name) / RECORD).exists():
        where = str(Path(source).absolute()) if Path(source).is_dir() else source
        return None, replace(request, backbone=source), Origin(where)
    run, mark = open_run(source)
    record, given = run.record, run.record.recipe
    if record.store is not None:
        raise UserError(f"'{source}' was trained on a store; its encoder is '{record.store.encoder}'.")
    if request.task != given.task:
        raise UserError(f"'{source}' was fitted on {given.task}: its states are of that task, not of {request.task}.")
    shape, folder, plain = record.shape, run.mark_folder(mark) / "encoder", Request()
    left_open = [n for n in (*DECIDING, *FILES) if getattr(request, n) == getattr(plain, n)]
    kept = {name: getattr(given, name) for name in left_open}
    encoder = encoders.load(str(folder), shape.outputs, 0, span=shape.span, pooled=shape.pooled)
    return encoder, replace(request, backbone=given.backbone, **kept), Origin(str(folder.absolute()), mark, record)


def splits_of(setting: Prepared, asked: str) -> list[str]:
    """`train` is what heads learn from and what is held out of it; `dev` is every dev split."""
    found: list[str] = []
    for name in asked.split(","):
        if name == "train":
            found += [TRAIN, HELD_OUT]
        elif name == "dev":
            found += [split for split in setting.parts if split not in (TRAIN, HELD_OUT)]
        else:
            raise UserError(f"--split must be train, dev or train,dev; got '{asked}'.")
    return found


def header_of(setting: Prepared, options: StoreOptions, origin: Origin, splits: list[str]) -> Header:
    encoder, dataset = setting.encoder, setting.dataset
    weights = weights_digest(encoder)
    layers = _layers(options.layers, encoder.layers)
    return Header(
        source={
            "backbone": Path(setting.recipe.backbone).name,
            "mark": origin.mark,
            "weights_sha256": weights,
            "origin_sha256": weights if origin.record is None else origin.record.weights_sha256,
            "tokenizer_sha256": tokenizer_digest(encoder),
            # The seed of a new output layer, to make the same one again. Stores without it used 0.
            **({"seed": setting.request.seed} if origin.mark is None and setting.request.seed else {}),
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
        options={name: getattr(setting.recipe, name) for name in DECIDING},
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
        components=None,
        pooled=setting.shape.pooled,
        seed=options.order,
        shard_bytes=options.shard_size * SHARD_UNIT,
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")},
    )


def _layers(asked: str | None, count: int) -> list[int]:
    if asked is None:
        return list(range(count))
    try:
        found = list(OPTIONS["layers"](asked))
    except ValueError:
        raise UserError(f"--layers must be a list such as 0-3+6; got '{asked}'.") from None
    if found[-1] >= count:
        raise UserError(f"--layers '{asked}': the encoder's layers are 0 (embeddings) to {count - 1}.")
    return found


def _views(asked: str, setting: Prepared) -> list[str]:
    """`auto`: tokens where the answer is one, else every pooled view."""
    known = views_of(setting.shape.paired)
    if asked == "auto":
        return list(TOKENS if setting.shape.span else known)
    if asked == "tokens":
        if setting.recipe.pairs == SEPARATE:
            raise UserError("--views tokens: pairs that are read separately are stored as pooled views only.")
        return list(TOKENS)
    found = asked.split(",")
    for view in found:
        if setting.shape.span or view not in known:
            wanted = "tokens" if setting.shape.span else f"tokens, or of {', '.join(known)}"
            raise UserError(f"--views '{view}': this task's states are stored as {wanted}.")
    return found


def _describe(writer: Writer, setting: Prepared, split: str, shards: list[Shard]) -> None:
    """The tables beside the shards: a row per window and, where answers are scored, what scoring needs."""
    part, windows = setting.parts[split], setting.windows[split]
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
    if split == TRAIN:
        columns["rank"] = ranks(part)[examples]
    if setting.shape.span and windows.answers is not None:
        columns |= {"start": windows.answers[order, 0], "end": windows.answers[order, 1]}
    elif windows.answers is not None:
        columns["target"] = (windows.answers[order, 0] > 0).astype(np.int64)
    else:
        columns["target"] = part.targets[examples]
    writer.table(f"rows-{split}.parquet", columns)
    if split == TRAIN:
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
