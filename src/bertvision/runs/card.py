"""The model card of a run, README.md: what it is, what it is worth, what it cost, and what it is not for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertvision.heads.variants import parse
from bertvision.runs import Run
from bertvision.training.checkpoints import POLISHED
from bertvision.training.selection import GREEDY, MATCHED

BAR = 30
PIPELINES = {"class": "text-classification", "score": "sentence-similarity", "span": "question-answering"}
KINDS = {
    "class": "a class and its probability",
    "score": "a score",
    "span": "a piece of the text, or that there is none",
}


def write(run: Run, path: Path) -> None:
    """Beside run.json and scores.json of a run that will be called `path`."""
    (run.path / "README.md").write_text("\n".join(_lines(run, path)) + "\n", encoding="utf-8")


def _lines(run: Run, path: Path) -> Iterator[str]:
    info, scores = run.info, run.scores
    options, metric, selected = info["options"], scores["metric"], scores["selected"]
    entry = next(entry for entry in scores["marks"] if entry["epoch"] == selected["mark"])
    splits = [name for name in entry if name.startswith("dev")] or ["held_out"]
    store = info.get("store")
    backbone = info.get("cut", options)["backbone"] if store is None else store["source"]["backbone"]
    layers = f", its first {info['cut']['layers']} layers" if "cut" in info else ""
    score = entry[splits[0]][selected["model"]][metric]["value"]
    yield from _metadata(info, scores["task"], Path(backbone).name, metric, score)
    yield f"# {scores['task']} with {Path(backbone).name}: {selected['model']}"
    yield ""
    tuned = f"fine-tuned for {selected['mark']} epochs" if selected["mark"] != "0" else "not fine-tuned"
    small = ", with small heads on the hidden states of every layer" if entry["best_head"] else ""
    yield (
        f"Gives {KINDS[info['kind']]}. The encoder `{backbone}`{layers}, {tuned}{small} (BERTVision); the model was"
        " chosen on examples held out of train."
    )
    yield ""
    texts = '["..."], ["..."]' if info["shape"]["pairs"] else '["..."]'
    yield f"```python\nimport bertvision\n\nbertvision.load({str(path)!r}).predict({texts})\n```"
    yield ""
    if selected["model"] == MATCHED:
        yield "Its probabilities are shifted so that each class is said as often as it came in held-out data:"
        yield f"they are good to decide by, those of `{GREEDY}` are the better frequencies."
        yield ""
    yield "## Scores"
    yield ""
    yield "95% bootstrap intervals over examples. Dev examples played no part in any choice."
    yield ""
    yield "| split | model | " + " | ".join(info["metrics"]) + " |"
    yield "|---" * (2 + len(info["metrics"])) + "|"
    for split in splits:
        for name in dict.fromkeys([selected["model"], entry["best_head"], "encoder"]):
            if name in entry[split] and (name != "encoder" or run.encoder_answered):
                found = entry[split][name]
                cells = [_score(found[one]) if one in found else "-" for one in info["metrics"]]
                yield f"| {split.replace('_', '-')} | {name} | {' | '.join(cells)} |"
    yield from _cost(info, entry)
    yield from _layers(entry)
    yield from _data_and_limits(info, scores["task"], backbone)


def _metadata(info: dict[str, Any], task: str, backbone: str, metric: str, score: float) -> Iterator[str]:
    """What the Hugging Face hub reads."""
    result = {"task": {"type": PIPELINES[info["kind"]]}, "dataset": {"name": task, "type": task},
              "metrics": [{"type": metric, "value": round(score, 4)}]}  # fmt: skip
    yield "---"
    yield "library_name: bertvision"
    if info.get("licence"):
        yield f"license: {info['licence']}"
    yield f"base_model: {json.dumps(backbone)}"
    yield f"pipeline_tag: {PIPELINES[info['kind']]}"
    yield "tags: [bertvision, hidden-states, partial-fine-tuning]"
    yield f"model-index: {json.dumps([{'name': f'{task}-{backbone}', 'results': [result]}])}"
    yield "---"
    yield ""


def _cost(info: dict[str, Any], entry: dict[str, Any]) -> Iterator[str]:
    costs, counts = info["costs"], info["parameters"]
    names = {"encoder": "encoder", entry["selected"].removesuffix(POLISHED): "selected head"}
    names |= {(entry["best_head"] or "").removesuffix(POLISHED): "best head"}
    sizes = [f"{counts[name]:,} in the {what}" for name, what in names.items() if counts.get(name)]
    yield ""
    yield "## Cost"
    yield ""
    yield f"- {entry['seconds']:.0f} s up to this mark, {costs['seconds']:.0f} s for the whole run"
    yield f"- peak memory {costs['peak_memory_bytes'] / 1e9:.1f} GB, {costs['disk_bytes'] / 1e6:.0f} MB on disk"
    yield f"- parameters: {', '.join(sizes)}"
    machine = info["machine"]
    yield f"- machine: {machine['platform']}, {machine['threads']} threads, {machine.get('device', 'no encoder ran')}"


def _layers(entry: dict[str, Any]) -> Iterator[str]:
    found = entry.get("layer_weights") or entry.get("layer_profiles") or {}
    name, values = next(iter(found.items()), ("", []))
    if not values:
        return
    what = "how much weight" if entry.get("layer_weights") else "how good alone"
    yield ""
    yield "## Layers"
    yield ""
    yield f"What `{name}` found of each layer ({what}; 0 is the embedding output):"
    yield ""
    yield "```"
    for layer, value in zip(parse(name.removesuffix(POLISHED)).layers or range(len(values)), values, strict=True):
        yield f"{layer:>3} {'█' * round(BAR * max(0.0, value) / max(*values, 1e-9)):<{BAR}} {value:.3f}"
    yield "```"


def _data_and_limits(info: dict[str, Any], task: str, backbone: str) -> Iterator[str]:
    sizes = ", ".join(f"{part['examples']:,} {name.replace('_', '-')}" for name, part in info["data"].items())
    yield ""
    yield "## Data, limits, licence"
    yield ""
    yield f"- Task `{task}`: {sizes} examples. Seed {info['options']['seed']}."
    length = info["options"]["max_length"]
    longer = "are read in overlapping windows" if info.get("windowed") else "are cut off"
    yield f"- Texts longer than {length} tokens {longer}." if length else "- Texts were cut when the store was made."
    yield "- It knows what its texts and its encoder's taught it, prejudices included; scores are for texts like these."
    yield (
        f"- Licence of the encoder: {info['licence']}."
        if info.get("licence")
        else (f"- Licence: that of the encoder `{backbone}` applies; its files do not say which.")
    )
    yield ""
    yield "## How it was made"
    yield ""
    yield f"```\n{info['command']}\n```"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in info["versions"].items())


def _score(found: dict[str, float]) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
