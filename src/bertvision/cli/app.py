"""The application that commands register with, and the arguments that several of them share."""

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any

import typer

from bertvision import __version__
from bertvision.errors import UserError
from bertvision.options import OUTPUT, Request

app = typer.Typer(
    name="bertvision",
    help="Partial fine-tuning of encoders, with small heads on the hidden states of every layer.\n\n"
    "Start with `bertvision demo`, or `bertvision fit reviews.csv`.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.", rich_help_panel=OUTPUT)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the unfinished run at --out.", rich_help_panel=OUTPUT)]
NullThreshold = Annotated[
    float | None,
    typer.Option(help="Spans: answer nothing if the probability of no answer is above this. Default: as tuned."),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory; RUN@3/10 means that mark of it.")]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"bertvision {__version__}")
        raise typer.Exit


@app.callback()
def options_of_all(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def taking_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: give a command a command-line option for these fields of Request, or for all of them."""
    return lambda command: _taking(command, [f for f in fields(Request) if not names or f.name in names], not names)


def _taking(command: Callable[..., None], entries: list[Field[Any]], panels: bool) -> Callable[..., None]:
    own = list(inspect.signature(command).parameters.values())
    made = [_parameter(entry, panels) for entry in entries]
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]
    arguments = [p for p in own if p.default is p.empty]  # required ones come first
    signature = inspect.Signature([*arguments, *made, *[p for p in own if p not in arguments]])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return command


def _parameter(entry: Field[Any], panels: bool) -> inspect.Parameter:
    assert entry.default is not MISSING
    required = entry.name == "task"
    panel = entry.metadata["panel"] if panels else None
    note: Any
    if required:
        note = typer.Argument(metavar="TASK|FILE", help=f"{entry.metadata['help']} A file means `table --train FILE`.")
    else:
        note = typer.Option(help=entry.metadata["help"], show_default=entry.default is not None, rich_help_panel=panel)
    default = inspect.Parameter.empty if required else entry.default
    kind: Any = entry.type
    return inspect.Parameter(
        entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, note]
    )


def request_of(**options: Any) -> Request:
    """The request of a command line; `fit reviews.csv` means `fit table --train reviews.csv`."""
    from bertvision.tasks.reading import named

    found = named(options["task"]) if "task" in options else {}
    if "train" in found and options.get("train") is not None:
        raise UserError(f"Give the file once: '{options['task']}' or --train '{options['train']}'.")
    return Request(**options | found)


def emit(as_json: bool, value: Any, display: Callable[[Any], None]) -> None:
    """Print a result: as JSON, or as `display` shows it with `bertvision.show`, which loads only then."""
    if as_json:
        typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
    else:
        from bertvision import show

        display(show)
