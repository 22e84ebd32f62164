"""What users read is true: commands and flags exist, links lead somewhere, and the words are plain."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parents[1]
NOTES = ROOT / "docs" / "lab-notes"  # history: shows options that no longer exist
CURRENT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path for path in sorted((ROOT / "docs").rglob("*.md")) if NOTES not in path.parents
]
ALL = CURRENT + sorted(NOTES.glob("*.md"))
ODD = re.compile(
    r"made anew|computed anew|afresh|so-manieth|of before\b|is none of:|needs but|says little|whose food|no frequencies"
    r"|is said so|on the way to it|besides\.$",
    re.IGNORECASE | re.MULTILINE,
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"(?ms)^ *```.*?^ *```|`[^`\n]*`", "", text)


def commands(text: str) -> Iterator[str]:
    """Every `bertvision ...` in a code block, one per line, or quoted in a sentence."""
    for block in re.findall(r"(?ms)^ *```[a-z]*\n(.*?)^ *```", text):
        yield from (line.strip() for line in block.splitlines() if line.strip().startswith("bertvision "))
    yield from re.findall(r"`(bertvision [^`\n]+)`", re.sub(r"(?ms)^ *```.*?^ *```", "", text))


def unknown_in(line: str) -> list[str]:
    """The command and flags of a line that the program does not have."""
    from bertvision.cli.app import app

    program = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while words and not words[0].startswith("-") and hasattr(program, "commands"):
        if words[0] not in program.commands:
            return [] if words[0].isupper() else [words[0]]  # `bertvision COMMAND --help` is any command
        program = program.commands[words.pop(0)]
    known = {flag for parameter in program.params for flag in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    return [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    from bertvision.cli import reference

    assert (ROOT / "docs" / "cli.md").read_text() == reference(), "run `make docs`"


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


@pytest.mark.parametrize("path", CURRENT, ids=shown)
def test_commands_and_flags_exist(path: Path) -> None:
    wrong = {line: bad for line in commands(path.read_text()) if (bad := unknown_in(line))}
    assert wrong == {}


def test_a_wrong_flag_would_be_found() -> None:
    page = (
        "Text with `bertvision fit x --no-such`.\n\n```\nbertvision nonsense\nbertvision ls heads  # --comment\n```\n"
    )
    assert [unknown_in(line) for line in commands(page)] == [["nonsense"], [], ["--no-such"]]


@pytest.mark.parametrize("path", ALL, ids=shown)
def test_links_lead_to_files(path: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(without_code(path.read_text()))]
    missing = [to for to in targets if to and "://" not in to and not (path.parent / to).exists()]
    assert missing == []


@pytest.mark.parametrize("path", ALL, ids=shown)
def test_the_english_is_plain(path: Path) -> None:
    assert ODD.findall(path.read_text()) == []


def test_pages_ask_for_nothing_from_the_network() -> None:
    """Neither pages nor drawings, styles or scripts of the site load anything from elsewhere."""
    remote = re.compile(r"""(?:src|xlink:href)=["']https?:|url\(["']?https?:|!\[[^\]]*\]\(https?:|@import""")
    own = [path for kind in ("md", "svg", "css", "js") for path in (ROOT / "docs").rglob(f"*.{kind}")]
    assert [shown(path) for path in own if remote.search(path.read_text())] == []


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


def test_the_reference_of_the_package_is_complete() -> None:
    import bertvision

    described = re.findall(r"(?m)^::: bertvision\.(\w+)$", (ROOT / "docs" / "python.md").read_text())
    assert sorted(described) == sorted(bertvision.__all__)
