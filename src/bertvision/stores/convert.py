"""A store in another number format: shard by shard, without the encoder."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from bertvision.errors import UserError
from bertvision.progress import Progress
from bertvision.stores.codec import DTYPES
from bertvision.stores.format import Shard
from bertvision.stores.place import Place
from bertvision.stores.reader import Store, open_store
from bertvision.stores.writer import CONSTANTS, Writer

SAMPLE_ROWS = 4096


def convert(store: Store, out: str, dtype: str, progress: Progress) -> Store:
    if dtype not in DTYPES:
        raise UserError(f"--dtype '{dtype}' is none of: {', '.join(DTYPES)}.")
    header = replace(store.header, dtype=dtype, components=None)
    files = store.manifest["files"]
    names = [name for name in files if "split" in files[name]]
    shards = [
        Shard(name, files[name]["split"], np.arange(files[name]["windows"]), _bytes(store, name, header.row_bytes()))
        for name in names
    ]
    command = f"bertvision store convert {store.place} --dtype {dtype} --out {out}"
    place = Place(out)
    place.make()
    writer = Writer(place, header, shards, command, store.manifest["where"])
    with writer.alone(0, 1):
        codec = writer.open(lambda: _decoded(store, names[0])[:SAMPLE_ROWS])
        for name in (name for name in files if name not in names and name != CONSTANTS):
            writer.copy(name, store.place.local(name))
        missing = writer.missing(0, 1, False)
        writer.check_room(missing)
        with progress.bar("convert", len(missing)) as bar:
            for shard in missing:
                tensors = store.shard(shard.name)
                kept = {name: value.clone() for name, value in tensors.items() if name not in ("states", "scales")}
                writer.write(shard, codec.encode(_decoded(store, shard.name)) | kept)
                bar.tick(1)
        writer.finish()
    return open_store(out)


def _decoded(store: Store, name: str) -> Tensor:
    tensors = store.shard(name)
    return store.codec.decode({key: tensors[key] for key in ("states", "scales") if key in tensors})


def _bytes(store: Store, name: str, row: int) -> int:
    return len(store.shard(name)["states"]) * row
