"""What run.json and scores.json hold, as types: the one place that reads and writes their keys.

`RunRecord` is run.json: how a run was made. `Results` is scores.json: a `MarkRecord` for every mark, with the scores of
every model on every split. A `ModelName` says which head, variant and training a model's name stands for.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.heads.base import Shape
from bertvision.heads.variants import Variant, parse, without
from bertvision.kinds import Scale
from bertvision.metrics.intervals import Score
from bertvision.options import Request
from bertvision.recipe import Recipe, check_known, migrated, reopened
from bertvision.types import HELD_OUT, reported

SCHEMA = 2  # of run.json; version 0.1 wrote none
OPTIONAL = ("encoder_trained", "plan", "costs", "store", "cut", "forced")  # keys that not every run has
POLISHED = "+polish"
ENCODER = "encoder"
WORDS = "words"  # the linear model on counts of words (words.py)
MAJORITY = "majority"  # the constant model: every class as often as it occurs, or the mean score
ENSEMBLE = "ensemble-"
MAX, MEAN, GREEDY, MATCHED = (ENSEMBLE + rule for rule in ("max", "mean", "greedy", "matched"))

Scores = dict[str, Score]  # metric -> score


@dataclass(frozen=True)
class ModelName:
    """A model of a run by its name: `encoder`, an ensemble, or a head's label, with `+polish` if it was polished."""

    label: str
    polished: bool = False

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        return cls(text.removesuffix(POLISHED), text.endswith(POLISHED))

    def __str__(self) -> str:
        return self.label + POLISHED * self.polished

    @property
    def ensemble(self) -> bool:
        return self.label.startswith(ENSEMBLE)

    @property
    def variant(self) -> Variant:
        return parse(self.label)

    def by_layer(self, values: list[float]) -> dict[int, float]:
        """A value per layer that the head reads, by layer."""
        return dict(zip(self.variant.layers or range(len(values)), values, strict=True))

    def without(self, *options: str) -> "ModelName":
        """The same head less some options of its label, e.g. to put seeds together."""
        return ModelName(without(self.label, *options), self.polished)


@dataclass(frozen=True)
class Ensemble:
    """A rule (`max` or `mean`) over weighted members; a single model is a mean of one. `shift` is added to the log odds
    of the second of two classes. The rule `constant` has no members and always gives the same answer."""

    rule: str
    weights: dict[str, float]
    shift: float = 0.0
    constant: tuple[float, ...] = ()


@dataclass(frozen=True)
class Data:
    """One split: how many examples, and a digest of their texts and targets."""

    examples: int
    sha256: str


@dataclass(frozen=True)
class BudgetPlan:
    """What a --budget planned: epochs, and the second by which fine-tuning has to be over."""

    epochs: str
    tuned_by: float
    changed_at: int | None = None  # the step at which time was up; until then the clock set the learning rate
    tuned_from: float | None = None  # the second at which fine-tuning began
    spent: float = 0.0  # seconds after which what the folds found was saved
    work: dict[str, float] = field(default_factory=dict)  # seconds of every piece of work, in order (deadline.py)


@dataclass(frozen=True)
class Costs:
    seconds: float
    parts: dict[str, float]
    peak_memory_bytes: int
    disk_bytes: int
    peak_device_bytes: int | None = None


@dataclass(frozen=True)
class FromStore:
    """The store that a run was trained on. `encoder` is None where nobody knows it: imported states."""

    place: str
    source: dict[str, Any]
    encoder: str | None
    layers: list[int]
    dtype: str


@dataclass(frozen=True)
class CutSide:
    """A model before or after its encoder was cut."""

    model: str
    score: Score
    encoder_parameters: int
    milliseconds_alone: float
    milliseconds_each_together: float


@dataclass(frozen=True)
class Cut:
    """From which run, backbone and mark an encoder was cut to its first `layers` of `of` layers."""

    origin: str  # "from" on disk
    backbone: str
    mark: str
    layers: int
    of: int
    before: CutSide
    after: CutSide

    def as_dict(self) -> dict[str, Any]:
        return {"from" if name == "origin" else name: value for name, value in asdict(self).items()}


