"""The store beside other ways to keep hidden states, in one run; SQuAD-length windows.

    python -m benchmarks.store size          # bytes, against the original's layout (padded float32 HDF5)
    python -m benchmarks.store read          # shuffled batches per second, warm and cold, beside HDF5, zarr, datasets
    python -m benchmarks.store extract       # windows per second against the bare forward pass and the HF pipeline
    python -m benchmarks.store wait          # share of the time that training --heads paper waits for the store
    python -m benchmarks.store scores        # heads on fp32, fp16 and int8 states, five seeds
    python -m benchmarks.store memory        # peak memory of extract and train, 10,000 against 100,000 rows
    python -m benchmarks.store kill          # kill -9 at random moments, then go on: the same bytes?
    python -m benchmarks.store planner       # the planner's choice against the fastest mode, six settings

Rivals need `pip install h5py zarr` (extras `dev` and `bench`). Results go to benchmarks/results/store/.
"""

import argparse
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bertvision
from bertvision.metrics.intervals import compare
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Progress
from bertvision.states.batches import by_length
from bertvision.stores.codec import Codec, Int8, Plain
from bertvision.stores.reader import Store

RESULTS = Path(__file__).parent / "results" / "store"
WINDOW = 386  # tokens to which the original pads
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["size", "read", "extract", "wait", "scores", "memory", "kill", "planner"])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--backbone", default="minilm-l6")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--tasks", default="sts-b,cola,squad2", help="of `scores`")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        result = globals()[given.what](given, Path(folder))
    name = f"{given.what}-{Path(given.backbone).name}.json"
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def made(given: Any, folder: Path, dtype: str, **options: Any) -> Store:
    options = {"task": "squad2", "data": f"{given.data}/SQuAD2", "limit": given.limit, "dev_limit": 20} | options
    task = options.pop("task")
    store = bertvision.extract(given.backbone, task, dtype=dtype, out=folder / dtype, quiet=True, **options)
    assert store is not None
    return store


