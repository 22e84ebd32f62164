"""The model card of a run, README.md: what it predicts, its scores, its cost and its limits."""

from pathlib import Path

from bertvision.formats import bars, duration, markdown_table, size, spaced
from bertvision.options import WINDOWS
from bertvision.records import ENCODER, GREEDY, MATCHED, WORDS, MarkRecord, ModelName, Results, RunRecord
from bertvision.runs.directory import Run

PIPELINES = {"class": "text-classification", "score": "sentence-similarity", "span": "question-answering"}
KINDS = {
    "class": "a class and its probability",
    "score": "a score",
    "span": "a piece of the text, or that there is none",
}


def write(run: Run, path: Path) -> None:
    """Write README.md beside run.json and scores.json of a run whose final name is `path`."""
    record, results = run.record, run.results
    (run.path / "README.md").write_text(text_of(record, results, path), encoding="utf-8")


def text_of(record: RunRecord, results: Results, path: Path) -> str:
    mark = results.shipped
    blocks = [_about(record, results, path), *_scores(record, mark), *_cost(record, mark), *_layers(mark)]
    blocks += [*_data_and_limits(record, results.task), "## How it was made", f"```\n{record.command}\n```"]
    blocks.append(", ".join(f"{name} {version}" for name, version in record.versions.items()))
    return f"---\n{_metadata(record, results)}\n---\n\n" + "\n\n".join(blocks) + "\n"


def _metadata(record: RunRecord, results: Results) -> str:
    """The header that the Hugging Face hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    score = results.shipped.score(results.selected.model, results.metric).value
    pipeline, origin = PIPELINES[record.kind], record.origin
    on_hub = origin.count("/") == 1 and not Path(origin).exists()
    backbone = Path(origin).name
    result = EvalResult(
        task_type=pipeline,
        dataset_type=results.task,
        dataset_name=results.task,
        metric_type=results.metric,
        metric_value=round(score, 4),
    )
    data = ModelCardData(
        library_name="bertvision",
        license=record.licence,
        base_model=origin if on_hub else backbone,
        pipeline_tag=pipeline,
        tags=["bertvision", "hidden-states", "partial-fine-tuning"],
        model_name=f"{results.task}-{backbone}",
        eval_results=[result],
    )
    return data.to_yaml()


def _about(record: RunRecord, results: Results, path: Path) -> str:
    model, mark, origin = results.selected.model, results.selected.mark, record.origin
    layers = f", its first {record.cut.layers} layers" if record.cut else ""
    tuned = f"fine-tuned for {mark} epochs" if mark != "0" else "not fine-tuned"
    heads = ", with small heads on the hidden states of every layer" if results.shipped.best_head else ""
    heads += " and a linear model on its words" if WORDS in results.shipped.models else ""
    texts = '["..."], ["..."]' if record.shape.paired else '["..."]'
    blocks = [
        f"# {results.task} with {Path(origin).name}: {model}",
        f"Predicts {KINDS[record.kind]}. The encoder `{origin}`{layers}, {tuned}{heads} (BERTVision). The model was"
        " selected on examples held out of the training data.",
        f"```python\nimport bertvision\n\nbertvision.load({str(path)!r}).predict({texts})\n```",
    ]
    if model == MATCHED:
        blocks.append(
            "Its probabilities are shifted so that it predicts each class as often as it occurs in held-out data: they"
            f" are no longer calibrated. Use the model `{GREEDY}` if you need calibrated probabilities."
        )
    return "\n\n".join(blocks)


def _scores(record: RunRecord, mark: MarkRecord) -> list[str]:
    shown = [model for model in dict.fromkeys([mark.selected, mark.best_head, ENCODER, WORDS]) if model in mark.models]
    if not record.encoder_answered:
        shown.remove(ENCODER)
    splits = mark.dev_splits or [mark.split]
    rows = []
    for split in splits:
        for model in shown:
            found = mark.scores[split][model]
            scores = {metric: found[metric].as_dict() if metric in found else None for metric in record.metrics}
            rows.append({"split": spaced(split), "model": model} | scores)
    about = "95% bootstrap intervals over examples. Dev examples were not used for training or selection."
    return ["## Scores", about, markdown_table(rows)]


def _cost(record: RunRecord, mark: MarkRecord) -> list[str]:
    lines, names = [], {ENCODER: "", mark.selected: "selected head", mark.best_head or "": "best head"}
    names |= {ENCODER: "encoder", WORDS: f"model `{WORDS}`"}
    if record.costs is not None:
        costs = record.costs
        lines.append(f"{duration(mark.seconds)} up to this mark, {duration(costs.seconds)} for the whole run")
        lines.append(f"peak memory {size(costs.peak_memory_bytes)}, {size(costs.disk_bytes)} on disk")
    sizes = [f"{count:,} in the {what}" for model, what in names.items() if (count := record.size(model))]
    lines.append(f"parameters: {', '.join(sizes)}")
    machine = record.machine
    lines.append(f"machine: {machine['platform']}, {machine['threads']} threads, {machine.get('device', 'no encoder')}")
    return ["## Cost", "\n".join(f"- {line}" for line in lines)]


def _layers(mark: MarkRecord) -> list[str]:
    what, found = ("weight", mark.layer_weights) if mark.layer_weights else ("score alone", mark.layer_profiles)
    for name, values in found.items():
        lines = bars([(str(layer), value) for layer, value in ModelName.parse(name).by_layer(values).items()])
        about = f"By layer, for `{name}`: {what} (0 is the embedding output)."
        return ["## Layers", about, "\n".join(["```", *lines, "```"])]
    return []


def _data_and_limits(record: RunRecord, task: str) -> list[str]:
    sizes = ", ".join(f"{part.examples:,} {spaced(name)}" for name, part in record.data.items())
    length, licence = record.recipe.max_length, record.licence
    longer = "are read in overlapping windows" if record.recipe.long == WINDOWS or record.windowed else "are truncated"
    lines = [
        f"Task `{task}`: {sizes} examples. Seed {record.recipe.seed}.",
        "Long texts were truncated when the store was made."
        if record.store
        else f"Texts longer than {length} tokens {longer}.",
        "The model has the biases of its training texts and of its encoder. The scores hold for similar texts only.",
        f"Licence of the encoder: {licence}."
        if licence
        else f"Licence: that of the encoder `{record.origin}`; its files do not say which.",
    ]
    return ["## Data, limits, licence", "\n".join(f"- {line}" for line in lines)]
