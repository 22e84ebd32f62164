"""A report as Markdown: the same sections and tables; figures of one series as bars, others left to the page."""

import re

from bertvision.analysis import Table
from bertvision.reports.formats import SHARES, grid, number
from bertvision.reports.parts import Cards, Code, Found, Item, Piece, Section

BAR = 32
BLOCKS = " ▏▎▍▌▋▊▉"  # eighths
# Analysis -> (the column that names a bar, the one that is its length, what a row must say to be of the series).
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
    blocks = [f"# {_plain(title)}"]
    for section in sections:
        blocks.append(f"{'#' * (section.level + 1)} {_plain(section.title)}")
        blocks += [_paragraph(paragraph) for paragraph in section.paragraphs]
        blocks += [block for item in section.items for block in _item(item)]
    return "\n\n".join(blocks) + "\n"


def _item(item: Item) -> list[str]:
    if isinstance(item, Found):
        bars = [chart for table in item.drawn if (chart := _bars(item.name, table))]
        return bars + [block for table in item.tables for block in _table(table)]
    if isinstance(item, Table):
        return _table(item)
    if isinstance(item, Cards):
        return _cards(item)
    if isinstance(item, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", item.text)), default=0))
        return [f"{_plain(item.label)}:", f"{fence}\n{item.text}\n{fence}"]
    return []  # facts are in the sentences before them


def _table(table: Table) -> list[str]:
    shown = grid(table)
    rows = [_row([cell.text for cell in row]) for row in shown.rows[:LONGEST]]
    rules = _row(["---:" if numeric else "---" for numeric in shown.numeric], escaped=True)
    more = len(shown.rows) - LONGEST
    rest = [f"({more} more rows; the HTML report and `bertvision analyse --json` have them.)"] if more > 0 else []
    return [*_heading(table.title, table.note), "\n".join([_row(shown.headers), rules, *rows]), *rest]


def _row(cells: list[str], escaped: bool = False) -> str:
    return f"| {' | '.join(cells if escaped else map(_plain, cells))} |"


def _heading(title: str, note: str) -> list[str]:
    return [f"**{_plain(title)}**" + (f" {_paragraph(note)}" if note else "")]


def _bars(name: str, table: Table) -> str:
    """A bar per row, from zero to the largest, where the rows are one series of numbers above zero."""
    label, value, wanted = BARS.get(name, ("", "", {}))
    rows = [row for row in table.rows if all(row.get(key) == text for key, text in wanted.items())]
    if not rows or value not in rows[0] or len({row[label] for row in rows}) < len(rows):
        return ""
    top = max(row[value] for row in rows)
    if top <= 0:
        return ""
    names = [f"{row[label]:.0%}" if label in SHARES else str(row[label]) for row in rows]
    width = max(map(len, names))
    lines = [f"{name:>{width}} {_bar(row[value] / top):<{BAR}} {number(row[value])}"
             for name, row in zip(names, rows, strict=True)]  # fmt: skip
    series = f" ({wanted['role']})" if wanted else ""
    return f"**{_plain(table.title)}**{series}, by {label}:\n\n```\n" + "\n".join(lines) + "\n```"


def _bar(share: float) -> str:
    eighths = round(max(0.0, share) * BAR * 8)
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def _cards(found: Cards) -> list[str]:
    blocks = _heading(found.title, found.note)
    if any(piece.kind in ("right", "both") for card in found.cards for _, pieces in card.texts for piece in pieces):
        blocks[0] += " In contexts **bold** is the right answer, _italics_ the one that was given."
    for card in found.cards:
        lines = [f"{name}: {''.join(map(_piece, pieces))}" for name, pieces in card.texts]
        lines += [f"{label}: {_plain(value)}" for label, value, _ in card.lines]
        first, *rest = (f"  - {line}" for line in lines)
        blocks.append("\n".join([first[2:], *rest]))
    return blocks


def _piece(piece: Piece) -> str:
    text = _plain(piece.text)
    marks = {"right": "**", "said": "_", "both": "**_"}.get(piece.kind, "")
    return f"{marks}{text}{marks[::-1]}"


def _paragraph(text: str) -> str:
    """Plain text, in which `...` stands for code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") and len(part) > 1 else _plain(part) for part in parts)


def _plain(text: str) -> str:
    """As it stands: no character of it is markup, and it stays on one line."""
    flat = " ".join(text.split("\n")).replace("\r", " ")
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)
