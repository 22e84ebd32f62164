"""A report as one HTML file: style, script, plotly.js and figures are in it, and nothing is asked of any network."""

import json
import re
from html import escape
from importlib.resources import files
from itertools import zip_longest
from string import Template

from bertvision import __version__
from bertvision.analysis import Table
from bertvision.reports.figures import draw
from bertvision.reports.formats import Cell, grid
from bertvision.reports.parts import Card, Cards, Code, Fact, Found, Item, Piece, Section
from bertvision.reports.plotting import Drawing

LONG = 60  # characters from which a cell may break into lines


def page(title: str, sections: list[Section], plotly: str) -> str:
    """`plotly` is the text of plotly.js."""
    figures: list[Drawing] = []
    body = "\n".join(_section(section, figures) for section in sections)
    links = "".join(
        f'<li class="level-{section.level}"><a href="#{escape(section.anchor)}">{escape(section.title)}</a></li>'
        for section in sections
    )
    folder = files("bertvision.reports")
    style, script, frame = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    return Template(frame).substitute(
        title=escape(title),
        style=style,
        contents=f"<ul>{links}</ul>",
        sections=body,
        version=escape(__version__),
        # No "<" in it: nothing that a text says can end the script.
        figures=json.dumps([drawing.figure for drawing in figures], ensure_ascii=False).replace("<", "\\u003c"),
        library=plotly,
        script=script,
    )


def _section(section: Section, figures: list[Drawing]) -> str:
    kind = "summary" if any(isinstance(item, list) for item in section.items) or section.anchor == "summary" else ""
    missing = "" if kind else ' class="missing"'  # elsewhere paragraphs say what is not there
    paragraphs = "".join(f"<p{missing}>{_text(paragraph)}</p>" for paragraph in section.paragraphs)
    items = _paired("".join(_item(item, figures) for item in section.items))
    heading = f"<h2>{escape(section.title)}</h2>"
    classes = f"level-{section.level} {kind}".strip()
    return (
        f'<section id="{escape(section.anchor)}" class="{classes}">{heading}{paragraphs}'
        f'<div class="items">{items}</div></section>'
    )


def _paired(items: str) -> str:
    """Figures of half a line stand side by side; the last of an odd number gets the line for itself."""
    half = '<figure class="half">'
    if items.count(half) % 2:
        before, _, after = items.rpartition(half)
        return f'{before}<figure class="wide">{after}'
    return items


def _text(text: str) -> str:
    """Plain text, in which `...` stands for code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _item(item: Item, figures: list[Drawing]) -> str:
    if isinstance(item, Found):
        return _found(item, figures)
    if isinstance(item, Table):
        return _titled(item)
    if isinstance(item, Cards):
        return f'<div>{_caption(item.title, item.note)}<div class="cards">{"".join(map(_card, item.cards))}</div></div>'
    if isinstance(item, Code):
        return f"<div><h3>{escape(item.label)}</h3><pre>{escape(item.text)}</pre></div>"
    return f'<dl class="facts">{"".join(map(_fact, item))}</dl>'


def _found(found: Found, figures: list[Drawing]) -> str:
    """Its figures, each with the numbers folded below; tables that no figure shows stand open."""
    parts = []
    for table, drawn in zip_longest(found.tables, found.drawn):
        drawing = draw(found.name, drawn) if drawn else None
        if drawing is not None:
            parts.append(_figure(drawing, _table(table) if table else "", figures))
        elif table:
            parts.append(_titled(table))
    return "".join(parts)


def _figure(drawing: Drawing, numbers: str, figures: list[Drawing]) -> str:
    figures.append(drawing)
    folded = f'<details class="numbers"><summary>The numbers</summary>{numbers}</details>' if numbers else ""
    height = drawing.figure["layout"]["height"]
    return (
        f'<figure class="{"wide" if drawing.wide else "half"}">'
        f"<figcaption>{_caption(drawing.title, drawing.note)}</figcaption>"
        f'<div data-figure="{len(figures) - 1}" style="height: {height}px"></div>{folded}</figure>'
    )


def _caption(title: str, note: str) -> str:
    return f"<h3>{escape(title)}</h3>" + (f'<p class="note">{_text(note)}</p>' if note else "")


def _titled(table: Table) -> str:
    return f"<div>{_caption(table.title, table.note)}{_table(table)}</div>"


def _table(table: Table) -> str:
    shown = grid(table)
    kinds = [' class="number"' if numeric else "" for numeric in shown.numeric]
    head = "".join(
        f'<th scope="col" aria-sort="none"{kind}><button type="button">{escape(header)}</button></th>'
        for header, kind in zip(shown.headers, kinds, strict=True)
    )
    rows = []
    for row in shown.rows:
        cells = "".join(_cell(cell, kind, index) for index, (cell, kind) in enumerate(zip(row, kinds, strict=True)))
        rows.append(f"<tr>{cells}</tr>")
    return f'<div class="box"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _cell(cell: Cell, kind: str, index: int) -> str:
    key = f' data-key="{cell.key:g}"' if cell.key is not None else ""
    text = escape(cell.text)
    if re.fullmatch(r"[0-9a-f]{64}", cell.text):
        text = f"<code>{text}</code>"
    if not index:
        return f'<th scope="row"{key}{kind}>{text}</th>'
    long = ' class="long"' if len(cell.text) > LONG else ""
    return f"<td{key}{kind or long}>{text}</td>"


def _card(card: Card) -> str:
    texts = "".join(f'<p class="{name.replace(" ", "-")}">{_pieces(pieces)}</p>' for name, pieces in card.texts)
    lines = "".join(f"<dt>{escape(label)}</dt><dd>{_marked(value, kind)}</dd>" for label, value, kind in card.lines)
    return f'<article class="card">{texts}<dl>{lines}</dl></article>'


def _pieces(pieces: list[Piece]) -> str:
    return "".join(_marked(piece.text, piece.kind) for piece in pieces)


def _marked(text: str, kind: str) -> str:
    if kind == "cut":
        return f'<span class="cut">{escape(text)}</span>'
    return f'<mark class="{kind}">{escape(text)}</mark>' if kind else escape(text)


def _fact(fact: Fact) -> str:
    detail = f'<dd class="detail">{escape(fact.detail)}</dd>' if fact.detail else ""
    return f"<div><dt>{escape(fact.label)}</dt><dd>{escape(fact.value)}</dd>{detail}</div>"
