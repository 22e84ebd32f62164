"""What run.json says about a run: recipe, versions, digests, parameters, and what it cost."""

import importlib.metadata
import platform
import resource
import shlex
import shutil
import sys
from pathlib import Path

import torch

from bertvision.backbones import licence
from bertvision.backbones.digest import tokenizer_digest, weights_digest
from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads.base import Head, parameters
from bertvision.prepare import Prepared, Setting
from bertvision.records import ENCODER, Costs, Data, FromStore, RunRecord
from bertvision.runs.directory import UNFINISHED, Run
from bertvision.stores.reader import Store

PACKAGES = ("bertvision", "torch", "transformers", "accelerate", "tokenizers", "numpy", "scikit-learn", "scipy")


def data_of(setting: Setting) -> dict[str, Data]:
    return {name: Data(len(part), part.digest()) for name, part in setting.parts.items()}


def describe(setting: Prepared, heads: dict[str, Head]) -> RunRecord:
    """A run with an encoder and texts."""
    encoder = setting.encoder
    data = data_of(setting)
    windowed = setting.dataset.train.questions is not None
    record = _describe(setting, heads, windowed, data, weights_digest(encoder), tokenizer_digest(encoder))
    record.parameters = {ENCODER: sum(p.numel() for p in encoder.parameters())} | record.parameters
    record.encoder_trained = parameters(encoder)
    record.machine["device"] = str(encoder.device)
    record.licence = licence(setting.recipe.backbone)
    return record


def describe_stored(setting: Setting, store: Store, heads: dict[str, Head]) -> RunRecord:
    """A run from a store alone."""
    header, source = store.header, store.header.source
    data = {name: Data(part["examples"], part["sha256"]) for name, part in header.data.items()}
    windowed = header.task["windowed"]
    record = _describe(setting, heads, windowed, data, source["origin_sha256"], source["tokenizer_sha256"])
    where = store.manifest["where"]["encoder"]
    record.store = FromStore(str(store.place), source, where, header.layers, header.dtype)
    return record


def _describe(
    setting: Setting, heads: dict[str, Head], windowed: bool, data: dict[str, Data], weights: str, tokenizer: str
) -> RunRecord:
    dataset = setting.dataset
    return RunRecord(
        request=setting.request,
        recipe=setting.recipe,
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        kind=dataset.kind,
        labels=dataset.labels,
        metrics=dataset.metrics,
        roles=dataset.roles,
        scale=setting.scale,
        shape=setting.shape,
        parameters={name: parameters(head) for name, head in heads.items()},
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        machine={
            "python": platform.python_version(),
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
        },
        windowed=windowed,
        data=data,
        weights_sha256=weights,
        tokenizer_sha256=tokenizer,
    )


def costs(seconds: float, parts: dict[str, float], run: Run) -> Costs:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = (file for file in run.path.rglob("*") if file.relative_to(run.path).parts[0] not in UNFINISHED)
    return Costs(
        seconds=seconds,
        parts=parts,
        peak_memory_bytes=peak if sys.platform == "darwin" else peak * 1024,
        disk_bytes=sum(file.stat().st_size for file in kept if file.is_file()),
        peak_device_bytes=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    )


def check_disk(path: Path, encoder: Encoder, marks: int) -> None:
    """Refuse at once what the disk cannot hold: a checkpoint per mark and two states (weights and two moments)."""
    size = sum(p.numel() * 4 for p in encoder.parameters())
    needed = size * (marks + 6)
    place = path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"--out '{path}': {marks} checkpoints need about {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB."
            " Fewer --marks need less."
        )
