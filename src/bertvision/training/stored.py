"""`train`: heads from a store alone. No backbone is loaded and no text is read."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.numpy import load_file

from bertvision import runs
from bertvision.backbones.encoder import Encoder
from bertvision.ensembling import Outputs
from bertvision.errors import Interrupted, UserError, disk_errors
from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import expand, parse
from bertvision.kinds import KINDS, Scale, confined
from bertvision.options import OWN, Request
from bertvision.progress import Progress
from bertvision.recipe import Facts, resolve
from bertvision.runs import Run
from bertvision.states.hidden import DERIVED_VIEWS
from bertvision.stores.reader import Store
from bertvision.training import card, marks, provenance
from bertvision.training.checkpoints import save_mark
from bertvision.training.collect import Encoded
from bertvision.training.fit import write_predictions
from bertvision.training.heads import build
from bertvision.training.interrupts import Interrupts
from bertvision.training.judging import judge_of
from bertvision.training.polish import polish
from bertvision.training.setting import Setting
from bertvision.training.sources import Stored, states_of
from bertvision.types import HELD_OUT, Answer, Dataset, Examples, Questions, Windows

ANSWER_ROWS = 64


def train(store: Store, options: Request, progress: Progress) -> Run:
    """One run from a store; `options` say what is trained and how, the store says on what."""
    started = time.perf_counter()
    for split in ("train", HELD_OUT):
        if split not in store.header.data:
            raise UserError(f"The store '{store.place}' has no training examples: extract it with --split train,dev.")
    setting = setting_of(store, options, progress)
    if not setting.names:
        raise UserError("--heads: there is nothing to train.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads = fed(build(setting.names, setting.shape, options.seed, device), store, progress)
    mark = store.header.source["mark"] or "0"
    path = Path(options.out) if options.out else runs.default_name(setting.dataset.task, f"{store.place}", False)
    runs.check(path, False)
    info = _describe(setting, store, heads)
    if info["store"]["encoder"] is None:
        progress.say("what the encoder itself would answer was not imported: it stands here as one that is undecided")
    run = runs.start(path, False)
    try:
        with disk_errors("then try again; nothing was kept."), Interrupts() as interrupts:
            progress.guard = interrupts.check
            made = marks.Report({split: {} for split in setting.evaluated})
            made.seconds = learn(setting, store, heads)
            made.heads = heads
            made.pairs = dict.fromkeys(heads, "separate" if store.header.options["pairs"] == "separate" else "joint")
            for split in setting.evaluated:
                made.outputs[split] = answer(setting, store.only(split), heads, split)
            marks.conclude(setting, made)
            entry = {"epoch": mark, "step": 0, "seconds": time.perf_counter() - started, "costs": made.seconds}
            entry |= marks.entry(setting, made)
            save_mark(run, mark, None, made.heads, made.pairs, made.ensembles)
            write_predictions(run.predictions_file(mark), setting, made)
            selected = {"model": entry["selected"], "mark": mark}
            scores = {"task": setting.dataset.task, "metric": setting.metric, "marks": [entry], "selected": selected}
            runs.write_json(run.path / "scores.json", scores)
            info["costs"] = provenance.costs(time.perf_counter() - started, made.seconds, run)
            runs.write_json(run.path / "run.json", info)
            card.write(run, path)
    except KeyboardInterrupt:
        shutil.rmtree(run.path)
        raise Interrupted("Interrupted; nothing was kept.") from None
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return runs.finish(run, path)


def setting_of(store: Store, options: Request, progress: Progress) -> Setting:
    """What a run works with, from what the store knows."""
    header, where = store.header, store.manifest["where"]
    task, span = header.task, header.span
    options = replace(options, **header.options, **{name: where[name] for name in ("data", "train", "dev")})
    shape = Shape(store.layers, store.features, task["outputs"], task["pairs"], header.pooled and not span, span)
    names = expand(options.heads, shape)
    examples = header.data["train"]["examples"] if "train" in header.data else 0
    facts = Facts(task["kind"], task["windowed"], store.features, examples, names, [])
    request, options = options, resolve(replace(options, lead=OWN), facts)
    parts, encoded = {}, {}
    for split in (name for name in header.data if name != "train"):
        parts[split] = _examples(store, split)
        encoded[split] = Encoded(_windows(store, split))
    nothing = Examples([], None, None)
    dataset = Dataset(
        task["name"], task["kind"], tuple(task["labels"]), tuple(task["metrics"]), nothing, {}, task["roles"]
    )
    judges = {split: judge_of(task["kind"], parts[split], encoded[split].together, options) for split in encoded}
    sizes = ", ".join(f"{entry['examples']} {name.replace('_', '-')}" for name, entry in header.data.items())
    progress.say(f"{dataset.task}, from {store.place}: {sizes}; {len(names)} heads")
    nobody = cast(Encoder, None)  # there is none, and nothing here asks for it
    return Setting(
        request, options, progress, dataset, parts, encoded, nobody, shape, Scale(**task["scale"]), names, judges
    )


def fed(heads: dict[str, Head], store: Store, progress: Progress) -> dict[str, Head]:
    """The heads whose food is in the store."""
    header = store.header
    left, out = {}, []
    for name, head in heads.items():
        wanted = set(head.views) if head.body is not None else set()
        if head.cosines or wanted & set(DERIVED_VIEWS):
            wanted = (wanted - set(DERIVED_VIEWS)) | {"first", "second"}
        enough = header.tokens or (not head.sequences and wanted <= set(header.views))
        if enough and not head.borrows:
            left[name] = head
        else:
            out.append(name)
    if out:
        progress.say(f"left out, as the store lacks their views, tokens or the encoder's layers: {', '.join(out)}")
    if out and not left:
        raise UserError(f"--heads: '{store.place}' ({', '.join(header.views)}) has not what {', '.join(out)} read.")
    return left


def learn(setting: Setting, store: Store, heads: dict[str, Head]) -> dict[str, float]:
    """Train heads in place; returns the seconds spent in training and those spent waiting for the store."""
    options, source = setting.options, Stored(store, setting.options.seed)
    known = source.part.rows
    places = np.argsort(known.window)  # windows in their own order, which is how a source numbers them
    targets = known.targets[places]
    shares = any(parse(name).data < 1 for name in heads)
    shrunk = setting.scale.shrink(targets) if setting.dataset.kind == "score" else torch.from_numpy(targets)
    with setting.progress.bar("train", source.steps(options.polish)) as bar:
        seconds = polish(
            heads,
            source,
            shrunk,
            setting.dataset.kind,
            epochs=options.polish,
            lr=options.head_lr,
            seed=options.seed,
            ranks=torch.from_numpy(known.rank[places]) if shares and known.rank is not None else None,
            tick=bar.tick,
        )
    share = seconds["wait"] / max(seconds["wait"] + seconds["train"], 1e-9)
    setting.progress.say(f"trained for {sum(seconds.values()):.0f} s, {share:.1%} of it waiting for the store")
    return seconds


@torch.inference_mode()
def answer(setting: Setting, part: Store, heads: dict[str, Head], split: str) -> Outputs:
    """Predictions of the encoder (its own logits are in the store) and of heads, windows in their original order."""
    windows, shape, kind = setting.encoded[split].together, setting.shape, KINDS[setting.dataset.kind]
    size = (int(windows.offsets[-1]), 2) if shape.span else (len(windows), shape.outputs)
    found = {name: np.empty(size, np.float32 if shape.span else np.float64) for name in ("encoder", *heads)}
    for head in heads.values():
        head.eval()
    with setting.progress.bar(f"answers ({split})", len(part)) as bar:
        device = next((head.output.weight.device for head in heads.values()), torch.device("cpu"))
        for batch in part.batches(ANSWER_ROWS, check=True):
            states = states_of(batch, part).to(device)
            assert batch.logits is not None
            answers = {"encoder": confined(batch.logits.to(device), states.places)}
            answers |= {name: head(states) for name, head in heads.items()}
            places = rows = part.rows.window[batch.rows]
            if shape.span:
                places = np.concatenate([np.arange(windows.offsets[i], windows.offsets[i + 1]) for i in rows])
            for name, values in answers.items():
                given = kind.outputs(values, setting.scale).cpu()
                found[name][places] = (given[batch.mask] if shape.span else given).numpy()
            bar.tick(len(rows))
    return found


def _examples(store: Store, split: str) -> Examples:
    table = store.examples(split)
    known = {name: table[name].to_pylist() for name in table.column_names if name != "target"}
    targets = table["target"].to_numpy()
    if "answers" not in known:
        return Examples(known["id"], None, targets)
    answers = [
        tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
        for texts, starts in zip(known["answers"], known["starts"], strict=True)
    ]
    return Examples(known["question"], known["context"], targets, Questions(known["id"], known["article"], answers))


def _windows(store: Store, split: str) -> Windows:
    flat = load_file(store.place.local(f"windows-{split}.safetensors"))
    nothing = np.zeros(0, dtype=np.int32)  # tokens are for encoders
    return Windows(tokens=nothing, types=nothing, truncated=0, **flat)


def _describe(setting: Setting, store: Store, heads: dict[str, Head]) -> dict[str, Any]:
    header = store.header
    data = {name: {"examples": part["examples"], "sha256": part["sha256"]} for name, part in header.data.items()}
    kept = {
        "place": str(store.place),
        "source": header.source,
        "encoder": store.manifest["where"]["encoder"],
        "layers": header.layers,
        "dtype": header.dtype,
    }
    return provenance.about(setting, heads) | {
        "windowed": header.task["windowed"],
        "data": data,
        "weights_sha256": header.source["origin_sha256"],
        "tokenizer_sha256": header.source["tokenizer_sha256"],
        "store": kept,
    }
