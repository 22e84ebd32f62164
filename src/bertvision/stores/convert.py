"""Rewrite a store in another number format, shard by shard, without the encoder."""

import shlex
import shutil
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bertvision.options import one_of
from bertvision.progress import Progress
from bertvision.stores.codec import DTYPES, SAMPLE_ROWS
from bertvision.stores.format import CONSTANTS, Shard
from bertvision.stores.place import Place
from bertvision.stores.reader import Store, open_store
from bertvision.stores.writer import Writer


def convert(store: Store, out: str, dtype: str, repair: bool, progress: Progress) -> Store:
    one_of("--dtype", dtype, DTYPES)
    header = replace(store.header, dtype=dtype)
    shards, others = [], []
    for name, entry in store.manifest["files"].items():
        if "split" in entry:
            size = len(store.shard(name)["states"]) * header.row_bytes()
            shards.append(Shard(name, entry["split"], np.arange(entry["windows"]), size))
        elif name != CONSTANTS:
            others.append(name)
    command = shlex.join(["bertvision", "store", "convert", str(store.place), "--dtype", dtype, "--out", out])
    place = Place(out)
    place.make()
    writer = Writer(place, header, shards, command, store.manifest["where"])
    with writer.writing(repair):
        codec = writer.codec(lambda: _decoded(store, shards[0].name)[:SAMPLE_ROWS])
        for name in others:
            file = store.place.local(name)
            writer.file(name, lambda path, file=file: shutil.copyfile(file, path))  # type: ignore[misc]
        missing = writer.missing()
        with progress.bar("convert", len(missing)) as bar:
            for shard in missing:
                tensors = store.shard(shard.name, check=True)
                kept = {name: value.clone() for name, value in tensors.items() if name not in ("states", "scales")}
                writer.write(shard, codec.encode(_decoded(store, shard.name)) | kept)
                bar.tick(1)
        writer.finish()
    return open_store(out)


def _decoded(store: Store, name: str) -> Tensor:
    """The states of a shard, (N, L, D)."""
    tensors = store.shard(name, check=True)
    room = torch.empty(store.layers, len(tensors["states"]), store.features)
    return store.codec.decode(tensors, room).transpose(0, 1).contiguous()
