"""The command that writes results down for people: report."""

from typing import Annotated

import typer

from bertvision.cli.app import Debug, app


@app.command()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run directories; RUN@3/10 means that mark. Several are compared."),
    ],
    out: Annotated[
        str | None, typer.Option(help="File to write; an older report there is replaced. Default: report.html.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(help="`html` (one file, works offline) or `md`. Default: by the suffix of --out.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write what one or more runs found into one file: scores, curves, layers, errors, calibration, cost.

    Examples:

    * `bertvision report runs/squad2-minilm-l6 --out squad2.html`

    * `bertvision report runs/sts-b-frozen runs/sts-b --out both.html` (compared on the dev examples they share)

    * `bertvision report runs/sts-b --format md`
    """
    import time

    from bertvision.formats import size
    from bertvision.reports import make

    started = time.perf_counter()
    path = make(runs, out, format)
    typer.echo(f"{path}: {size(path.stat().st_size)}, made in {time.perf_counter() - started:.1f} s")
