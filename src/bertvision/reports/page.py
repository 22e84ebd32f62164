"""A report as one HTML file with its style, script, plotly.js and figures; it loads nothing from a network."""

import json
import re
import zlib
from base64 import b85encode
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any

from bertvision import __version__
from bertvision.errors import UserError
from bertvision.formats import Row, grid
from bertvision.reports.figures import draw
from bertvision.reports.parts import Facts, Plot, Section
from bertvision.reports.plotting import Drawing

Blocks = list[tuple[str, Any]]  # (macro of templates/items.html.j2, its argument)


@dataclass(frozen=True)
class Placed:
    """A figure on the page, with its number among all figures and the rows of the table below it."""

    drawing: Drawing
    index: int
    wide: bool
    rows: list[Row]


@lru_cache
def library() -> str:
    """plotly.js, packed. Raises `UserError` if a library that HTML reports need is not installed."""
    try:
        import jinja2  # noqa: F401
        from plotly.offline import get_plotlyjs
    except ImportError:
        message = "HTML reports need plotly and Jinja2: pip install 'bertvision[report]', or use --format md."
        raise UserError(message) from None
    return packed(str(get_plotlyjs()))


def packed(text: str) -> str:
    """Compressed text in printable ASCII, for page.js to unpack: plotly.js shrinks from 4.8 to 1.8 MB.

    Base 85 is a sixteenth smaller than base 64. Its `<` becomes `,`, which it does not use: no text can end the script.
    """
    return b85encode(zlib.compress(text.encode(), 9)).decode().replace("<", ",")


def page(title: str, sections: list[Section]) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape
    from plotly.utils import PlotlyJSONEncoder

    def code(text: str) -> Markup:
        """Plain text in which `...` is code."""
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))

    def digest(text: str) -> Markup:
        return Markup("<code>{}</code>").format(text) if re.fullmatch(r"[0-9a-f]{64}", text) else escape(text)

    templates = Environment(
        loader=PackageLoader("bertvision.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"code": code, "digest": digest, "grid": grid}
    figures: list[Row] = []
    shown = [_shown(section, figures) for section in sections]
    folder = files("bertvision.reports")
    style, script = (Markup(folder.joinpath(name).read_text("utf-8")) for name in ("page.css", "page.js"))
    return templates.get_template("page.html.j2").render(
        title=title,
        sections=shown,
        version=__version__,
        style=style,
        script=script,
        figures=Markup(packed(json.dumps(figures, cls=PlotlyJSONEncoder))),  # NaN becomes null
        plotly=Markup(library()),
    )


def _shown(section: Section, figures: list[Row]) -> dict[str, Any]:
    """A section for the template; its figures are appended to `figures`."""
    blocks: Blocks = []
    for item in section.items:
        if isinstance(item, Plot):
            blocks += _plot(item, figures)
        else:
            blocks.append((type(item).__name__.lower(), item))
    halves = [at for at, (kind, item) in enumerate(blocks) if kind == "figure" and not item.wide]
    if len(halves) % 2:  # half-width figures are in pairs: the last of an odd number takes the whole width
        blocks[halves[-1]] = ("figure", replace(blocks[halves[-1]][1], wide=True))
    summary = section.anchor == "summary" or any(isinstance(item, Facts) for item in section.items)
    return vars(section) | {"blocks": blocks, "summary": summary}


def _plot(plot: Plot, figures: list[Row]) -> Blocks:
    """Each figure with its table folded below it; tables without a figure are shown open."""
    blocks: Blocks = []
    for table, drawn in zip_longest(plot.tables, plot.drawn):
        drawing = draw(plot.name, drawn) if drawn else None
        if drawing is not None:
            blocks.append(("figure", Placed(drawing, len(figures), drawing.wide, table.rows if table else [])))
            figures.append(drawing.figure)
        elif table:
            blocks.append(("table", table))
    return blocks
