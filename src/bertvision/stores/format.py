"""The files of a store, and the checks that it is complete.

    STORE/manifest.json             what the states are of and how they are stored; size and checksum of every file
    STORE/constants.safetensors     constants of the codec (int8)
    STORE/rows-train.parquet        a row per window in stored order: example, id, length, target, shard
    STORE/examples-dev.parquet      what scoring needs of the examples of a split: target, context, answers
    STORE/train-00000.safetensors   un-padded states (tokens or views, L, D), with segments, logits and pooled

Windows are stored in a seeded random order, so that reading shards in sequence is random enough. Each shard is written
as a whole. An unfinished store has plan.json instead of manifest.json, and a file with the checksum of each finished
shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.stores.codec import bytes_per_row
from bertvision.stores.place import Place, digest

SCHEMA = 1
MANIFEST, PLAN, CONSTANTS = "manifest.json", "plan.json", "constants.safetensors"
TOKENS = ("tokens",)
SHARD_MEGABYTES, SHARD_UNIT = 128, 10**6  # bytes in a megabyte; less in tests


@dataclass(frozen=True)
class Header:
    """What the states are. Stores with equal headers are equal."""

    source: dict[str, Any]  # backbone, mark, digests of weights and tokenizer
    task: dict[str, Any]  # name, kind, labels, metrics, roles, scale, outputs, pairs, windowed
    options: dict[str, Any]  # those in DECIDING
    data: dict[str, dict[str, Any]]  # split -> examples, windows, sha256
    layers: list[int]
    features: int
    views: list[str]  # `tokens` alone, or pooled views, which take the place of tokens
    dtype: str
    components: int | None  # always None; version 0.1 could store a PCA
    pooled: bool  # is the output of a trained pooler stored?
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
        """How pairs were read."""
        return "separate" if self.options["pairs"] == "separate" else "joint"

    def rows_of(self, lengths: np.ndarray) -> np.ndarray:
        """Rows of a shard per window: its tokens, or its views."""
        return lengths if self.tokens else np.full(len(lengths), len(self.views))

    def row_bytes(self) -> int:
        """Bytes of a token, or of a view."""
        return bytes_per_row(self.dtype, len(self.layers), self.features)


@dataclass(frozen=True)
class Shard:
    """A file of windows: their split, and their numbers in it, in stored order."""

    name: str
    split: str
    windows: np.ndarray
    bytes: int  # an estimate


def plan(split: str, lengths: np.ndarray, header: Header) -> list[Shard]:
    """Windows in a random order, in shards of at most about `header.shard_bytes`."""
    order = np.random.default_rng([header.seed, len(lengths)]).permutation(len(lengths))
    sizes = header.rows_of(lengths[order]) * header.row_bytes()
    number = (np.cumsum(sizes) - sizes) // header.shard_bytes
    groups = np.split(np.arange(len(order)), np.flatnonzero(np.diff(number)) + 1) if len(order) else []
    return [
        Shard(f"{split}-{i:05d}.safetensors", split, order[here], int(sizes[here].sum()))
        for i, here in enumerate(groups)
    ]


def check_same(place: Place, kept: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue a store with another header."""
    differing = [key for key in wanted if kept.get(key) != wanted[key]]
    if differing:
        parts = "; ".join(f"{key}: {kept.get(key)!s:.80} there, {wanted[key]!s:.80} now" for key in differing[:3])
        raise UserError(f"'{place}' is a store of something else ({parts}). Choose another --out, or remove it.")


def read_manifest(place: Place) -> dict[str, Any]:
    """The manifest of a finished store. Every file must have its size, and those that are not shards their content."""
    if not place.exists():
        raise UserError(f"There is no store at '{place}'.")
    if not place.exists(MANIFEST) and place.exists(PLAN):
        kept = place.read_json(PLAN)
        done, total = sum(place.exists(f"{name}.sha256") for name in kept["shards"]), len(kept["shards"])
        raise UserError(f"'{place}' is unfinished: {done} of {total} shards. Go on with: {kept['command']}")
    if not place.exists(MANIFEST):
        raise UserError(f"'{place}' is not a store (it has no {MANIFEST}).")
    manifest: dict[str, Any] = place.read_json(MANIFEST)
    try:
        schema, known = manifest["header"]["schema"], {f.name for f in fields(Header)} - {"versions"}
        whole = schema != SCHEMA or known <= manifest["header"].keys()  # others may have other keys
        whole &= all({"bytes", "sha256"} <= entry.keys() for entry in manifest["files"].values())
        whole &= {"command", "where"} <= manifest.keys()
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise UserError(f"'{place.path(MANIFEST)}' is not the manifest of a store, or is damaged.")
    if schema != SCHEMA:
        raise UserError(f"'{place}' has schema {schema}; this version of bertvision reads schema {SCHEMA}.")
    if manifest["header"].get("components") is not None:
        raise UserError(f"'{place}' holds a PCA of its states, which this version cannot read: extract it again.")
    files = manifest["files"]
    cut = [name for name, entry in files.items() if place.size(name) != entry["bytes"]]
    refuse(place, manifest, cut, "missing or cut off")
    small = [name for name, entry in files.items() if "split" not in entry]
    refuse(place, manifest, damaged(place, manifest, small), "damaged")
    return manifest


def damaged(place: Place, manifest: dict[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """Files whose checksum differs."""
    return [
        name
        for name in (manifest["files"] if names is None else names)
        if not place.exists(name) or digest(place.local(name)) != manifest["files"][name]["sha256"]
    ]


def refuse(place: Place, manifest: dict[str, Any], names: Sequence[str], what: str) -> None:
    if names:
        repair = f"This rewrites just that: {manifest['command']} --repair"
        raise UserError(f"In the store '{place}', {what}: {', '.join(names)}. {repair}")
