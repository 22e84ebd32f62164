"""Tables and figures into a Markdown file, between two marks, so that the text around them stays."""

import os
from pathlib import Path

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.reproduction.pictures import Figure, draw

FIGURES = "figures"  # the folder beside the file


def write(path: Path, name: str, command: str, found: list[Table | Figure]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`, or append both; figures lie beside the file."""
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise UserError(f"--write '{path}' cannot be read: {error.strerror}.") from None
    if (first in text) != (last in text) or text.count(first) > 1:
        raise UserError(f"--write '{path}': it should have '{first}' and '{last}' once each, or neither.")
    body = "\n\n".join([f"Made by `{command}`.", *map(markdown, found)])
    for figure in found:
        if isinstance(figure, Figure):
            (path.parent / FIGURES).mkdir(exist_ok=True)
            draw(figure, path.parent / FIGURES / f"{figure.name}.svg")
    if first in text:
        before, _, rest = text.partition(first)
        text = f"{before}{first}\n{body}\n{last}{rest.partition(last)[2]}"
    else:
        text = f"{text.rstrip()}\n\n{first}\n{body}\n{last}\n"
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def markdown(table: Table | Figure) -> str:
    if isinstance(table, Figure):
        return f"![{table.title}]({FIGURES}/{table.name}.svg)"
    names = list(table.rows[0])
    lines = [f"**{table.title}.** {table.note}", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in table.rows:
        cells = ["-" if row[name] is None else str(row[name]).replace("|", r"\|") for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