@dataclass
class RunRecord:
    """run.json: what was asked, what was done, with what, and what it cost."""

    request: Request
    recipe: Recipe  # "options" on disk
    command: str
    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    roles: dict[str, str | None]
    scale: Scale
    shape: Shape
    parameters: dict[str, int]
    versions: dict[str, str]
    machine: dict[str, Any]
    windowed: bool
    data: dict[str, Data]
    weights_sha256: str
    tokenizer_sha256: str | None = None
    encoder_trained: int | None = None
    licence: str | None = None
    plan: BudgetPlan | None = None
    costs: Costs | None = None
    store: FromStore | None = None
    cut: Cut | None = None
    forced: list[dict[str, Any]] = field(default_factory=list)  # stores of other encoders that it was evaluated on

    @property
    def metric(self) -> str:
        """The one that every choice goes by."""
        return self.metrics[0]

    @property
    def encoder_answered(self) -> bool:
        """Imported states come without the encoder's own logits; its answers then mean nothing."""
        return self.store is None or self.store.encoder is not None

    @property
    def origin(self) -> str:
        """The backbone that the encoder comes from, also of a run that was cut or trained on a store."""
        if self.store is not None:
            return str(self.store.source["backbone"])
        return self.cut.backbone if self.cut is not None else self.recipe.backbone

    def size(self, model: str) -> int | None:
        """Trained parameters of the encoder or a head; ensembles have none of their own."""
        return self.parameters.get(ModelName.parse(model).label)

    @classmethod
    def read(cls, path: Path) -> "RunRecord":
        kept = read_json(path)
        schema = kept.pop("schema", 1)
        if schema > SCHEMA:
            raise UserError(f"'{path}' has schema {schema}; this version reads up to {SCHEMA}. Update bertvision.")
        options = kept.pop("options")
        if schema == SCHEMA:
            check_known(options | kept["request"])
        recipe = Recipe(**options) if schema == SCHEMA else migrated(options)
        request = Request(**kept.pop("request")) if "request" in kept else reopened(recipe)
        typed: dict[str, Any] = {
            "labels": tuple(kept["labels"]), "metrics": tuple(kept["metrics"]), "scale": Scale(**kept["scale"]),
            "shape": _shape(kept["shape"]), "data": {name: Data(**part) for name, part in kept["data"].items()},
            "windowed": bool(kept.get("windowed")),
        }  # fmt: skip
        for name, kind in (("plan", BudgetPlan), ("costs", Costs), ("store", FromStore)):
            if kept.get(name):
                typed[name] = kind(**kept[name])
        if kept.get("cut"):
            typed["cut"] = _cut(kept["cut"])
        known = {f.name for f in fields(cls)}
        return cls(request, recipe, **{name: value for name, value in (kept | typed).items() if name in known})

    def write(self, path: Path) -> None:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        made = {"schema": SCHEMA, "options": found.pop("recipe").as_dict(), "request": found.pop("request").as_dict()}
        for name, value in found.items():
            if value or name not in OPTIONAL:
                made[name] = _plain(value)
        write_json(path, made)


@dataclass
class MarkRecord:
    """What was found at one mark: choices on held-out data, and scores of every model on every split."""

    mark: str  # epochs of fine-tuning, an exact fraction; "epoch" on disk
    selected: str
    best_head: str | None
    ways: dict[str, str]  # head -> joint or separate; "pairs" on disk
    scores: dict[str, dict[str, Scores]]  # split -> model -> metric; on disk every split is a key
    step: int = 0
    seconds: float = 0.0  # of the run up to here
    costs: dict[str, float] = field(default_factory=dict)
    goodness: float | None = None  # of the selected model, as choices see it
    modes: dict[str, str] = field(default_factory=dict)  # way -> where polished heads got their states from
    layer_profiles: dict[str, list[float]] = field(default_factory=dict)
    layer_weights: dict[str, list[float]] = field(default_factory=dict)
    null_thresholds: dict[str, float | None] = field(default_factory=dict)  # spans only
    polished_windows: int | None = None

    @property
    def split(self) -> str:
        """The split to report: the first dev split, or the held-out rows of a run that has none."""
        return reported(self.scores)

    @property
    def dev_splits(self) -> list[str]:
        return [split for split in self.scores if split != HELD_OUT]

    @property
    def models(self) -> list[str]:
        return list(self.scores[HELD_OUT])

    @property
    def roles(self) -> dict[str, str]:
        """The models that most tables compare: role -> name. The selected model often has another role too."""
        ensembles = {"ensemble (max)": MAX, "ensemble (greedy)": GREEDY}
        found = {"encoder": ENCODER, "best head": self.best_head, **ensembles, "selected": self.selected}
        return {role: name for role, name in found.items() if name in self.models}

    def score(self, model: str, metric: str, split: str | None = None) -> Score:
        return self.scores[split or self.split][model][metric]

    @classmethod
    def read(cls, kept: dict[str, Any]) -> "MarkRecord":
        kept = dict(kept)
        known = {f.name for f in fields(cls)} - {"mark", "ways", "scores"}
        given = {name: kept.pop(name) for name in list(kept) if name in known}
        for name in ("null_thresholds", "layer_profiles", "layer_weights"):
            given[name] = given.get(name) or {}
        mark, ways = kept.pop("epoch"), kept.pop("pairs", {})
        return cls(mark=mark, ways=ways, scores={split: read_scores(found) for split, found in kept.items()}, **given)

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = {"epoch": self.mark, "step": self.step, "seconds": self.seconds, "costs": self.costs}
        made |= {"selected": self.selected, "goodness": self.goodness, "best_head": self.best_head}
        made |= {"pairs": self.ways, "modes": self.modes}
        made |= {name: found for name in ("layer_profiles", "layer_weights") if (found := getattr(self, name))}
        if self.null_thresholds:
            made |= {"null_thresholds": self.null_thresholds, "polished_windows": self.polished_windows}
        return made | {split: plain_scores(found) for split, found in self.scores.items()}


