"""The shape of the code: imports point downwards, heavy libraries stay where they belong, docs are what is true."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bertvision"
FAMILIES = ("tasks", "backbones", "heads", "metrics", "stores")
LEVELS = [
    ("errors", "types", "registry", "options", "progress", "randomness", "kinds", "states", "spans", "runs"),
    FAMILIES,
    ("ensembling",),
    ("training",),
    ("model", "show"),
    ("evaluation", "league", "analysis"),
    ("reports", "cutting", "reproduction"),
    ("cli",),
    ("__init__", "__main__"),
]
OWNERS = {"transformers": ("backbones",), "accelerate": ("training",), "rich": ("show",), "typer": ("cli",),
          "datasets": ("tasks",), "sklearn": ("metrics", "heads"), "scipy": ("metrics", "heads"),
          "tqdm": ("progress",), "plotly": ("reports",), "matplotlib": ("reproduction",)}  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def unit(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Every module that a file imports, wherever in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path: Path) -> None:
    level = next(i for i, names in enumerate(LEVELS) if unit(path) in names)
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top != "bertvision" or not rest:
            continue
        other = rest.split(".")[0]
        if other in ("UserError", "Model", "Run", unit(path)) or not any(other in names for names in LEVELS):
            continue
        assert other in [n for names in LEVELS[:level] for n in names] or (level == 0 and other in LEVELS[0]), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_each_heavy_library_has_a_home(path: Path) -> None:
    for name in imports(path):
        assert unit(path) in OWNERS.get(name.split(".")[0], (unit(path),)), name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_file_is_longer_than_four_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "rich.table")
    code = f"import sys, bertvision, bertvision.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_new_head_is_one_file(tmp_path: Path) -> None:
    """The example of docs/adding.md, in a file of its own, is listed, trained and kept, with no other file touched."""
    code = f"""
import sys, bertvision, bertvision.heads
bertvision.heads.__path__.append({str(tmp_path)!r})
from bertvision import cli
sys.argv = ["bertvision"] + {["fit", "table", "--train", str(tmp_path / "t.csv"), "--backbone", "tiny", "--heads", "largest", "--out", str(tmp_path / "run"), "--json"]!r}
cli.main()
"""  # noqa: E501
    example = (ROOT / "docs" / "adding.md").read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "largest.py").write_text(example)
    rows = "".join(f"{'good' if i % 2 else 'bad'} {i},{i % 2}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest+polish" in done.stdout
