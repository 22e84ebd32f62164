"""What a report consists of, whatever it is written as."""

from dataclasses import dataclass, field

from bertvision.analysis import Table


@dataclass(frozen=True)
class Found:
    """What one analysis found: all its tables, and those (with fewer rows, perhaps) that a figure draws."""

    name: str
    tables: list[Table]
    drawn: list[Table]


@dataclass(frozen=True)
class Fact:
    """A number worth a glance."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Piece:
    """Some text and what it is: "" as it stands, "right", "said", "both", or "cut" for what was left out."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Card:
    """One mistake: the texts by what they are, and what is to be said of them."""

    texts: list[tuple[str, list[Piece]]]
    lines: list[tuple[str, str, str]]  # label, value, and "right", "said" or ""


@dataclass(frozen=True)
class Cards:
    title: str
    note: str
    cards: list[Card]


@dataclass(frozen=True)
class Code:
    """Something to copy."""

    label: str
    text: str


Item = Found | Table | Cards | Code | list[Fact]


@dataclass(frozen=True)
class Section:
    """Paragraphs are plain text, in which `...` stands for code. Level 2 belongs to the level 1 before it."""

    title: str
    anchor: str
    paragraphs: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    level: int = 1
