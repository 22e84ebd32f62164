"""The parts of a report, independent of the format it is written in."""

from dataclasses import dataclass, field

from bertvision.analysis import Table


@dataclass(frozen=True)
class Plot:
    """The tables of one analysis, and those (often with fewer rows) that a figure draws."""

    name: str
    tables: list[Table]
    drawn: list[Table]


@dataclass(frozen=True)
class Fact:
    """A key number."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Piece:
    """Some text and its kind: "" for plain text, "right", "said", "both", or "cut" for an omission."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Card:
    """One error: its texts by name, and what was answered."""

    texts: list[tuple[str, list[Piece]]]
    lines: list[tuple[str, str, str]]  # label, value, and "right", "said" or ""


@dataclass(frozen=True)
class Cards:
    title: str
    note: str
    cards: list[Card]


@dataclass(frozen=True)
class Code:
    """Text to copy."""

    label: str
    text: str


@dataclass(frozen=True)
class Facts:
    facts: list[Fact]


Item = Plot | Table | Cards | Code | Facts


@dataclass(frozen=True)
class Section:
    """Paragraphs are plain text in which `...` is code. Sections of level 2 belong to the level 1 before them."""

    title: str
    anchor: str
    paragraphs: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    level: int = 1
