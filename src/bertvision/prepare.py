"""What a run works with, made ready: data split and tokenised, encoder loaded, heads named, recipe resolved.

Everything that can be wrong with the user's input shows here, before anything is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import Tensor

from bertvision.backbones import encoder as encoders
from bertvision.backbones.encoder import Encoder
from bertvision.backbones.tokenise import MOST_WINDOWS, SEPARATE, Encoded, tokenise
from bertvision.errors import UserError
from bertvision.heads import heads
from bertvision.heads.base import Shape
from bertvision.heads.variants import expand, parse
from bertvision.kinds import Judge, Kind, Scale, kinds
from bertvision.metrics.intervals import FITTING
from bertvision.options import CUT, OWN, WINDOWS, Request, folds_of
from bertvision.progress import Progress
from bertvision.recipe import Facts, Recipe, resolve
from bertvision.states.passes import Reads
from bertvision.stores.reader import Store
from bertvision.tasks import coverage
from bertvision.tasks import load as load_task
from bertvision.tasks.sampling import folds, hold_out, ranks, sample
from bertvision.tasks.weights import weighted
from bertvision.types import HELD_OUT, TRAIN, Answer, Dataset, Examples, Questions, Windows
from bertvision.words.model import Words, fit_words


@dataclass(frozen=True)
class Setting:
    """What models are asked and how they are judged, wherever the hidden states come from."""

    request: Request
    recipe: Recipe
    progress: Progress
    dataset: Dataset
    shape: Shape
    scale: Scale
    names: list[str]  # labels of the heads
    parts: dict[str, Examples]  # train (not of a store), held_out and the dev splits
    windows: dict[str, Windows]

    @property
    def kind(self) -> Kind:
        return kinds[self.dataset.kind]

    @property
    def metric(self) -> str:
        return self.dataset.metrics[0]

    @property
    def reads(self) -> Reads:
        return Reads(self.shape.paired, self.shape.span)

    @property
    def evaluated(self) -> list[str]:
        """The splits that are scored."""
        return [name for name in self.parts if name != TRAIN]

    @cached_property
    def judges(self) -> dict[str, Judge]:
        """Of the splits that are scored."""
        return {name: self.kind.judge(self.parts[name], self.windows[name], self.recipe) for name in self.evaluated}

    def targets(self, part: str) -> np.ndarray:
        targets = self.parts[part].targets
        assert targets is not None
        return targets


@dataclass(frozen=True)
class Prepared(Setting):
    """A setting with an encoder and the texts it reads."""

    encoder: Encoder
    encoded: dict[str, Encoded]
    words: Words | None = None

    def with_words(self) -> "Prepared":
        """With a linear model on the words of the training examples, if it is asked for and not there yet."""
        if self.shape.span or not self.recipe.words or self.words is not None:
            return self
        words = fit_words(self._read_by_words(), self.dataset.kind, self.dataset.outputs, self.recipe.seed)
        return replace(self, words=words)

    def _read_by_words(self) -> Examples:
        """The training examples. If a budget has no time to let the encoder read them all, the others too."""
        asked = self.request.limit
        if self.recipe.limit == asked or self.recipe.folds != "0":
            return self.parts[TRAIN]
        train = self.dataset.train
        train = train if asked is None else train.take(sample(train, asked, "limit"))
        held_out = set(self.parts[HELD_OUT].digests())
        return train.take([row for row, digest in enumerate(train.digests()) if digest not in held_out])

    @cached_property
    def words_outputs(self) -> dict[str, np.ndarray]:
        """split -> what `words` says of the splits that are scored."""
        words = self.words
        return {} if words is None else {name: words.outputs(self.parts[name]) for name in self.evaluated}

    def train_targets(self) -> Tensor:
        """As they are learned, per window: class indices, scores of mean 0 and deviation 1, or first and last token."""
        answers = self.windows[TRAIN].answers
        if answers is None:
            return self.scale.shrink(self.targets(TRAIN))[self.windows[TRAIN].examples]
        # A window without the answer is one that does not answer the question.
        return torch.from_numpy(answers if self.shape.span else (answers[:, 0] > 0).astype(np.int64))

    def train_weights(self) -> Tensor | None:
        """Per window, how much it counts."""
        questions = self.dataset.train.questions is not None
        return window_weights(self.windows[TRAIN].examples, self.parts[TRAIN].weights, questions)

    def train_ranks(self) -> Tensor | None:
        """Per window, the rank of its example: a head on a share of the data sees the low ones. None: all see all."""
        if all(parse(label).data == 1 for label in self.names):
            return None
        return torch.from_numpy(ranks(self.parts[TRAIN])[self.windows[TRAIN].examples])


def prepare(
    request: Request, progress: Progress, *, encoder: Encoder | None = None, dataset: Dataset | None = None
) -> Prepared:
    """Load and tokenise. `encoder` and `dataset` replace those that the request names, if they are loaded already."""
    dataset = chosen_by(request.metric, dataset or load_task(request))
    parts = parts_of(dataset, request)
    span, windowed = dataset.kind == "span", dataset.train.questions is not None
    if windowed and request.pairs == SEPARATE:
        raise UserError(f"--pairs separate: a question of '{dataset.task}' cannot be read without its context.")
    _check_long(request, dataset)
    if encoder is None:
        encoder = encoders.load(request.backbone, dataset.outputs, request.seed, span=span)
    paired, pooled = dataset.train.second_texts is not None, encoder.pooled and not span
    shape = Shape(encoder.layers, encoder.features, dataset.outputs, paired, pooled, span)
    names = expand(request.heads, shape)
    leads = [name for name in heads if heads[name].solved and heads[name].fits(shape)]
    recipe = resolve(request, Facts(dataset.kind, windowed, encoder.features, len(parts[TRAIN]), names, leads))
    if recipe.folds != request.folds:
        parts = parts_of(dataset, recipe)
    encoder.freeze(recipe.freeze)
    sizes = {name: len(part) for name, part in parts.items()}
    summary = _summary(dataset.task, sizes, names, recipe.folds)
    for note in (*dataset.notes, *coverage.notes(dataset.labels, parts), summary):
        progress.say(note)
    encoded = {name: tokenise(encoder, part, recipe, windowed) for name, part in parts.items()}
    for name, found in encoded.items():
        if name == HELD_OUT and recipe.folds != "0":
            continue  # they are training rows too
        for note in _lengths(found, len(parts[name]), min(recipe.max_length, encoder.longest), windowed):
            progress.say(f"{name.replace('_', '-')}: {note}")
    targets, windows = parts[TRAIN].targets, {name: found.together for name, found in encoded.items()}
    assert targets is not None
    return Prepared(
        request, recipe, progress, dataset, shape, Scale.of(targets), names, parts, windows, encoder, encoded
    )


def window_weights(examples: np.ndarray, weights: np.ndarray | None, questions: bool) -> Tensor | None:
    """Per window, given the example of each and the weights of examples: 1 on average. None: all count the same.

    Windows of a text share its weight, so that long texts do not outweigh short ones. Those of a question each have a
    target of their own.
    """
    counts = np.bincount(examples)
    even = questions or counts.max() == 1
    if even and weights is None:
        return None
    each = (np.ones(len(counts)) if weights is None else weights) / (1 if even else counts)
    found = torch.from_numpy(each[examples]).float()
    return found / found.mean()


def _check_long(request: Request, dataset: Dataset) -> None:
    """Only single texts leave a choice."""
    if request.long == CUT and dataset.train.questions is not None:
        raise UserError(f"--long cut: the contexts of '{dataset.task}' are always read in windows.")
    if request.long == WINDOWS and dataset.train.questions is None and dataset.train.second_texts is not None:
        raise UserError(
            "--long windows: a pair of texts is read in one window. Leave it out, and raise --max-length (within what"
            " the encoder can read) if too much is truncated."
        )


def _summary(task: str, sizes: dict[str, int], names: list[str], folds: str = "0") -> str:
    listed = ", ".join(
        f"{size} {name.replace('_', '-')}" for name, size in sizes.items() if name != HELD_OUT or folds == "0"
    )
    used, count = folds_of(folds)
    crossed = f", cross-fitted in {used if used == count else folds} folds" if count else ""
    return f"{task}: {listed}{crossed}; {len(names)} heads"


def _lengths(found: Encoded, examples: int, limit: int, windowed: bool) -> Iterator[str]:
    cut, several = found.together.truncated, len(found) > examples
    if several:
        yield f"{examples} {'questions' if windowed else 'texts'} in {len(found)} windows of at most {limit} tokens"
    if cut:
        room = f"{MOST_WINDOWS} windows" if several and not windowed else f"{limit} tokens"
        yield f"{cut} {'questions' if windowed else f'of {examples} examples'} truncated to {room}"
    if found.cut_answers:
        yield f"{found.cut_answers} answers begin or end inside a token; the whole token is used"


def chosen_by(metric: str | None, dataset: Dataset) -> Dataset:
    """The dataset with this metric, which every choice goes by, before its others."""
    if metric is None:
        return dataset
    if metric not in FITTING[dataset.kind]:
        raise UserError(
            f"--metric for kind {dataset.kind} must be one of {', '.join(FITTING[dataset.kind])}; got '{metric}'."
        )
    return replace(dataset, metrics=(metric, *(other for other in dataset.metrics if other != metric)))


def parts_of(dataset: Dataset, request: Request) -> dict[str, Examples]:
    """train, held_out and the dev splits, after --limit and --dev-limit. The seed plays no part."""
    train = dataset.train
    if request.limit is not None:
        train = train.take(sample(train, request.limit, "limit"))
    used, count = folds_of(request.folds)
    if count and dataset.kind == "span":
        raise UserError("--folds is not for answer spans.")
    if count > len(train):
        raise UserError(f"--folds {request.folds}: {len(train)} rows cannot be split into {count} folds.")
    if count:  # every row is trained on; models are judged on rows that they were left out of
        rest, held = np.arange(len(train)), np.flatnonzero(folds(train, count) < used)
    else:
        rest, held = hold_out(train)
    if dataset.kind != "span" and train.targets is not None and len(np.unique(train.targets[rest])) < 2:
        raise UserError(f"All {len(rest)} training examples have the same answer: there is nothing to learn.")
    train = weighted(train, rest, dataset.labels, request.class_weight)
    parts = {TRAIN: train.take(rest), HELD_OUT: train.take(held)}
    for name, dev in dataset.dev.items():
        limit = request.dev_limit
        parts[name] = dev if limit is None else dev.take(sample(dev, limit, "dev-limit"))
    return parts


def prepare_store(store: Store, request: Request, progress: Progress) -> Setting:
    """The setting of a store: the store defines the data, the request defines the training."""
    header, where, task = store.header, store.manifest["where"], store.header.task
    kept = {**header.options, **{name: where[name] for name in ("data", "train", "dev")}, "lead": OWN, "folds": "0"}
    request = replace(request, **kept)
    shape = Shape(
        store.layers, store.features, task["outputs"], header.paired, header.pooled and not header.span, header.span
    )
    names = expand(request.heads, shape)
    sizes = {name: part["examples"] for name, part in header.data.items()}
    recipe = resolve(request, Facts(task["kind"], task["windowed"], store.features, sizes.get(TRAIN, 0), names, []))
    splits = [name for name in header.data if name != TRAIN]
    labels, metrics, nothing = tuple(task["labels"]), tuple(task["metrics"]), Examples([], None, None)
    dataset = Dataset(task["name"], task["kind"], labels, metrics, nothing, {}, task["roles"])
    dataset = chosen_by(request.metric, dataset)
    progress.say(_summary(f"{dataset.task}, from {store.place}", sizes, names))
    parts = {split: _stored_examples(store, split) for split in splits}
    windows = {split: _stored_windows(store, split) for split in splits}
    return Setting(request, recipe, progress, dataset, shape, Scale(**task["scale"]), names, parts, windows)


def _stored_examples(store: Store, split: str) -> Examples:
    table = store.examples(split)
    known = {name: table[name].to_pylist() for name in table.column_names if name != "target"}
    targets = table["target"].to_numpy()
    if "answers" not in known:
        return Examples(known["id"], None, targets)
    answers = [
        tuple(Answer(text, start) for text, start in zip(texts, starts, strict=True))
        for texts, starts in zip(known["answers"], known["starts"], strict=True)
    ]
    return Examples(known["question"], known["context"], targets, Questions(known["id"], known["article"], answers))


def _stored_windows(store: Store, split: str) -> Windows:
    flat = load_file(store.place.local(f"windows-{split}.safetensors"))
    nothing = np.zeros(0, dtype=np.int32)  # tokens are for encoders
    return Windows(tokens=nothing, types=nothing, truncated=0, **flat)
