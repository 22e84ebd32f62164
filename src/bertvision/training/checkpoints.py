"""Checkpoints at marks, and the state of an unfinished run: safetensors and JSON, nothing pickled."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import Donor, make
from bertvision.runs import Run, filling, newest_state, read_json, saving_state, write_json
from bertvision.training.loop import Loop
from bertvision.training.selection import Ensemble

POLISHED = "+polish"


def save_mark(
    run: Run,
    mark: str,
    encoder: Encoder | None,
    heads: dict[str, Head],
    pairs: dict[str, str],
    ensembles: dict[str, Ensemble],
) -> None:
    """`pairs` says of each head whether it reads pairs `joint` or `separate`. Without an encoder, which trained on a
    store, it stays where it is."""
    with filling(run.mark_folder(mark)) as folder:
        if encoder is not None:
            encoder.save(folder / "encoder")
        tensors = {f"{name}/{key}": value for name, head in heads.items() for key, value in head.state_dict().items()}
        save_tensors(folder / "heads.safetensors", tensors)
        write_json(folder / "heads.json", {name: {"pairs": pairs[name]} for name in heads})
        write_json(folder / "ensembles.json", {name: ensemble.as_dict() for name, ensemble in ensembles.items()})


def load_heads(
    folder: Path, shape: Shape, names: list[str], donor: Donor | None = None
) -> tuple[dict[str, Head], dict[str, str]]:
    """The named heads of a mark, and how each reads pairs; `donor` gives the layers that some of them borrow."""
    kept = read_json(folder / "heads.json")
    tensors = load_file(folder / "heads.safetensors") if names else {}
    heads = {}
    for name in names:
        heads[name] = make(name.removesuffix(POLISHED), shape, donor)
        prefix = f"{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if not heads[name].borrows or donor is not None:  # without its layers it is only a name
            heads[name].load_state_dict(own)
    return heads, {name: kept[name]["pairs"] for name in names}


def load_ensembles(folder: Path) -> dict[str, Ensemble]:
    return {name: Ensemble(**kept) for name, kept in read_json(folder / "ensembles.json").items()}


def save_state(run: Run, loop: Loop, elapsed: float) -> None:
    if (run.path / "state" / str(loop.step)).exists():
        return  # the same step is the same state
    with saving_state(run, loop.step) as folder:
        save_tensors(folder / "tensors.safetensors", loop.tensors())
        write_json(folder / "state.json", {"elapsed": elapsed, "seconds": loop.seconds})


def load_state(run: Run, loop: Loop) -> float:
    """Put the loop where the newest state was saved; returns the seconds spent until then."""
    folder = newest_state(run)
    if folder is None:
        return 0.0
    loop.restore(load_file(folder / "tensors.safetensors"), int(folder.name))
    kept: dict[str, Any] = read_json(folder / "state.json")
    loop.seconds = kept["seconds"]
    return float(kept["elapsed"])


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    # safetensors wants memory of its own for each tensor.
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path)
