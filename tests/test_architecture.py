"""The shape of the code: imports point downwards, inside folders too; heavy libraries stay where they belong."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bertvision"
# From the ground up: a module may import only what is listed before it. A folder's files are listed in its order.
ORDER = """
errors locks types registry progress randomness interrupts options recipe
metrics: __init__ glue squad intervals
kinds: __init__ labels spans
tasks: __init__ reading sampling weights coverage table memory glue squad invented demo
words: __init__ features linear model
backbones: __init__ encoder tokenise digest packaged tiny
stores: __init__ codec place format writer reader convert
states: __init__ hidden batches passes sources
heads: dropout base __init__ blocks pooling adapter across_layers ridge prototypes closed_form
heads: embedding variants description
records formats
runs: __init__ predictions directory checkpoints card
prepare
inference: __init__ answer select official evaluate model shards extract
training: __init__ stacking head_trainer lead deadline threads loop planner reported polish shared
training: marks cross_fit measuring budget provenance stored fit
league
analysis: __init__ evidence errors answers calibration curves probe layers depth transfer conduct
cutting
reports: parts plotting figures excerpts findings summary content markdown page __init__
show api
cli: app asking training storing analysing listing reporting __init__
__init__ __main__
"""
UPWARDS = {("runs.directory", "inference.model")}  # Run.model: a convenience for users
OWNERS = {
    "transformers": ("backbones",), "accelerate": ("training",), "rich": ("show",), "typer": ("cli",),
    "datasets": ("tasks",), "sklearn": ("metrics", "heads", "words", "analysis"),
    "scipy": ("metrics", "heads", "words"),
    "tqdm": ("progress",), "plotly": ("reports",), "jinja2": ("reports",), "huggingface_hub": ("runs",),
    "matplotlib": (),
}  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def listed() -> list[str]:
    """The modules of ORDER, from the ground up."""
    found: list[str] = []
    for line in ORDER.strip().splitlines():
        folder, colon, names = line.rpartition(":")
        for name in names.split():
            found.append(f"{folder}.{name}".removesuffix(".__init__") if colon else name)
    return found


def module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports when it runs, wherever in the file; not those for type checkers only."""
    for node in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from nodes(child)


def own(name: str, known: list[str]) -> str | None:
    """The module of ours that an imported name is in: `bertvision.heads.base.Head` is in heads.base."""
    if not name.startswith("bertvision."):
        return None
    rest = name.removeprefix("bertvision.")
    return next((rest[:end] for end in (len(rest), rest.rfind(".")) if rest[:end] in known), None)


def test_every_module_has_its_place_in_the_order() -> None:
    assert sorted(listed()) == sorted(map(module, FILES))


def test_imports_point_downwards_inside_folders_too() -> None:
    known = listed()
    wrong = []
    for path in FILES:
        here = module(path)
        for name in imports(path):
            other = own(name, known)
            package = other is not None and here.startswith(f"{other}.")  # every module may use its own package
            if other and other != here and not package and known.index(other) > known.index(here):
                wrong.append((here, other))
    assert set(wrong) == UPWARDS


def test_inference_needs_no_training() -> None:
    code = (
        "import sys, bertvision.inference.model; print([m for m in sys.modules if m.startswith('bertvision.training')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_heavy_library_has_a_home() -> None:
    wrong = [
        (module(path), name)
        for path in FILES
        for name in imports(path)
        if (homes := OWNERS.get(name.split(".")[0])) is not None and module(path).split(".")[0] not in homes
    ]
    assert wrong == []


def test_no_file_is_longer_than_four_hundred_lines_and_no_function_than_sixty() -> None:
    long = []
    for path in [*FILES, *(ROOT / "paper").rglob("*.py")]:
        text = path.read_text()
        if len(text.splitlines()) > 400:
            long.append(path.name)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60:
                long.append(f"{path.name}: {node.name}")
    assert long == []


def test_the_tree_in_the_docs_is_the_tree_of_the_source() -> None:
    """docs/architecture.md prints every folder and every module once."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("```text\n")[2].partition("```")[0]
    missing = [
        name for path in FILES for name in [path.stem if path.stem != "__init__" else path.parent.name]
        if not path.stem.startswith("__main") and name not in tree
    ]  # fmt: skip
    assert missing == []


def test_importing_the_package_and_its_command_line_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "rich.table")
    code = f"import sys, bertvision, bertvision.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_new_head_is_one_file(tmp_path: Path) -> None:
    """The example of docs/adding.md, in a file of its own, is listed, trained and saved, with no other file touched."""
    arguments = ["fit", str(tmp_path / "t.csv"), "--backbone", "tiny", "--heads", "largest", "--json"]
    code = f"""
import sys, bertvision, bertvision.heads
bertvision.heads.__path__.append({str(tmp_path)!r})
from bertvision import cli
sys.argv = ["bertvision"] + {[*arguments, "--out", str(tmp_path / "run")]!r}
cli.main()
"""
    example = (ROOT / "docs" / "adding.md").read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "largest.py").write_text(example)
    rows = "".join(f"{'good' if i % 2 else 'bad'} {i},{i % 2}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("text,label\n" + rows)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "largest+polish" in done.stdout
