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
    return Cards(table.title, table.note, [_card(row, kind) for row in table.rows])


def _card(row: dict[str, Any], kind: str) -> Card:
    right, said = row["is"], row["said"]
    texts: list[tuple[str, list[Piece]]] = [(name, cut(row[name])) for name in ("text", "second text") if name in row]
    if kind == "span":
        null = row["no answer"]
        texts = [("question", cut(row["text"])), ("context", excerpt(row["second text"], right, said))]
        more = ("probability", f"no answer {number(null)}, an answer {number(1 - null)}", "")
        right, said = right or "no answer in the text", said or "no answer"
    elif kind == "class":
        more = ("probability", number(row["probability"]), "")
    else:
        more = ("difference", f"{abs(right - said):.2f}", "")
        right, said = f"{right:.2f}", f"{said:.2f}"
    return Card(texts, [("is", right, "right"), ("said", said, "said"), more])


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
