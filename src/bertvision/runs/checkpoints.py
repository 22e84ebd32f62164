"""Checkpoints at marks, and the state of an unfinished run: safetensors and JSON, nothing pickled."""

from dataclasses import asdict, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertvision.backbones.encoder import Encoder
from bertvision.errors import UserError
from bertvision.heads import heads as known_heads
from bertvision.heads.base import Head, Shape
from bertvision.heads.variants import make
from bertvision.records import WORDS, Ensemble, ModelName, read_json, write_json
from bertvision.runs.directory import Run, filling, newest_state, saving_state
from bertvision.words.model import Words


def save_mark(
    run: Run,
    mark: str,
    encoder: Encoder | None,
    heads: dict[str, Head],
    ways: dict[str, str],
    ensembles: dict[str, Ensemble],
) -> None:
    """`ways`: how each head reads pairs. A run that was trained on a store has no encoder of its own."""
    with filling(run.mark_folder(mark)) as folder:
        if encoder is not None:
            encoder.save(folder / "encoder")
        tensors = {f"{name}/{key}": value for name, head in heads.items() for key, value in head.state_dict().items()}
        save_tensors(folder / "heads.safetensors", tensors)
        write_json(folder / "heads.json", {name: {"pairs": ways[name]} for name in heads})
        write_json(folder / "ensembles.json", {name: asdict(ensemble) for name, ensemble in ensembles.items()})


def load_heads(folder: Path, shape: Shape, names: list[str]) -> tuple[dict[str, Head], dict[str, str]]:
    """The named heads of a mark, and how each reads pairs."""
    kept = read_json(folder / "heads.json")
    tensors = load_file(folder / "heads.safetensors") if names else {}
    heads = {}
    for name in names:
        label = ModelName.parse(name).label
        if label.partition(":")[0] not in known_heads:
            raise UserError(
                f"'{folder}' needs the head '{label}', which this version does not have. If it is your own, import the"
                " module that registers it first; `top-1` to `top-4` and `token-attention` were removed in 0.2."
            )
        heads[name] = make(label, shape)
        prefix = f"{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        heads[name].load_state_dict(own)
    return heads, {name: kept[name]["pairs"] for name in names}


def load_ensembles(folder: Path) -> dict[str, Ensemble]:
    found = {name: Ensemble(**kept) for name, kept in read_json(folder / "ensembles.json").items()}
    return {name: replace(one, constant=tuple(one.constant)) for name, one in found.items()}


def save_words(run: Run, words: Words) -> None:
    """Once for all marks: no fine-tuning changes it."""
    folder = run.path / WORDS
    if not folder.exists():
        with filling(folder) as place:
            words.save(place)


def load_words(run: Run) -> Words:
    try:
        return Words.load(run.path / WORDS)
    except (OSError, ValueError, LookupError, SafetensorError) as error:
        raise UserError(f"The model `{WORDS}` of '{run.path}' cannot be read: {error}.") from None


def save_state(run: Run, step: int, tensors: dict[str, Tensor], seconds: dict[str, float], elapsed: float) -> None:
    """Everything that decides how training goes on."""
    if (run.path / "state" / str(step)).exists():
        return  # the same step is the same state
    with saving_state(run, step) as folder:
        save_tensors(folder / "tensors.safetensors", tensors)
        write_json(folder / "state.json", {"elapsed": elapsed, "seconds": seconds})


def load_state(run: Run) -> tuple[int, dict[str, Tensor], dict[str, float], float] | None:
    """(step, tensors, seconds by part, seconds elapsed) of the newest state, if there is one."""
    folder = newest_state(run)
    if folder is None:
        return None
    kept = read_json(folder / "state.json")
    return int(folder.name), load_file(folder / "tensors.safetensors"), kept["seconds"], float(kept["elapsed"])


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    # safetensors requires memory of its own for each tensor.
    save_file({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, path)
