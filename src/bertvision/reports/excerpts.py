"""Mistakes with their texts: what stands around an answer, with the right and the given one marked."""

from itertools import pairwise
from typing import Any

from bertvision.analysis import Table
from bertvision.reports.formats import number
from bertvision.reports.parts import Card, Cards, Piece

AROUND = 150  # characters on either side of an answer
WORD = 20  # characters that are given up so as not to cut a word
LONGEST = 600  # characters of other texts


def cards(table: Table, kind: str) -> Cards:
    """Of the rows that the analysis `errors` gives."""
    make = {"span": _span, "class": _class, "score": _score}[kind]
    return Cards(table.title, table.note, [make(row) for row in table.rows])


def _span(row: dict[str, Any]) -> Card:
    right, said = str(row["is"]), str(row["said"])
    context = excerpt(str(row.get("second text", "")), right, said)
    null = f"no answer {number(row['no answer'])}, an answer {number(1 - row['no answer'])}"
    lines = [("is", right or "not answered by the text", "right"), ("said", said or "no answer", "said")]
    return Card([("question", cut(str(row["text"]))), ("context", context)], [*lines, ("probability of", null, "")])


def _class(row: dict[str, Any]) -> Card:
    lines = [("is", str(row["is"]), "right"), ("said", str(row["said"]), "said")]
    return Card(_texts(row), [*lines, ("probability", number(row["probability"]), "")])


def _score(row: dict[str, Any]) -> Card:
    lines = [("is", f"{row['is']:.2f}", "right"), ("said", f"{row['said']:.2f}", "said")]
    return Card(_texts(row), [*lines, ("off by", f"{abs(row['is'] - row['said']):.2f}", "")])


def _texts(row: dict[str, Any]) -> list[tuple[str, list[Piece]]]:
    return [(name, cut(str(row[name]))) for name in ("text", "second text") if name in row]


def cut(text: str) -> list[Piece]:
    """The start of a long text."""
    return [Piece(text)] if len(text) <= LONGEST else [Piece(text[:LONGEST].rstrip()), Piece(" … ", "cut")]


def _around(text: str, start: int, end: int, around: int) -> tuple[int, int]:
    """Where to cut: between words, if there is a space not far off."""
    first, last = max(0, start - around), min(len(text), end + around)
    if first > 0:
        first = text.find(" ", first, min(first + WORD, start)) + 1 or first
    if last < len(text):
        space = text.rfind(" ", max(last - WORD, end), last)
        last = last if space < 0 else space
    return first, last


def excerpt(text: str, right: str, said: str, around: int = AROUND) -> list[Piece]:
    """What stands around both answers where they first occur; marks may overlap, far parts are left out."""
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
        kind = "both" if len(inside) == 2 else "".join(inside)
        if not any(first <= start and end <= last for first, last in kept):
            piece = Piece(" … ", "cut")
        else:
            piece = Piece(text[start:end], kind)
        if pieces and pieces[-1].kind == piece.kind:
            joined = " … " if piece.kind == "cut" else pieces[-1].text + piece.text
            pieces[-1] = Piece(joined, piece.kind)
        else:
            pieces.append(piece)
    return pieces
