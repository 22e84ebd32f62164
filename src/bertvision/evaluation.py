"""Score the models of finished runs: again or on other data, and against each other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.metrics.intervals import compare as paired
from bertvision.metrics.squad import report
from bertvision.model import Model
from bertvision.progress import Progress
from bertvision.runs import open_run, write_json
from bertvision.stores.reader import Store
from bertvision.tasks import load as load_task
from bertvision.tasks import tasks
from bertvision.tasks.squad import golds as squad_golds
from bertvision.tasks.squad import parsed
from bertvision.training.checkpoints import load_ensembles, load_heads
from bertvision.training.collect import encode
from bertvision.training.judging import RAW_THRESHOLD, Predictions, judge_of, scores
from bertvision.training.setting import parts_of
from bertvision.training.stored import answer, fed, setting_of
from bertvision.types import HELD_OUT, Examples


def evaluate(
    reference: str | Path,
    data: str | None = None,
    dev: str | None = None,
    progress: Progress | None = None,
    out: str | None = None,
    **decoding: Any,
) -> dict[str, Any]:
    """Scores of every model of a run at its mark: on the run's own dev data, on --data, or on one file.

    `decoding` (for spans) replaces options of the run: null_threshold, decoding. Answers of spans are also
    written in SQuAD's official format, to `out` or else into the run directory.
    """
    model = Model(reference, everything=True)
    model.progress = progress or model.progress
    given = {name: value for name, value in decoding.items() if value is not None}
    if (given or out) and not model.shape.span:
        raise UserError(f"--out and options of decoding are for spans; '{reference}' answers with a {model.kind}.")
    parts = _dev_parts(model, data, dev)
    options = replace(model.options, **given)
    folder = Path(out) if out else model.run.path / "official"
    if model.shape.span:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out '{folder}' cannot be made: {error.strerror}.") from None
    result: dict[str, Any] = {
        "run": str(model.run.path),
        "mark": model.mark,
        "task": model.options.task,
        "metric": model.info["metrics"][0],
        "selected": model.name,
    }
    for split, examples in parts.items():
        encoded = encode(model.encoder, examples, options, model.windowed)
        judge = judge_of(model.kind, examples, encoded.together, options)
        with model.progress.bar(f"answers ({split})", len(encoded)) as bar:
            outputs = model.outputs_of(encoded, bar.tick)
        if encoded.together.truncated:
            model.progress.say(f"{encoded.together.truncated} of {len(examples)} examples were too long and were cut")
        # Tuned thresholds are about the decoding they were tuned with.
        fixed = RAW_THRESHOLD if options.decoding != model.options.decoding else None
        fixed = fixed if options.null_threshold is None else options.null_threshold
        thresholds = {name: model.thresholds.get(name) if fixed is None else fixed for name in outputs}
        found = {name: judge.predictions(values, thresholds[name]) for name, values in outputs.items()}
        metrics = tuple(model.info["metrics"])
        result[split] = {name: scores(judge, predictions, metrics) for name, predictions in found.items()}
        if model.shape.span:
            result["written"] = write_official(folder, examples, found[model.name], thresholds[model.name])
    return result


def evaluate_on_store(reference: str | Path, store: Store, force: bool, progress: Progress) -> dict[str, Any]:
    """Scores of every model of a run on the states of a store, which may be of another checkpoint than the run's own:
    heads that were trained on early states can be asked on later ones. Null thresholds are tuned again where the store
    has held-out questions."""
    run, mark = open_run(reference)
    info, entry, folder = run.info, run.mark(mark), run.mark_folder(mark)
    shape, options = run.record.shape, run.record.recipe
    strange = _strange(info, store, shape)
    if strange and not force:
        raise UserError(
            f"'{store.place}' is not for '{run.path}': {'; '.join(strange)}. --force tries it all the same."
        )
    setting = setting_of(store, replace(options, heads="none", out=None), progress)
    loaded, ways = load_heads(folder, shape, list(entry["pairs"]))
    read = "separate" if store.header.options["pairs"] == "separate" else "joint"
    other = [name for name in loaded if ways[name] != read]
    if other:
        progress.say(f"left out, as they do not read pairs as the store has them ({read}): {', '.join(other)}")
    heads = fed({name: head for name, head in loaded.items() if name not in other}, store, progress)
    outputs = {split: answer(setting, store.only(split), heads, split) for split in setting.evaluated}
    for found in outputs.values():
        for name, ensemble in load_ensembles(folder).items():
            if set(ensemble.weights) <= set(found):
                found[name] = ensemble.of(found, setting.dataset.kind)
    result: dict[str, Any] = {
        "run": str(run.path), "mark": mark, "store": str(store.place), "store_mark": store.header.source["mark"],
        "task": setting.dataset.task, "metric": setting.metric, "selected": entry["selected"], "forced": strange,
    }  # fmt: skip
    tuned = outputs.get(HELD_OUT, {})
    for split, found in outputs.items():
        result[split] = {}
        for name, values in found.items():
            kept = (entry.get("null_thresholds") or {}).get(name)
            threshold = setting.judges[HELD_OUT].threshold(tuned[name]) if tuned else kept
            predictions = setting.judges[split].predictions(values, threshold)
            result[split][name] = scores(setting.judges[split], predictions, setting.dataset.metrics)
    if strange:
        note = {"store": str(store.place), "although": strange}
        write_json(run.path / "run.json", info | {"forced": [*info.get("forced", []), note]})
    return result


def _strange(info: dict[str, Any], store: Store, shape: Shape) -> list[str]:
    """Why the states of a store are not what a run's heads were made for."""
    source, layers = store.header.source, info.get("store", {}).get("layers", list(range(shape.layers)))
    if store.header.layers != layers or store.features != shape.features or store.header.span != shape.span:
        raise UserError(
            f"'{store.place}' has layers {store.header.layers} of {store.features} features for kind"
            f" {store.header.task['kind']}; the run's heads read layers {layers} of {shape.features}."
        )
    found = []
    if source["origin_sha256"] != info["weights_sha256"]:
        found.append(f"its states are of another encoder ({source['backbone']})")
    if source["tokenizer_sha256"] != info.get("tokenizer_sha256", source["tokenizer_sha256"]):
        found.append("its texts were cut by another tokenizer")
    if store.header.task["name"] != info["options"]["task"]:
        found.append(f"it is of the task {store.header.task['name']}")
    return found