def size(given: Any, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in ("fp32", "fp16", "int8"):
        store = made(given, folder, dtype)
        found[dtype] = sum(entry["bytes"] for entry in store.manifest["files"].values())
    padded = len(store) * WINDOW * store.layers * store.features * 4
    found |= {"windows": len(store), "tokens": int(store.rows.length.sum()), "padded_fp32": padded}
    found["share"] = {dtype: round(found[dtype] / padded, 4) for dtype in ("fp32", "fp16", "int8")}
    found["targets"] = {"fp16": 1 / 4, "int8": 1 / 8}
    found["int8_error"] = int8_errors(bertvision.open_store(folder / "fp32"))
    return found


def int8_errors(store: Store) -> dict[str, float]:
    """Relative error of a normalised feature (what heads read), for four ways to choose scales."""
    states = torch.cat(
        [b.hidden[i][:, b.mask[i]].transpose(0, 1) for b in store.batches(16) for i in range(len(b.ids))]
    )
    sample, states = states[:4096], states[4096:20000]
    row = states.abs().amax(-1, keepdim=True) / 127
    channel = sample.abs().amax(0) / 127
    found = {
        "scale per row": (states / row).round().clamp(-127, 127) * row,
        "scale per feature": (states / channel).round().clamp(-127, 127) * channel,
        "centred, by deviation, scale per row": there_and_back(Int8(sample.mean(0), sample.std(0)), states),
        "centred, by largest value, scale per row (ours)": there_and_back(Int8.fitted(sample), states),
        "fp16": there_and_back(Plain(torch.float16), states),
    }
    spread = states.std(0)
    return {name: round(float(((value - states) / spread).pow(2).mean().sqrt()), 5) for name, value in found.items()}


def there_and_back(codec: Codec, states: Tensor) -> Tensor:
    return codec.decode(codec.encode(states), torch.empty_like(states.transpose(0, 1))).transpose(0, 1)


def read(given: Any, folder: Path) -> dict[str, Any]:
    import datasets
    import h5py
    import zarr

    stores = {dtype: made(given, folder, dtype).only("train") for dtype in ("fp16", "int8")}
    store = stores["fp16"]
    windows = [(b.hidden[i][:, b.mask[i]].half()) for b in store.batches(BATCH) for i in range(len(b.ids))]
    count, layers, features = len(windows), store.layers, store.features
    with h5py.File(folder / "padded.h5", "w") as file:
        whole = file.create_dataset(
            "states", (count, layers, WINDOW, features), "f4", chunks=(1, layers, WINDOW, features)
        )
        for i, states in enumerate(windows):
            whole[i, :, : states.shape[1]] = states.float().numpy()
    lengths = np.array([states.shape[1] for states in windows])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = torch.cat([states.transpose(0, 1) for states in windows]).numpy()
    with h5py.File(folder / "ragged.h5", "w") as file:
        file.create_dataset("states", data=flat, chunks=(64, layers, features))
    zarr.create_array(str(folder / "ragged.zarr"), data=flat, chunks=(64, layers, features), compressors=None)
    rows = [{"states": flat[offsets[i] : offsets[i + 1]].reshape(-1)} for i in range(count)]
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "arrow"))
    order = np.random.default_rng(0).permutation(count)
    batches = [order[i : i + BATCH] for i in range(0, count, BATCH)]

    def pad(parts: list[np.ndarray]) -> Tensor:
        hidden = torch.zeros(len(parts), layers, max(len(part) for part in parts), features)
        for i, part in enumerate(parts):
            hidden[i, :, : len(part)] = torch.from_numpy(part.reshape(-1, layers, features)).transpose(0, 1)
        return hidden

    def padded_hdf5() -> Iterator[Tensor]:
        with h5py.File(folder / "padded.h5") as file:
            for rows in batches:
                yield torch.stack([torch.from_numpy(file["states"][i]) for i in rows])

    def sliced(opened: Callable[[], Any]) -> Callable[[], Iterator[Tensor]]:
        def run() -> Iterator[Tensor]:
            whole = opened()
            for rows in batches:
                yield pad([np.asarray(whole[offsets[i] : offsets[i + 1]]) for i in rows])

        return run

    def arrow() -> Iterator[Tensor]:
        loaded = datasets.load_from_disk(str(folder / "arrow")).with_format("numpy")
        for rows in batches:
            yield pad([loaded[int(i)]["states"].reshape(-1, layers, features) for i in rows])

    ways: dict[str, tuple[Callable[[], Any], list[Path]]] = {
        "HDF5, padded fp32, one at a time (the original)": (padded_hdf5, [folder / "padded.h5"]),
        "HDF5, ragged fp16": (sliced(lambda: h5py.File(folder / "ragged.h5")["states"]), [folder / "ragged.h5"]),
        "zarr, ragged fp16": (
            sliced(lambda: zarr.open(str(folder / "ragged.zarr"), mode="r")),
            files(folder / "ragged.zarr"),
        ),
        "HF datasets (Arrow), ragged fp16": (arrow, files(folder / "arrow")),
    }
    for dtype in stores:
        ways[f"ours, {dtype}"] = (partial(passing, folder / dtype), files(folder / dtype))
        for reused in (True, False):
            where = "memory used again" if reused else "new memory for each batch"
            ways[f"converting and padding alone, {dtype}, no I/O, {where}"] = (converting(stores[dtype], reused), [])
    result: dict[str, Any] = {"windows": count, "tokens": int(lengths.sum())}
    for name, (run, paths) in ways.items():
        warm, cold = [], []
        for _ in range(3):
            cold.append(count / timed(run, paths))
            warm.append(count / timed(run, []))
        result[name] = {
            "warm": round(float(np.median(warm)), 1),
            "cold": round(float(np.median(cold)), 1) if paths else None,
        }
    return result


def passing(path: Path) -> Iterator[Tensor]:
    """A new store per pass: opening files and mapping pages is part of what reading costs."""
    return (batch.hidden for batch in bertvision.open_store(path).only("train").batches(BATCH, seed=1))


def converting(part: Store, reused: bool) -> Callable[[], Iterator[Tensor]]:
    """The same batches from tensors that are in memory already: what is left when nothing is read."""
    shards = {name: {key: value.clone() for key, value in part.shard(name).items()} for name in set(part.rows.shard)}
    decoder: Codec = part.codec
    known, order = part.rows, part.order(BATCH, 1)
    room = torch.zeros(BATCH * int(known.length.max()) * part.layers * part.features)

    def run() -> Iterator[Tensor]:
        for rows in order:
            lengths = known.length[rows]
            shape = (len(rows), part.layers, int(lengths.max()), part.features)
            hidden = room[: math.prod(shape)].view(shape) if reused else torch.empty(shape)
            for i, row in enumerate(rows):
                here = slice(int(known.first[row]), int(known.first[row] + lengths[i]))
                stored = {
                    key: value[here] for key, value in shards[known.shard[row]].items() if key in ("states", "scales")
                }
                decoder.decode(stored, hidden[i, :, : lengths[i]])
                hidden[i, :, lengths[i] :] = 0
            yield hidden

    return run


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def timed(run: Callable[[], Any], forget: list[Path]) -> float:
    """Seconds of one pass; files in `forget` are dropped from the page cache before."""
    for path in forget:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    started = time.perf_counter()
    for _ in run():
        pass
    return time.perf_counter() - started


