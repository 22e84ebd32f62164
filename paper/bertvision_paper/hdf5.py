"""`store import`: make a store from hidden states that the original project saved as HDF5.

Its layout: a dataset of states, (N, T, D, L) float32, padded to T tokens, or (N, D, L) of [CLS] alone; and one of
labels, (N,). A third dataset, (N, T), masks padding. Without it, tokens that are all zero are padding.
"""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision.errors import UserError
from bertvision.kinds import Scale
from bertvision.options import DECIDING, one_of
from bertvision.progress import Progress
from bertvision.stores.codec import DTYPES, SAMPLE_ROWS
from bertvision.stores.format import SHARD_MEGABYTES, SHARD_UNIT, TOKENS, Header, Shard, plan
from bertvision.stores.place import Place, digest
from bertvision.stores.reader import Store, open_store
from bertvision.stores.writer import Writer, finite
from bertvision.tasks.sampling import hold_out, ranks
from bertvision.types import HELD_OUT, Examples

METRICS = {"class": ("accuracy",), "score": ("pearson", "spearman")}


def import_hdf5(
    train: Path,
    dev: Path | None,
    kind: str,
    names: tuple[str, str, str],
    out: str,
    dtype: str,
    repair: bool,
    progress: Progress,
) -> Store:
    """`names` of the datasets: states, labels, mask."""
    one_of("--dtype", dtype, DTYPES)
    one_of("--kind", kind, tuple(METRICS))  # spans cannot be scored without the texts
    files = {"train": File(train, names)} | ({"dev": File(dev, names)} if dev is not None else {})
    shapes = {(file.layers, file.features, file.tokens) for file in files.values()}
    if len(shapes) > 1:
        raise UserError("The files are from different encoders: their layers or features differ.")
    parts = dict(_parts(files, kind))
    header = _header(files, parts, kind, dtype)
    shards = [shard for split, (file, rows, _) in parts.items() for shard in plan(split, file.lengths[rows], header)]
    words = ["bertvision", "store", "import", str(train), "--kind", kind, "--dtype", dtype, "--out", out]
    words += ["--dev", str(dev)] if dev is not None else []
    words += [word for pair in zip(("--states", "--labels", "--mask"), names, strict=True) for word in pair]
    place = Place(out)
    place.make()
    writer = Writer(place, header, shards, shlex.join(words), dict.fromkeys(("encoder", "data", "train", "dev")))
    with writer.writing(repair):
        codec = writer.codec(lambda: _sample(parts, shards[0]))
        for split in parts:
            _describe(writer, parts[split], split, [shard for shard in shards if shard.split == split])
        missing = writer.missing()
        with progress.bar("import", sum(len(shard.windows) for shard in missing)) as bar:
            for shard in missing:
                file, rows, _ = parts[shard.split]
                states = file.states(rows[shard.windows])
                finite(states, lambda shard=shard: shard.name)  # type: ignore[misc]
                tensors = codec.encode(states)
                if header.tokens:
                    tensors["segments"] = torch.ones(len(states), dtype=torch.int8)
                if shard.split != "train":  # there are no encoder logits: the baseline is uniform
                    tensors["logits"] = torch.zeros(len(shard.windows), header.task["outputs"])
                writer.write(shard, tensors)
                bar.tick(len(shard.windows))
        writer.finish()
    return open_store(out)


