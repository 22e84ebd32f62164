"""Errors with their texts: the context around an answer, with the right and the given answer highlighted."""

from itertools import pairwise
from typing import Any

from bertvision.analysis import Table
from bertvision.formats import number
from bertvision.reports.parts import Card, Cards, Piece

AROUND = 150  # characters on either side of an answer
WORD = 20  # characters to give up at most so that no word is cut
LONGEST = 600  # characters of other texts
OMITTED = Piece(" … ", "cut")


def cards(table: Table, kind: str) -> Cards:
    """A card per row of the analysis `errors`."""
    make = {"span": _span, "class": _class, "score": _score}[kind]
    return Cards(table.title, table.note, [make(row) for row in table.rows])


def _span(row: dict[str, Any]) -> Card:
    right, said, null = str(row["is"]), str(row["said"]), row["no answer"]
    context = excerpt(str(row.get("second text", "")), right, said)
    probabilities = f"no answer {number(null)}, an answer {number(1 - null)}"
    lines = [("is", right or "no answer in the text", "right"), ("said", said or "no answer", "said")]
    return Card(
        [("question", cut(str(row["text"]))), ("context", context)], [*lines, ("probability", probabilities, "")]
    )


def _class(row: dict[str, Any]) -> Card:
    lines = [("is", str(row["is"]), "right"), ("said", str(row["said"]), "said")]
    return Card(_texts(row), [*lines, ("probability", number(row["probability"]), "")])


def _score(row: dict[str, Any]) -> Card:
    lines = [("is", f"{row['is']:.2f}", "right"), ("said", f"{row['said']:.2f}", "said")]
    return Card(_texts(row), [*lines, ("difference", f"{abs(row['is'] - row['said']):.2f}", "")])


def _texts(row: dict[str, Any]) -> list[tuple[str, list[Piece]]]:
    return [(name, cut(str(row[name]))) for name in ("text", "second text") if name in row]


def cut(text: str) -> list[Piece]:
    """The start of a long text."""
    return [Piece(text)] if len(text) <= LONGEST else [Piece(text[:LONGEST].rstrip()), OMITTED]


def excerpt(text: str, right: str, said: str, around: int = AROUND) -> list[Piece]:
    """The text around both answers where they first occur. Highlights may overlap; the rest is omitted."""
    places = {}
    for kind, answer in (("right", right), ("said", said)):
        start = text.find(answer) if answer else -1
        if start >= 0:
            places[kind] = (start, start + len(answer))
    kept = [_around(text, start, end, around) for start, end in places.values() or [(0, around)]]
    edges = sorted({0, len(text)} | {edge for pair in (*places.values(), *kept) for edge in pair})
    pieces: list[Piece] = []
    for start, end in pairwise(edges):
        inside = [kind for kind, (first, last) in places.items() if first <= start and end <= last]
        piece = Piece(text[start:end], "both" if len(inside) == 2 else "".join(inside))
        if not any(first <= start and end <= last for first, last in kept):
            piece = OMITTED
        if pieces and pieces[-1].kind == piece.kind:
            last_piece = pieces.pop()
            piece = OMITTED if piece is OMITTED else Piece(last_piece.text + piece.text, piece.kind)
        pieces.append(piece)
    return pieces


def _around(text: str, start: int, end: int, around: int) -> tuple[int, int]:
    """Where to cut: between words, if a space is near."""
    first, last = max(0, start - around), min(len(text), end + around)
    if first > 0:
        first = text.find(" ", first, min(first + WORD, start)) + 1 or first
    if last < len(text):
        space = text.rfind(" ", max(last - WORD, end), last)
        last = last if space < 0 else space
    return first, last
