"""Put tables and figures into a section of a Markdown file, and leave the rest of the file unchanged."""

import os
from pathlib import Path

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.formats import markdown_table
from bertvision_paper.drawing import Figure, draw

FIGURES = "figures"  # the folder beside the file


def write(path: Path, name: str, command: str, shown: list[Table | Figure]) -> None:
    """Replace what is between `<!-- name -->` and `<!-- /name -->`, or append both. Figures go into a folder."""
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise UserError(f"--write '{path}' cannot be read: {error.strerror}.") from None
    if not text.count(first) == text.count(last) <= 1:
        raise UserError(f"--write '{path}' must contain '{first}' and '{last}' once each, or neither.")
    parts = [f"Made by `{command}`."]
    for one in shown:
        if isinstance(one, Table):
            parts += [f"**{one.title}.** {one.note}", markdown_table(one.rows)]
        else:
            file = f"{FIGURES}/{name.removeprefix('reproduce ').replace(' ', '-')}-{one.name}.svg"
            (path.parent / FIGURES).mkdir(exist_ok=True)
            draw(one, path.parent / file)
            parts.append(f"![{one.title}]({file})")
    before, found, rest = text.partition(first)
    after = rest.partition(last)[2] if found else "\n"
    start = before if found else f"{before.rstrip()}\n\n"
    aside = path.with_name(path.name + ".tmp")
    aside.write_text("\n".join([start + first, "\n\n".join(parts), last + after]), encoding="utf-8")
    os.replace(aside, path)
