"""Score the models of finished runs: on their dev data, on other data, on the states of a store, against each other."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.errors import UserError
from bertvision.heads.base import Head
from bertvision.inference.answer import Outputs, Target, answer
from bertvision.inference.official import write_official
from bertvision.inference.select import combined, constant, scores
from bertvision.kinds import RAW_THRESHOLD, kinds
from bertvision.metrics.intervals import compare as paired_difference
from bertvision.prepare import Setting, parts_of, prepare_store
from bertvision.progress import Progress
from bertvision.records import MAJORITY, WORDS, Ensemble, RunRecord, Scores, plain_scores
from bertvision.runs.checkpoints import load_ensembles, load_heads
from bertvision.runs.directory import open_run
from bertvision.states.hidden import DERIVED_VIEWS
from bertvision.states.sources import Stored
from bertvision.stores.reader import Store
from bertvision.tasks import load as load_task
from bertvision.tasks import tasks
from bertvision.tasks.coverage import lacking
from bertvision.types import HELD_OUT, TRAIN, Examples

if TYPE_CHECKING:
    from bertvision.inference.model import Model


@dataclass(frozen=True)
class Evaluation:
    """Scores of every model of a run: split -> model -> metric -> Score(value, low, high).

    Example:
        >>> found = bertvision.evaluate("runs/reviews", dev="more.csv")
        >>> found.scores["dev"][found.selected][found.metric].value
        0.913
    """

    run: str
    mark: str
    task: str
    metric: str
    selected: str
    scores: dict[str, dict[str, Scores]] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)  # files in SQuAD's official format
    store: str | None = None
    store_mark: str | None = None
    forced: list[str] = field(default_factory=list)  # why the store's states are not what the heads were trained on

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every split is a key, as in scores.json."""
        found = {key: value for key, value in asdict(replace(self, scores={})).items() if value or key == "forced"}
        if self.store is None:
            found.pop("forced")
        return found | {split: plain_scores(of) for split, of in self.scores.items()}


def evaluate(
    model: "Model",
    *,
    data: str | Path | None = None,
    dev: str | Path | None = None,
    out: str | Path | None = None,
    null_threshold: float | None = None,
    decoding: str | None = None,
) -> Evaluation:
    """What `Model.evaluate` does."""
    asked: dict[str, Any] = {"null_threshold": null_threshold, "decoding": decoding}
    given = {name: value for name, value in asked.items() if value is not None}
    if (given or out) and not model.target.shape.span:
        raise UserError(f"--out and decoding options are for spans; '{model.run.path}' answers with a {model.kind}.")
    parts = _dev_parts(model, data, dev)
    for note in lacking(model.record.labels, parts):
        model.progress.say(note)
    recipe, folder = replace(model.recipe, **given), Path(out) if out else model.run.path / "official"
    if model.target.shape.span:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out '{folder}' cannot be created: {error.strerror}.") from None
    record = model.record
    result = Evaluation(str(model.run.path), model.mark, record.recipe.task, record.metric, model.name)
    # Tuned thresholds belong to the decoding they were tuned with.
    fixed = RAW_THRESHOLD if recipe.decoding != model.recipe.decoding else None
    fixed = fixed if recipe.null_threshold is None else recipe.null_threshold
    for split, examples in parts.items():
        encoded = model.tokenised(examples)
        judge = kinds[model.kind].judge(examples, encoded.together, recipe)
        with model.progress.bar(f"answers ({split})", len(encoded)) as bar:
            outputs = model.outputs_of(encoded, examples, bar.tick)
        if encoded.together.truncated:
            model.progress.say(f"{encoded.together.truncated} of {len(examples)} examples were truncated")
        limits = {name: model.thresholds.get(name) if fixed is None else fixed for name in outputs}
        # A run without tuned thresholds (of a class or score) decodes without any.
        found = {
            name: judge.predictions(values, RAW_THRESHOLD if limits[name] is None else limits[name])
            for name, values in outputs.items()
        }
        result.scores[split] = scores(judge, found, record.metrics)
        if model.target.shape.span:
            result.written[:] = write_official(folder, examples, found[model.name])
    return result


