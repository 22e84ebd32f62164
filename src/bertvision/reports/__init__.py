"""Reports: the results of one or more finished runs in one file.

>>> make(["runs/squad2"], "squad2.html")
"""

import os
from collections.abc import Sequence
from pathlib import Path

from bertvision.errors import UserError

FORMATS = ("html", "md")


def make(references: Sequence[str | Path], out: str | Path | None = None, format: str | None = None) -> Path:
    """Write the report and return its path. Without `format`, the suffix of `out` decides."""
    if format is not None and format not in FORMATS:
        raise UserError(f"--format must be one of {', '.join(FORMATS)}; got '{format}'.")
    path = Path(out) if out is not None else Path(f"report.{format or FORMATS[0]}")
    chosen = format or ("md" if path.suffix.lower() in (".md", ".markdown") else "html")
    if path.is_dir():
        raise UserError(f"--out '{path}' is a folder. Name a file, e.g. '{path / f'report.{chosen}'}'.")
    if not path.parent.is_dir():
        raise UserError(f"--out '{path}': the folder '{path.parent}' does not exist. Create it first.")
    from bertvision.reports.content import title_of, written
    from bertvision.reports.findings import findings
    from bertvision.reports.markdown import markdown
    from bertvision.reports.page import library, page

    if chosen == "html":
        library()  # raises before the work if plotly is not installed
    found = findings(references)
    text = (page if chosen == "html" else markdown)(title_of(found), written(found))
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_text(text, encoding="utf-8", errors="replace")  # texts of users may contain half a surrogate pair
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"--out '{path}' cannot be written: {error.strerror}.") from None
    return path
