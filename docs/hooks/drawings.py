"""Inline the hand-written drawings, so that their lines and letters take the colours of the page, light or dark."""

import re
from pathlib import Path
from typing import Any

IMAGE = re.compile(r'<p><img alt="([^"]*)" src="[^"]*drawings/([\w-]+\.svg)"[^>]*></p>')


def on_page_content(html: str, config: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""

    def inline(found: re.Match[str]) -> str:
        words, name = found.groups()
        drawing = Path(config["docs_dir"], "drawings", name).read_text(encoding="utf-8")
        return f'<figure class="drawing" role="img" aria-label="{words}">{drawing}</figure>'

    return IMAGE.sub(inline, html)