def evaluate_on_store(reference: str | Path, store: Store, *, force: bool = False, progress: Progress) -> Evaluation:
    """Score every model of a run on the states of a store, which may be of another checkpoint than the run's own: heads
    trained on early states can be evaluated on later ones. Null thresholds are tuned again if the store has held-out
    questions."""
    run, mark = open_run(reference)
    record, found, folder = run.record, run.mark(mark), run.mark_folder(mark)
    strange = _strange(record, store)
    if strange and not force:
        raise UserError(f"'{store.place}' is not for '{run.path}': {'; '.join(strange)}. --force tries it anyway.")
    setting = prepare_store(store, replace(record.request, heads="none", out=None, budget=None), progress)
    loaded, ways = load_heads(folder, record.shape, list(found.ways))
    other = [name for name in loaded if ways[name] != store.header.way]
    if other:
        progress.say(
            f"skipped, as they do not read pairs as the store has them ({store.header.way}): {', '.join(other)}"
        )
    heads = fed({name: head for name, head in loaded.items() if name not in other}, store, progress)
    outputs = stored_outputs(setting, store, heads)
    ensembles = load_ensembles(folder)
    majority = ensembles.pop(MAJORITY, None)
    for split, said in outputs.items():
        if majority is not None:
            said[MAJORITY] = constant(majority, len(setting.parts[split]))
        for name, ensemble in ensembles.items():
            if set(ensemble.weights) <= set(said):
                said[name] = combined(ensemble, said, record.kind)
    if WORDS in found.models:
        _say_without_words(ensembles, found.selected, progress)
    place, at = str(store.place), store.header.source["mark"]
    result = Evaluation(str(run.path), mark, setting.dataset.task, setting.metric, found.selected)
    result = replace(result, store=place, store_mark=at, forced=strange)
    limits = dict(found.null_thresholds)
    # The held-out split first: thresholds for the others are tuned on it.
    for split in sorted(outputs, key=lambda name: name != HELD_OUT):
        judge = setting.judges[split]
        predictions = {
            name: judge.predictions(values, None if split == HELD_OUT else limits.get(name))
            for name, values in outputs[split].items()
        }
        if split == HELD_OUT:
            limits = {name: one.threshold for name, one in predictions.items()}
        result.scores[split] = scores(judge, predictions, setting.dataset.metrics)
    if strange:
        record.forced.append({"store": place, "although": strange})
        run.write(record)
    return result


def _say_without_words(ensembles: dict[str, Ensemble], selected: str, progress: Progress) -> None:
    out = [WORDS, *(name for name, one in ensembles.items() if WORDS in one.weights)]
    progress.say(f"skipped, as the store has no texts: {', '.join(out)}")
    if selected in out:
        progress.say(f"The selected model, {selected}, is one of them: `evaluate` without --store scores it.")


def stored_outputs(setting: Setting, store: Store, heads: dict[str, Head]) -> dict[str, Outputs]:
    """Outputs of the encoder (its logits are in the store) and of heads on every scored split."""
    target, found = Target(setting.dataset.kind, setting.scale, setting.shape), {}
    for split in setting.evaluated:
        source = Stored(store, split)
        with setting.progress.bar(f"answers ({split})", len(source.part)) as bar:
            found[split] = answer(source.plain(), setting.windows[split], heads, target, bar.tick)
    return found


def fed(heads: dict[str, Head], store: Store, progress: Progress) -> dict[str, Head]:
    """The heads that the store can feed; the others are skipped and named."""
    header = store.header
    left, out = {}, []
    for name, head in heads.items():
        wanted = set(head.views) if head.body is not None else set()
        if head.cosines or wanted & set(DERIVED_VIEWS):
            wanted = (wanted - set(DERIVED_VIEWS)) | {"first", "second"}
        if header.tokens or wanted <= set(header.views):
            left[name] = head
        else:
            out.append(name)
    if out:
        progress.say(f"skipped, as the store does not have their views or tokens: {', '.join(out)}")
    if out and not left:
        raise UserError(f"--heads: '{store.place}' has {', '.join(header.views)}, which cannot feed {', '.join(out)}.")
    return left


