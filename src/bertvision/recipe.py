"""From a request to a recipe: every value that the user left open is decided here, and nowhere else."""

from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from bertvision.errors import UserError
from bertvision.options import ALL_MARKS, CUT, OWN, WINDOWS, Request, marks_of, one_of

MAX_LENGTH, WINDOW = 256, 386  # tokens of a text, and of a window on a context
POLISH, SPAN_POLISH = 8, 2  # epochs; for spans every token is an example
LEAD = "closed-form"
EARLY = Fraction(3, 10)  # of an epoch: the paper's first checkpoint
POLISH_UNTIL = "3/10"  # with a lead, polishing does not help beyond this (docs/lab-notes)
# Chosen by trials on held-out rows (docs/lab-notes): few examples need more steps, small encoders larger ones.
FEW, FEW_BATCH, BATCH = 4000, 8, 16
NARROW, NARROW_LR, WIDE_LR = 512, 1e-4, 3e-5
# A tenth of fewer examples is too few to choose on.
CROSS_FITTED, FOLDS = 1000, "5"


@dataclass(frozen=True)
class Recipe(Request):
    """A request in which nothing is left open: what a run does, and what run.json keeps as `options`."""

    lead: str = OWN
    marks: str = "0"
    freeze: str = "none"
    batch_size: int = BATCH
    lr: float = WIDE_LR
    max_length: int = MAX_LENGTH
    long: str = CUT
    polish: int = POLISH
    polish_until: str = ALL_MARKS
    folds: str = "0"

    def fractions(self) -> list[Fraction]:
        """The marks, ascending; the last one is where the run ends."""
        return marks_of(self.marks)

    def polishes(self, mark: Fraction) -> bool:
        """Are heads polished at this mark?"""
        limit = None if self.polish_until == ALL_MARKS else Fraction(self.polish_until)
        return self.polish > 0 and (limit is None or mark <= limit)


DECIDED = tuple(name for name in Recipe.__annotations__)  # the fields that a request may leave open


@dataclass(frozen=True)
class Facts:
    """What the decisions depend on: the task, the encoder, the heads and the amount of data."""

    kind: str
    windowed: bool  # questions on contexts that may take several windows
    features: int
    examples: int  # to train on
    heads: list[str]  # labels
    leads: list[str]  # heads that can lead here


def resolve(request: Request, facts: Facts) -> Recipe:
    """Decide what the request leaves open. A recipe comes back as it is."""
    if isinstance(request, Recipe):
        return request
    if request.budget is not None and (request.epochs, request.marks) != (Request.epochs, None):
        raise UserError("--budget sets --epochs and --marks: leave these out.")
    if request.lead is not None:
        one_of("--lead", request.lead, (OWN, *facts.leads))
    span = facts.kind == "span"
    led = bool(facts.heads) and not span and request.freeze != "all"
    lead = request.lead or (LEAD if led else OWN)
    decided: dict[str, Any] = {
        "lead": lead,
        "marks": _marks(request, lead),
        "freeze": "none" if lead == OWN else "embeddings",
        "batch_size": FEW_BATCH if facts.examples < FEW else BATCH,
        "lr": NARROW_LR if facts.features < NARROW else WIDE_LR,
        "max_length": WINDOW if facts.windowed else MAX_LENGTH,
        "long": WINDOWS if facts.windowed else CUT,
        "polish": SPAN_POLISH if span else POLISH,
        "polish_until": _polish_until(request, lead, span),
        "folds": FOLDS if facts.examples < CROSS_FITTED and not facts.windowed and facts.heads else "0",
    }
    given = asdict(request)
    return Recipe(**given | {name: value for name, value in decided.items() if given[name] is None})


def _marks(request: Request, lead: str) -> str:
    epochs = Fraction(request.epochs)
    marks = {Fraction(0), *map(Fraction, range(1, int(epochs) + 1)), epochs}
    # With a lead, so little fine-tuning left CoLA below its start, and polishing costs as much as at any mark.
    if lead == OWN and request.budget is None and epochs >= EARLY:
        marks.add(EARLY)
    return ",".join(map(str, sorted(marks)))


def _polish_until(request: Request, lead: str, span: bool) -> str:
    if request.polish is not None:
        return ALL_MARKS
    if lead != OWN:
        return POLISH_UNTIL
    # For spans every token is polished on: fine-tuning brings as much in less time.
    return "0" if request.budget is not None and span else ALL_MARKS


def migrated(kept: dict[str, Any]) -> Recipe:
    """The recipe of a run of version 0.1, which kept request and recipe as one. Options that were added later get the
    value of the old behaviour."""
    past: dict[str, Any] = {
        "folds": "0",
        "words": False,
        "lead": OWN,
        "dropout": True,
        "freeze": "none",
        "polish_until": None,
        "budget": None,
    } | kept
    past.pop("polish_from", None)
    check_known(past)
    past["polish_until"] = past["polish_until"] or ALL_MARKS
    past["marks"] = past.get("marks") or _marks(Request(epochs=past["epochs"], budget=1.0), past["lead"])
    open_still = {name: getattr(Recipe, name) for name in DECIDED if past.get(name) is None}
    return Recipe(**past | open_still)


def check_known(kept: dict[str, Any]) -> None:
    """Refuse the options of a later version."""
    strange = sorted(set(kept) - set(Request.__dataclass_fields__))
    if strange:
        listed = ", ".join(strange)
        raise UserError(f"run.json has options that this version does not know ({listed}). Update bertvision.")


def reopened(recipe: Recipe) -> Request:
    """The request behind a recipe of version 0.1: every value that could have been left open is left open."""
    return Request(**asdict(recipe) | dict.fromkeys(DECIDED))
