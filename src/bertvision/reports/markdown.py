"""A report as Markdown: the same sections and tables, with figures of one series as bars."""

import re

from bertvision.analysis import Table
from bertvision.formats import SHARES, bars, markdown_table, markdown_text
from bertvision.reports.parts import Cards, Code, Item, Piece, Plot, Section

# Analysis -> (the column of labels, the column of values, what the rows of the series have in common).
BARS: dict[str, tuple[str, str, dict[str, str]]] = {
    "curve": ("epochs", "value", {"role": "selected"}),
    "less-data": ("data", "value", {}),
    "layers": ("layer", "weight", {}),
    "depth": ("depth", "value", {}),
    "without-layer": ("without", "value", {}),
    "coverage": ("coverage", "score", {"role": "selected"}),
}
LONGEST = 40  # rows of a table


def markdown(title: str, sections: list[Section]) -> str:
    blocks = [f"# {markdown_text(title)}"]
    for section in sections:
        inside = [_paragraph(paragraph) for paragraph in section.paragraphs]
        inside += [block for item in section.items for block in _item(item)]
        if inside:  # else it has only figures
            blocks += [f"{'#' * (section.level + 1)} {markdown_text(section.title)}", *inside]
    return "\n\n".join(blocks) + "\n"


def _item(item: Item) -> list[str]:
    if isinstance(item, Plot):
        charts = [chart for table in item.drawn for chart in _bars(item.name, table)]
        return charts + [block for table in item.tables for block in _table(table)]
    if isinstance(item, Table):
        return _table(item)
    if isinstance(item, Cards):
        return _cards(item)
    if isinstance(item, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", item.text)), default=0))
        return [f"{markdown_text(item.label)}:", f"{fence}\n{item.text}\n{fence}"]
    return []  # the sentences have the facts


def _table(table: Table) -> list[str]:
    more = len(table.rows) - LONGEST
    rest = [f"({more} more rows in the HTML report and in `bertvision analyse --json`.)"] if more > 0 else []
    return [_heading(table.title, table.note), markdown_table(table.rows, LONGEST), *rest]


def _heading(title: str, note: str) -> str:
    return f"**{markdown_text(title)}**" + (f" {_paragraph(note)}" if note else "")


def _bars(name: str, table: Table) -> list[str]:
    """A bar per row, if the rows are one series with a positive value."""
    label, value, wanted = BARS.get(name, ("", "", {}))
    rows = [row for row in table.rows if all(row.get(key) == text for key, text in wanted.items())]
    if not rows or value not in rows[0] or len({row[label] for row in rows}) < len(rows):
        return []
    if max(row[value] for row in rows) <= 0:
        return []
    lines = bars([(f"{row[label]:.0%}" if label in SHARES else str(row[label]), row[value]) for row in rows])
    series = f" ({wanted['role']})" if wanted else ""
    return [f"**{markdown_text(table.title)}**{series}, by {label}:", "\n".join(["```", *lines, "```"])]


def _cards(found: Cards) -> list[str]:
    heading = _heading(found.title, found.note)
    if any(piece.kind in ("right", "both") for card in found.cards for _, pieces in card.texts for piece in pieces):
        heading += " The right answer is **bold**, the given answer _italic_."
    blocks = [heading]
    for card in found.cards:
        lines = [f"{name}: {''.join(map(_piece, pieces))}" for name, pieces in card.texts]
        lines += [f"{label}: {markdown_text(value)}" for label, value, _ in card.lines]
        first, *rest = (f"  - {line}" for line in lines)
        blocks.append("\n".join([first[2:], *rest]))
    return blocks


def _piece(piece: Piece) -> str:
    text = markdown_text(piece.text)
    marks = {"right": "**", "said": "_", "both": "**_"}.get(piece.kind, "")
    return f"{marks}{text}{marks[::-1]}"


def _paragraph(text: str) -> str:
    """Plain text in which `...` is code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") and len(part) > 1 else markdown_text(part) for part in parts)