class File:
    """One HDF5 file, read example by example."""

    def __init__(self, path: Path, names: tuple[str, str, str]) -> None:
        try:
            import h5py
        except ImportError:
            raise UserError("Reading HDF5 needs h5py: pip install 'bertvision[hdf5]'.") from None
        try:
            self.file = h5py.File(path)
        except OSError as error:
            raise UserError(f"'{path}' cannot be read as HDF5: {error}.") from None
        for name in names[:2]:
            if name not in self.file:
                raise UserError(f"'{path}' has no dataset '{name}': it has {', '.join(self.file)}.")
        self.path, self.data, self.labels = path, self.file[names[0]], self.file[names[1]][:]
        if self.data.ndim not in (3, 4) or len(self.data) != len(self.labels):
            raise UserError(f"'{path}': '{names[0]}' must be (N, T, D, L) or (N, D, L), with N labels.")
        self.tokens, self.layers, self.features = self.data.ndim == 4, self.data.shape[-1], self.data.shape[-2]
        mask = self.file[names[2]][:] if names[2] in self.file else None
        self.kept = [np.arange(1)] * len(self.data)  # the tokens of each row that are not padding
        if self.tokens:
            found = mask if mask is not None else (np.abs(states).max((1, 2)) for states in self.data)
            self.kept = [np.flatnonzero(row) for row in found]
        self.lengths = np.array([len(kept) for kept in self.kept])

    def states(self, rows: np.ndarray) -> torch.Tensor:
        """(tokens of all rows, L, D), without padding."""
        each = (self.data[row].reshape(-1, self.features, self.layers)[self.kept[row]] for row in rows)
        return torch.from_numpy(np.concatenate(list(each)).transpose(0, 2, 1).astype(np.float32, order="C"))


Part = tuple[File, np.ndarray, np.ndarray]  # file, rows of it, targets of these


def _parts(files: dict[str, File], kind: str) -> Iterator[tuple[str, Part]]:
    for split, file in files.items():
        targets = file.labels.reshape(-1).astype(np.int64 if kind == "class" else np.float64)
        if split == "train":
            rest, held = hold_out(Examples([str(row) for row in range(len(targets))], None, targets))
            yield "train", (file, rest, targets[rest])
            yield HELD_OUT, (file, held, targets[held])
        else:
            yield split, (file, np.arange(len(targets)), targets)


def _header(files: dict[str, File], parts: dict[str, Part], kind: str, dtype: str) -> Header:
    first, targets = files["train"], parts["train"][2]
    labels = [str(i) for i in range(int(targets.max()) + 1)] if kind == "class" else []
    source = digest(first.path)
    return Header(
        source={"backbone": f"imported from {first.path.name}", "mark": None, "weights_sha256": source,
                "origin_sha256": source, "tokenizer_sha256": source},
        task={"name": first.path.stem, "kind": kind, "labels": labels, "metrics": list(METRICS[kind]), "roles": {},
              "scale": asdict(Scale.of(targets)), "outputs": len(labels) or 1, "pairs": False, "windowed": False},
        options=dict.fromkeys(DECIDING) | {"task": first.path.stem, "strict": False, "stride": 128, "pairs": "joint"},
        data={split: {"examples": len(rows), "windows": len(rows), "sha256": digest(file.path)}
              for split, (file, rows, _) in parts.items()},
        layers=list(range(first.layers)), features=first.features, views=list(TOKENS if first.tokens else ("cls",)),
        dtype=dtype, components=None, pooled=False, seed=0, shard_bytes=SHARD_MEGABYTES * SHARD_UNIT,
    )  # fmt: skip


def _sample(parts: dict[str, Part], shard: Shard) -> torch.Tensor:
    file, rows, _ = parts[shard.split]
    enough = 1 + int(np.searchsorted(np.cumsum(file.lengths[rows[shard.windows]]), SAMPLE_ROWS))
    return file.states(rows[shard.windows[:enough]])


def _describe(writer: Writer, part: Part, split: str, shards: list[Shard]) -> None:
    file, rows, targets = part
    order = np.concatenate([shard.windows for shard in shards])
    columns: dict[str, Any] = {
        "window": order, "example": order, "id": [str(rows[i]) for i in order], "length": file.lengths[rows[order]],
        "shard": np.repeat([shard.name for shard in shards], [len(shard.windows) for shard in shards]),
        "target": targets[order],
    }  # fmt: skip
    if split == "train":
        columns["rank"] = ranks(Examples([str(row) for row in rows], None, targets))[order]
    writer.table(f"rows-{split}.parquet", columns)
    if split != "train":
        writer.table(f"examples-{split}.parquet", {"id": [str(row) for row in rows], "target": targets})
        lengths = file.lengths[rows]
        flat = {"offsets": np.concatenate([[0], np.cumsum(lengths)]), "examples": np.arange(len(rows)),
                "segments": np.ones(int(lengths.sum()), dtype=np.int8)}  # fmt: skip
        writer.tensors(f"windows-{split}.safetensors", {key: torch.from_numpy(value) for key, value in flat.items()})
