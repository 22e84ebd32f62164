"""What lies in a store, and how it is found whole.

    STORE/manifest.json             what the states are of and how they are kept; every file with size and checksum
    STORE/constants.safetensors     what the codec found on a sample (int8)
    STORE/rows-train.parquet        a row per window in the order it is stored: example, id, length, target, shard
    STORE/examples-dev.parquet      what scoring needs to know of the examples of a split: target, context, answers
    STORE/train-00000.safetensors   states (tokens or views, L, D), un-padded, and beside them segments, logits, pooled

Windows are stored in a seeded random order, so that reading one shard after the other is already random. A store is
written shard by shard, each whole or not there; while it is unfinished there is plan.json instead of manifest.json, and
beside every finished shard a small file with its checksum.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.stores.codec import bytes_per_row
from bertvision.stores.place import Place, digest

SCHEMA = 1
MANIFEST, PLAN = "manifest.json", "plan.json"
TOKENS = ("tokens",)
SHARD_MEGABYTES, SHARD_UNIT = 128, 10**6  # bytes in a megabyte; less in tests
# Options of a request that decide what is stored. Where the files are does not.
DECIDING = (
    *("task", "text", "text_pair", "label", "kind", "strict"),
    *("max_length", "stride", "limit", "dev_limit", "pairs"),
)


@dataclass(frozen=True)
class Header:
    """What the states are: equal headers are equal stores."""

    source: dict[str, Any]  # backbone, mark, digests of weights and tokenizer
    task: dict[str, Any]  # name, kind, labels, metrics, roles, scale, outputs, pairs, windowed
    options: dict[str, Any]  # of fit, as far as they decide what is stored
    data: dict[str, dict[str, Any]]  # split -> examples, windows, sha256
    layers: list[int]
    features: int
    views: list[str]  # `tokens` alone, or pooled views, which stand where tokens would
    dtype: str
    components: int | None  # None; version 0.1 could keep a PCA
    pooled: bool  # is there a trained pooler's output?
    seed: int  # of the order
    shard_bytes: int
    versions: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def tokens(self) -> bool:
        return tuple(self.views) == TOKENS

    @property
    def span(self) -> bool:
        return bool(self.task["kind"] == "span")

    @property
    def paired(self) -> bool:
        return bool(self.task["pairs"])

    @property
    def way(self) -> str:
        """How its pairs were read."""
        return "separate" if self.options["pairs"] == "separate" else "joint"

    def rows_of(self, lengths: np.ndarray) -> np.ndarray:
        """How many rows of a shard windows of these lengths take: their tokens, or their views."""
        return lengths if self.tokens else np.full(len(lengths), len(self.views))

    def row_bytes(self) -> int:
        """Of a token, or of a view."""
        return bytes_per_row(self.dtype, len(self.layers), self.features)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Shard:
    """A file of windows: which part they belong to, and which of its windows they are, in the order they are stored."""

    name: str
    split: str
    windows: np.ndarray
    bytes: int  # about, before it is written


def plan(split: str, lengths: np.ndarray, header: Header) -> list[Shard]:
    """Windows in a random order, cut where a shard is full."""
    order = np.random.default_rng([header.seed, len(lengths)]).permutation(len(lengths))
    sizes = header.rows_of(lengths[order]) * header.row_bytes()
    number = (np.cumsum(sizes) - sizes) // header.shard_bytes
    found = []
    for i, first in enumerate(np.flatnonzero(np.diff(number, prepend=-1))):
        here = np.flatnonzero(number == number[first])
        found.append(Shard(f"{split}-{i:05d}.safetensors", split, order[here], int(sizes[here].sum())))
    return found


def check_same(place: Place, kept: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to go on with a store of something else."""
    differing = [key for key in wanted if kept.get(key) != wanted[key] and key != "versions"]
    if kept.get("versions") != wanted["versions"]:
        differing.append("versions")
    if differing:
        parts = "; ".join(f"{key}: {_short(kept.get(key))} there, {_short(wanted[key])} now" for key in differing[:3])
        raise UserError(f"'{place}' is a store of something else ({parts}). Choose another --out, or remove it.")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else text[:77] + "..."


def read_manifest(place: Place, files: bool = True) -> dict[str, Any]:
    """The manifest of a finished store; with `files`, every file must be there and have its size."""
    if not place.exists():
        raise UserError(f"There is no store at '{place}'.")
    if not place.exists(MANIFEST):
        if place.exists(PLAN):
            kept = place.read_json(PLAN)
            done = sum(place.exists(f"{name}.sha256") for name in kept["shards"])
            raise UserError(
                f"'{place}' is unfinished: {done} of {len(kept['shards'])} shards. Go on with: {kept['command']}"
            )
        raise UserError(f"'{place}' is not a store (no {MANIFEST} in it).")
    manifest: dict[str, Any] = place.read_json(MANIFEST)
    schema = manifest.get("header", {}).get("schema")
    if schema != SCHEMA:
        raise UserError(f"'{place}' has schema {schema}; this version of bertvision reads schema {SCHEMA}.")
    if manifest["header"].get("components") is not None:
        raise UserError(f"'{place}' keeps a PCA of its states, which version 0.2 no longer reads: extract it again.")
    if files:
        cut = [name for name, entry in manifest["files"].items() if not has_size(place, name, entry["bytes"])]
        refuse(place, manifest, cut, "missing or cut off")
        small = [name for name, entry in manifest["files"].items() if "split" not in entry]
        refuse(place, manifest, damaged(place, manifest, small), "damaged")
    return manifest


def has_size(place: Place, name: str, size: int) -> bool:
    return place.exists(name) and place.size(name) == size


def damaged(place: Place, manifest: dict[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """Files whose content is not what was written."""
    return [
        name
        for name in names or manifest["files"]
        if not place.exists(name) or digest(place.local(name)) != manifest["files"][name]["sha256"]
    ]


def refuse(place: Place, manifest: dict[str, Any], names: Sequence[str], what: str) -> None:
    if names:
        raise UserError(
            f"In the store '{place}', {what}: {', '.join(names)}."
            f" This rewrites just that: {manifest['command']} --repair"
        )