def extract(given: Any, folder: Path) -> dict[str, Any]:
    """In turn: the bare forward pass on the very same batches, extraction, and the HF pipeline at its better size."""
    from transformers import AutoModel, AutoTokenizer, pipeline

    from bertvision.backbones import backbones

    options = Request(
        task="squad2", data=f"{given.data}/SQuAD2", backbone=given.backbone, limit=given.limit, dev_limit=20
    )
    setting = prepare(options, Progress(quiet=True))
    encoder = setting.encoder.eval()

    @torch.inference_mode()
    def bare(store: Store) -> Iterator[Any]:
        for split in setting.encoded:
            part, windows = store.only(split).rows, setting.encoded[split].together
            for shard in dict.fromkeys(part.shard):
                inside = part.window[part.shard == shard]
                for rows in by_length(windows.lengths[inside]):
                    yield encoder(encoder.batch(windows, inside[rows]).inputs)

    found: dict[str, Any] = {"forward": {}, "extract": {}}
    for dtype in ("fp16", "int8"):
        before = time.perf_counter()
        prepare(options, Progress(quiet=True))  # what comes before the first window, here and there
        preparing = time.perf_counter() - before
        before = time.perf_counter()
        store = made(given, folder, dtype)
        seconds = time.perf_counter() - before - preparing
        found["windows"] = len(store)
        found["forward"][dtype] = len(store) / min(timed(partial(bare, store), []) for _ in range(2))
        found["extract"][dtype] = len(store) / seconds
    path = str(backbones[given.backbone].folder()) if given.backbone in backbones else given.backbone
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModel.from_pretrained(path, dtype=torch.float32, add_pooling_layer=False)
    pipe = pipeline(
        "feature-extraction",
        model=model,
        tokenizer=tokenizer,
        tokenize_kwargs={"truncation": True, "max_length": min(WINDOW, encoder.longest)},
    )
    texts = [
        f"{q} {c}" for q, c in zip(setting.parts["train"].texts, setting.parts["train"].second_texts or [], strict=True)
    ][:200]
    rates = {}
    for batch_size in (1, 8):
        started = time.perf_counter()
        for _ in pipe(texts, batch_size=batch_size):
            pass
        rates[batch_size] = len(texts) / (time.perf_counter() - started)
    found["pipeline"] = rates
    found["share_of_forward"] = {d: round(found["extract"][d] / found["forward"][d], 3) for d in ("fp16", "int8")}
    return found


def wait(given: Any, folder: Path) -> dict[str, Any]:
    found = {}
    for dtype in ("fp16", "int8"):
        made(given, folder, dtype)
        run = bertvision.train(folder / dtype, heads="paper", epochs=1, out=folder / f"run-{dtype}", quiet=True)
        costs = run.record.costs
        assert costs is not None
        waited, trained = costs.parts["wait"], costs.parts["train"]
        found[dtype] = {**costs.parts, "waiting": waited / (waited + trained)}
    return found


def scores(given: Any, folder: Path) -> dict[str, Any]:
    """The same heads on the same states in three formats; differences averaged over seeds and heads."""
    heads = "learned-pooling-views:seed=0..4,adapter-64-views:seed=0..4,adapter-64-skip:seed=0..4"
    tasks: dict[str, dict[str, Any]] = {
        "sts-b": {"data": given.data, "limit": None, "dev_limit": None},
        "cola": {"data": given.data, "limit": None, "dev_limit": None},
        "squad2": {"limit": 500, "dev_limit": 500},
    }
    found: dict[str, Any] = {}
    for task, options in ((task, tasks[task]) for task in given.tasks.split(",")):
        asked = heads if task != "squad2" else "adapter-64-normalised:seed=0..4,adapter-64-skip:seed=0..4"
        runs = {}
        for dtype in ("fp32", "fp16", "int8"):
            place = folder / task
            # One shard in each format: the order of batches follows the shards, and another order is another run.
            made(given, place, dtype, task=task, shard_size=8000, **options)
            runs[dtype] = bertvision.train(place / dtype, heads=asked, out=place / f"run-{dtype}", quiet=True)
            shutil.rmtree(place / dtype)
        record = runs["fp32"].record
        metric, kind = "found_f1" if task == "squad2" else record.metric, record.kind
        for dtype in ("fp16", "int8"):
            one, other = (run.predictions("0")["dev"] for run in (runs["fp32"], runs[dtype]))
            names = list(runs[dtype].results.at("0").ways)
            differences = [compare(one.outputs[n], other.outputs[n], one.targets, metric, kind).value for n in names]
            found[f"{task} {metric}, {dtype} - fp32"] = {
                "mean": round(float(np.mean(differences)), 5),
                "mean_absolute": round(float(np.mean(np.abs(differences))), 5),
                "largest": round(float(np.max(np.abs(differences))), 5),
                "heads_and_seeds": len(names),
            }
    return found


