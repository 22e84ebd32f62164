"""What run.json says about a run: options, versions, digests, parameters, and what it cost."""

import hashlib
import importlib.metadata
import platform
import resource
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bertvision.backbones import licence
from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads.base import Head, parameters
from bertvision.records import _plain
from bertvision.runs import UNFINISHED, Run
from bertvision.training.setting import Setting

PACKAGES = ("bertvision", "torch", "transformers", "accelerate", "tokenizers", "numpy", "scikit-learn", "scipy")


def about(setting: Setting, heads: dict[str, Head]) -> dict[str, Any]:
    """What is so of every run, wherever its states come from."""
    dataset = setting.dataset
    return {
        "schema": 2,
        "options": setting.options.as_dict(),
        "request": setting.request.as_dict(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "kind": dataset.kind,
        "labels": dataset.labels,
        "metrics": dataset.metrics,
        "roles": dataset.roles,
        "scale": asdict(setting.scale),
        "shape": _plain(setting.shape),
        "parameters": {name: parameters(head) for name, head in heads.items()},
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
        },
    }


def describe(setting: Setting, heads: dict[str, Head]) -> dict[str, Any]:
    """The same, and what is known where there is an encoder and there are texts."""
    known, encoder = about(setting, heads), setting.encoder
    known["parameters"] = {"encoder": sum(p.numel() for p in encoder.parameters())} | known["parameters"]
    known["encoder_trained"] = parameters(encoder)
    known["machine"]["device"] = str(encoder.device)
    return known | {
        "windowed": setting.dataset.train.questions is not None,
        "data": {name: {"examples": len(part), "sha256": part.digest()} for name, part in setting.parts.items()},
        "licence": licence(setting.options.backbone),
        "weights_sha256": weights_digest(encoder),
        "tokenizer_sha256": tokenizer_digest(encoder),
    }


def weights_digest(encoder: Encoder) -> str:
    """Digest of the pre-trained weights; the new output layer, which the seed decides, is left out."""
    total = hashlib.sha256()
    for name, value in sorted(encoder.model.base_model.state_dict().items()):
        if encoder.pooled or not name.startswith("pooler."):
            total.update(name.encode())
            total.update(value.cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def tokenizer_digest(encoder: Encoder) -> str:
    encoder.tokenizer.backend_tokenizer.no_truncation()  # which the last call may have left switched on
    return hashlib.sha256(encoder.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def costs(seconds: float, parts: dict[str, float], run: Run) -> dict[str, Any]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept = (file for file in run.path.rglob("*") if file.relative_to(run.path).parts[0] not in UNFINISHED)
    spent: dict[str, Any] = {
        "seconds": seconds,
        "parts": parts,
        "peak_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "disk_bytes": sum(file.stat().st_size for file in kept if file.is_file()),
    }
    if torch.cuda.is_available():
        spent["peak_device_bytes"] = torch.cuda.max_memory_allocated()
    return spent


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