def _strange(record: RunRecord, store: Store) -> list[str]:
    """Why the states of a store are not what a run's heads were trained on."""
    header, shape, source = store.header, record.shape, store.header.source
    layers = list(range(shape.layers)) if record.store is None else record.store.layers
    if header.layers != layers or store.features != shape.features or header.span != shape.span:
        raise UserError(
            f"'{store.place}' has layers {header.layers} of {store.features} features for kind {header.task['kind']};"
            f" the run's heads read layers {layers} of {shape.features}."
        )
    found = []
    if source["origin_sha256"] != record.weights_sha256:
        found.append(f"its states are from another encoder ({source['backbone']})")
    if source["tokenizer_sha256"] != (record.tokenizer_sha256 or source["tokenizer_sha256"]):
        found.append("its texts were split by another tokenizer")
    if header.task["name"] != record.recipe.task:
        found.append(f"it is of the task {header.task['name']}")
    return found


def _dev_parts(model: "Model", data: str | Path | None, dev: str | Path | None) -> dict[str, Examples]:
    recipe, record = model.recipe, model.record
    if dev is not None:
        if data is not None:
            raise UserError("Give --data or --dev, not both.")
        examples = tasks[recipe.task].read(Path(dev), record.roles, record.labels)
        if examples.targets is None:
            wanted = record.roles["label"]
            raise UserError(f"'{dev}' has no {f'column {wanted!r}' if wanted else 'answers'} to score against.")
        return {"dev": examples}
    if recipe.in_memory and data is None:
        raise UserError(f"The data of '{model.run.path}' was given in memory. Give the file to score on: --dev FILE.")
    if data is not None:
        recipe = replace(recipe, data=str(data), train=None, dev=None)
    parts = parts_of(load_task(recipe), recipe)
    parts = {name: part for name, part in parts.items() if name not in (TRAIN, HELD_OUT)}
    for name, part in parts.items():
        # Rows that were dev when the run was made may be different now, and others may have been trained on.
        kept = record.data.get(name)
        if data is None and (kept is None or part.digest() != kept.sha256):
            raise UserError(f"The run's {name} data has changed since. Give the file or folder to score on.")
    return parts


@dataclass(frozen=True)
class Side:
    """One of two models that are compared."""

    run: str
    mark: str
    model: str


@dataclass(frozen=True)
class Comparison:
    """Two models on the dev examples they share: by split, the scores of each and how much b is above a."""

    a: Side
    b: Side
    metric: str
    scores: dict[str, tuple[Scores, Scores]] = field(default_factory=dict)
    difference: dict[str, Scores] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: every split is a key."""
        found: dict[str, Any] = {"a": asdict(self.a), "b": asdict(self.b), "metric": self.metric}
        for split, (a, b) in self.scores.items():
            found[split] = plain_scores({"a": a, "b": b, "difference": self.difference[split]})
        return found


def compare(one: str | Path, other: str | Path) -> Comparison:
    """Paired bootstrap of two runs' selected models on the dev examples they share."""
    sides = []
    for reference in (one, other):
        run, mark = open_run(reference)
        sides.append((run, run.record, run.mark(mark), run.predictions(mark)))
    (run_a, record_a, mark_a, said_a), (run_b, record_b, mark_b, said_b) = sides
    a, b = (Side(str(run.path), mark.mark, mark.selected) for run, _, mark, _ in sides)
    result = Comparison(a, b, record_a.metric)
    for split in said_a:
        same = split in said_b and record_a.data.get(split) == record_b.data.get(split)
        if split == HELD_OUT or not same or record_a.metrics != record_b.metrics:
            continue
        result.scores[split] = mark_a.scores[split][a.model], mark_b.scores[split][b.model]
        values = said_a[split].outputs[a.model], said_b[split].outputs[b.model]
        result.difference[split] = {
            metric: paired_difference(*values, said_a[split].targets, metric, record_a.kind)
            for metric in result.scores[split][0]
        }
    if not result.scores:
        raise UserError(f"'{run_a.path}' and '{run_b.path}' share no dev examples: they cannot be compared.")
    return result