def memory(given: Any, folder: Path) -> dict[str, Any]:
    """Peak memory of a process that extracts, and of one that trains, from pooled views of `tiny`."""
    found: dict[str, Any] = {}
    for rows in (10_000, 100_000):
        table = folder / f"{rows}.csv"
        draw = random.Random(0)
        words = ["good", "bad", "film", "story", "music", "red", "blue", "great", "poor", "house"]
        lines = [f"{' '.join(draw.choices(words, k=8))} {i},{draw.choice(['pos', 'neg'])}" for i in range(rows)]
        table.write_text("text,label\n" + "\n".join(lines) + "\n")
        steps = {
            # Shards of four megabytes: full ones in both cases, as they are of any store that is worth measuring.
            "extract": f"bertvision.extract('tiny', 'table', train='{table}', out='{folder}/{rows}', shard_size=4,"
            " quiet=True)",
            "train": f"bertvision.train('{folder}/{rows}', heads='adapter-64-views', epochs=1,"
            f" out='{folder}/r{rows}', quiet=True)",
        }
        for name, step in steps.items():
            code = (
                f"import bertvision, resource; {step}; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
            )
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found[f"{name} {rows}"] = int(done.stdout)
    found["growth"] = {
        name: round(found[f"{name} 100000"] / found[f"{name} 10000"], 3) for name in ("extract", "train")
    }
    return found


def kill(given: Any, folder: Path) -> dict[str, Any]:
    options = f"--limit 120 --dev-limit 20 --dtype int8 --shard-size 2 --data {Path(given.data).resolve()}/SQuAD2"
    line = [sys.executable, "-m", "bertvision", "extract", given.backbone, "squad2", *options.split(), "--out", "store"]
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    started = time.perf_counter()
    subprocess.run(line, cwd=folder / "whole", check=True, capture_output=True)
    seconds, draw, kills = time.perf_counter() - started, random.Random(0), 0
    equal = []
    while kills < 20:
        process = subprocess.Popen(line, cwd=folder / "killed", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(draw.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            continue
        equal.append(digests(folder / "whole" / "store") == digests(folder / "killed" / "store"))
        shutil.rmtree(folder / "killed" / "store")
    subprocess.run(line, cwd=folder / "killed", check=True, capture_output=True)
    equal.append(digests(folder / "whole" / "store") == digests(folder / "killed" / "store"))
    return {
        "kills": kills,
        "finished_stores": len(equal),
        "identical": sum(equal),
        "files": len(digests(folder / "whole" / "store")),
    }


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def planner(given: Any, folder: Path) -> dict[str, Any]:
    """Each mode for real, and what the planner says before."""
    settings: list[dict[str, Any]] = [
        {"task": "rte", "heads": "default", "polish": 4, "limit": 300},
        {"task": "cola", "heads": "adapter-64-views,layer-mixer,ladder", "polish": 8, "limit": 800},
        {"task": "sts-b", "heads": "adapter-64-views", "polish": 1, "limit": 600},
        {"task": "squad2", "heads": "adapter-64-normalised", "polish": 1, "limit": 100},
        {"task": "squad2", "heads": "default", "polish": 4, "limit": 100},
        {"task": "mrpc", "heads": "adapter-64-views,learned-pooling-views", "polish": 3, "limit": 300},
    ]
    rows = []
    for number, setting in enumerate(settings):
        data = f"{given.data}/SQuAD2" if setting["task"] == "squad2" else given.data
        options = {name: value for name, value in setting.items() if name != "task"}
        options |= {"data": data, "backbone": given.backbone, "pairs": "joint", "epochs": 0, "dev_limit": 20}
        seconds, chosen = {}, ""
        for mode in ("memory", "stored", "recompute", "auto"):
            run = bertvision.fit(setting["task"], mode=mode, out=folder / f"{number}-{mode}", quiet=True, **options)
            found = run.results.at("0")
            seconds[mode] = sum(v for k, v in found.costs.items() if k.startswith(("collect", "polish")))
            chosen = found.modes["joint"]
        names = {"memory": "memory", "recompute": "recompute"}
        picked = seconds[names.get(chosen, "stored")]
        best = min(seconds[mode] for mode in ("memory", "stored", "recompute"))
        rows.append({**setting, "seconds": seconds, "chosen": chosen, "chosen_to_best": round(picked / best, 3)})
    return {"settings": rows}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