def write_official(folder: Path, examples: Examples, found: Predictions, threshold: float | None) -> list[str]:
    """predictions.json and na_prob.json, as the official evaluation takes them."""
    assert examples.questions is not None
    assert found.null_probabilities is not None
    answers = dict(zip(examples.questions.ids, found.answers(threshold), strict=True))
    nulls = dict(zip(examples.questions.ids, map(float, found.null_probabilities), strict=True))
    files = {"predictions.json": answers, "na_prob.json": nulls}
    for name, values in files.items():
        write_json(folder / name, values)
    return [str(folder / name) for name in files]


def _dev_parts(model: Model, data: str | None, dev: str | None) -> dict[str, Examples]:
    if dev is not None:
        if data is not None:
            raise UserError("Give --data or --dev, not both.")
        examples = tasks[model.options.task].read(Path(dev), model.info["roles"], model.labels)
        if examples.targets is None:
            wanted = model.info["roles"]["label"]
            lacks = f"column '{wanted}'" if wanted else "answers"
            raise UserError(f"'{dev}' has no {lacks} to score against.")
        return {"dev": examples}
    options = model.options
    if data is not None:
        options = replace(options, data=data, train=None, dev=None)
    parts = parts_of(load_task(options), options)
    parts = {name: part for name, part in parts.items() if name not in ("train", HELD_OUT)}
    for name, part in parts.items():
        # Rows that were dev when the run was made may be others now, and others may have been trained on.
        if data is None and part.digest() != model.info["data"].get(name, {}).get("sha256"):
            raise UserError(f"The run's {name} data has changed since. Give the file or folder to score on.")
    return parts


def score_squad2(predictions: Path, data: Path, na_prob: Path | None, threshold: float) -> dict[str, float]:
    """The official evaluation of a file of answers; ids without an answer in it are an error."""
    golds = squad_golds(data)
    answers = _mapping(predictions, golds, str, "an answer")
    nulls = _mapping(na_prob, golds, (int, float), "a probability") if na_prob else None
    return report(golds, answers, nulls, threshold)


def _mapping(path: Path, golds: dict[str, list[str]], kind: Any, what: str) -> dict[str, Any]:
    found = parsed(path)
    if not isinstance(found, dict):
        raise UserError(f"'{path}' must hold one JSON object, question id -> {what}.")
    missing = [name for name in golds if name not in found]
    if missing:
        raise UserError(f"'{path}' lacks {what} for {len(missing)} of {len(golds)} questions, e.g. id {missing[0]}.")
    wrong = [name for name, value in found.items() if not isinstance(value, kind)]
    if wrong:
        raise UserError(f"'{path}', id {wrong[0]}: {found[wrong[0]]!r} is not {what}.")
    return found


def compare(one: str | Path, other: str | Path) -> dict[str, Any]:
    """Paired bootstrap of two runs' answering models on the dev examples they share."""
    sides = []
    for reference in (one, other):
        run, mark = open_run(reference)
        sides.append((run, mark, run.mark(mark)["selected"], run.predictions(mark)))
    (run_a, mark_a, name_a, parts_a), (run_b, mark_b, name_b, parts_b) = sides
    kind = run_a.info["kind"]
    result: dict[str, Any] = {
        "a": {"run": str(run_a.path), "mark": mark_a, "model": name_a},
        "b": {"run": str(run_b.path), "mark": mark_b, "model": name_b},
        "metric": run_a.info["metrics"][0],
    }
    for split in parts_a:
        same = run_a.info["data"].get(split, {}).get("sha256") == run_b.info["data"].get(split, {}).get("sha256")
        if split == HELD_OUT or not same or run_a.info["metrics"] != run_b.info["metrics"]:
            continue
        a, b = parts_a[split]["outputs"][name_a], parts_b[split]["outputs"][name_b]
        targets: np.ndarray = parts_a[split]["targets"]
        values = {"a": run_a.mark(mark_a)[split][name_a], "b": run_b.mark(mark_b)[split][name_b]}
        differences = {m: paired(a, b, targets, m, kind).as_dict() for m in values["a"]}
        result[split] = {**values, "difference": differences}
    if not any(split in result for split in parts_a):
        raise UserError(f"'{run_a.path}' and '{run_b.path}' share no dev examples: they cannot be compared.")
    return result
