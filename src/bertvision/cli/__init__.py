"""The command line: the only place that exits or reads argv. Heavy imports wait until they are needed."""

import inspect
import os
import sys

import typer

from bertvision.cli import analysing, asking, listing, reporting, storing, training  # noqa: F401  (their commands)
from bertvision.cli.app import app
from bertvision.errors import UserError

ORDER = (
    "fit demo predict evaluate compare league report analyse cut reproduce score extract train plan ls show"
).split()
app.registered_commands.sort(key=lambda command: ORDER.index(command.name or command.callback.__name__))  # type: ignore[union-attr]


def reference() -> str:
    """docs/cli.md: every command, argument and option, from the program itself."""
    group = typer.main.get_command(app)
    lines = ["# Command line", "", "Made by `make docs`; a test keeps it in step with the program.", ""]
    commands = dict(group.commands)  # type: ignore[attr-defined]
    for name, inner in list(commands.items()):
        commands |= {f"{name} {part}": command for part, command in getattr(inner, "commands", {}).items()}
    for name, command in commands.items():
        if hasattr(command, "commands"):
            continue
        lines += [f"## bertvision {name}", "", inspect.cleandoc(command.help or ""), ""]
        lines += ["| option | meaning | default |", "|---|---|---|"]
        for parameter in command.params:
            shown = "" if parameter.default is None or parameter.default is False else f"`{parameter.default}`"
            spelled = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name.upper()
            lines.append(f"| `{spelled}` | {getattr(parameter, 'help', '') or ''} | {shown} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Run the command line; a user's mistake is one message and exit code 1, a traceback only with --debug."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        app()
    except UserError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"Error: {error}", err=True)
        sys.exit(1)
