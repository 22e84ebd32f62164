"""Tables and figures into a Markdown file, between two marks, so that the text around them stays."""

import os
from pathlib import Path

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.reproduction.drawing import Figure, draw

FIGURES = "figures"  # the folder beside the file


def write(path: Path, name: str, command: str, shown: list[Table | Figure]) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`, or append both; figures lie beside the file."""
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except OSError as error:
        raise UserError(f"--write '{path}' cannot be read: {error.strerror}.") from None
    if (first in text) != (last in text) or text.count(first) > 1:
        raise UserError(f"--write '{path}': it should have '{first}' and '{last}' once each, or neither.")
    parts = [f"Made by `{command}`."]
    for one in shown:
        if isinstance(one, Table):
            parts.append(markdown(one))
        else:
            file = f"{FIGURES}/{name.removeprefix('reproduce ').replace(' ', '-')}-{one.name}.svg"
            (path.parent / FIGURES).mkdir(exist_ok=True)
            draw(one, path.parent / file)
            parts.append(f"![{one.title}]({file})")
    body = "\n\n".join(parts)
    if first in text:
        before, _, rest = text.partition(first)
        text = f"{before}{first}\n{body}\n{last}{rest.partition(last)[2]}"
    else:
        text = f"{text.rstrip()}\n\n{first}\n{body}\n{last}\n"
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def markdown(table: Table) -> str:
    names = list(table.rows[0])
    lines = [f"**{table.title}.** {table.note}", "", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in table.rows:
        cells = ["-" if row[name] is None else str(row[name]).replace("|", r"\|") for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