@dataclass(frozen=True)
class Selected:
    model: str
    mark: str


@dataclass
class Results:
    """scores.json: the marks of a run in order, and the model that ships."""

    task: str
    metric: str
    marks: list[MarkRecord]
    selected: Selected

    @classmethod
    def of(cls, task: str, metric: str, marks: list[MarkRecord], shipped: MarkRecord) -> "Results":
        return cls(task, metric, marks, Selected(shipped.selected, shipped.mark))

    def at(self, mark: str) -> MarkRecord:
        return next(one for one in self.marks if one.mark == mark)

    @property
    def shipped(self) -> MarkRecord:
        """The mark whose model ships."""
        return self.at(self.selected.mark)

    @property
    def last(self) -> MarkRecord:
        return self.marks[-1]

    @classmethod
    def read(cls, path: Path) -> "Results":
        kept = read_json(path)
        marks = [MarkRecord.read(one) for one in kept["marks"]]
        return cls(kept["task"], kept["metric"], marks, Selected(**kept["selected"]))

    def as_dict(self) -> dict[str, Any]:
        marks = [one.as_dict() for one in self.marks]
        return {"task": self.task, "metric": self.metric, "marks": marks, "selected": asdict(self.selected)}

    def write(self, path: Path) -> None:
        write_json(path, self.as_dict())


def read_scores(found: dict[str, dict[str, Any]]) -> dict[str, Scores]:
    """model -> metric -> score."""
    return {model: {metric: Score(**score) for metric, score in one.items()} for model, one in found.items()}


def plain_scores(found: dict[str, Scores]) -> dict[str, dict[str, dict[str, float]]]:
    return {model: {metric: score.as_dict() for metric, score in one.items()} for model, one in found.items()}


def _plain(value: Any) -> Any:
    """As JSON has it: dataclasses without the parts that are not there."""
    if isinstance(value, Cut):
        return value.as_dict()
    if isinstance(value, Shape):
        kept = {name: part for name, part in asdict(value).items() if name != "views"}
        return {"pairs" if name == "paired" else name: part for name, part in kept.items()}
    if hasattr(value, "__dataclass_fields__"):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        absent = [f.name for f in fields(value) if f.default is None and parts[f.name] is None]
        return {name: _plain(part) for name, part in parts.items() if name not in absent}
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def _shape(kept: dict[str, Any]) -> Shape:
    return Shape(**{"paired" if name == "pairs" else name: value for name, value in kept.items()})


def _cut(kept: dict[str, Any]) -> Cut:
    sides = {side: CutSide(**kept[side] | {"score": Score(**kept[side]["score"])}) for side in ("before", "after")}
    return Cut(kept["from"], kept["backbone"], kept["mark"], kept["layers"], kept["of"], **sides)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.") from None


def write_json(path: Path, value: Any) -> None:
    """All of the file or none of it."""
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Append one JSON value per line."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)
