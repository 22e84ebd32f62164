"""The application that commands register with, and the arguments that several of them share."""

import inspect
import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any

import typer

from bertvision.options import Request

app = typer.Typer(
    name="bertvision",
    help="Partial fine-tuning with small heads on every layer's hidden states.\n\n"
    "Start with `bertvision demo`, or `bertvision fit table --train reviews.csv`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
NullThreshold = Annotated[
    float | None,
    typer.Option(help="Spans: no answer where its probability is above this. Default: what was tuned in training."),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory; RUN@3/10 means that mark of it.")]


def taking_fit_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: give a command a command-line option for these fields of Request, or for all of them."""
    return lambda command: _taking(command, [f for f in fields(Request) if not names or f.name in names])


def _taking(command: Callable[..., None], entries: list[Field[Any]]) -> Callable[..., None]:
    own = list(inspect.signature(command).parameters.values())
    made = []
    for entry in entries:
        extra: Any = typer.Argument if entry.name == "task" else typer.Option
        default = ... if entry.name == "task" else entry.default
        note = extra(help=entry.metadata["help"], show_default=default not in (None, ...))
        assert entry.default is not MISSING
        made.append(
            inspect.Parameter(
                entry.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is ... else default,
                annotation=Annotated[entry.type, note],
            )
        )
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]
    arguments = [p for p in own if p.default is p.empty]  # what has to be given stands first
    signature = inspect.Signature([*arguments, *made, *[p for p in own if p not in arguments]])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return command


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
