"""Commands that study runs: analyse, cut."""

from typing import Annotated

import typer

from bertvision.cli.app import Debug, Json, RunArgument, app, emit

Tolerance = Annotated[
    float, typer.Option(help="Points (hundredths of the metric) that may be lost on held-out data by cutting.")
]


@app.command()
def analyse(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run directories; RUN@3/10 means that mark.")],
    only: Annotated[
        str | None,
        typer.Option(help="Names of `bertvision ls analyses`, comma-separated. Default: all that are quick."),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also those that train heads or run the encoder (minutes). Their results are kept."
        ),
    ] = False,
    tolerance: Tolerance = 0.5,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """What a run shows: errors, calibration, layers, and where the encoder could be cut.

    Examples:

    * `bertvision analyse runs/squad2 --only overlap,second,questions`

    * `bertvision analyse runs/sts-b --only depth --tolerance 0.5` (trains heads on the first k layers, for every k)

    `bertvision report` draws the results on a page.
    """
    from bertvision.analysis.conduct import analyse as conduct
    from bertvision.analysis.conduct import plain
    from bertvision.progress import Progress

    names = [name.strip() for name in only.split(",")] if only else []
    found = {run: conduct(run, names, deep=deep, tolerance=tolerance, progress=Progress(quiet=json)) for run in runs}
    title = {run: run if len(runs) > 1 else "" for run in runs}
    listed = [(title[run], name, table) for run, of in found.items() for name, tables in of.items() for table in tables]
    emit(json, {run: plain(tables) for run, tables in found.items()}, lambda show: show.analyses(listed))


@app.command()
def cut(
    run: RunArgument,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", "--layers", min=1, help="Transformer layers to keep. Default: as few as --tolerance allows."
        ),
    ] = None,
    tolerance: Tolerance = 0.5,
    heads: Annotated[str | None, typer.Option(help="Heads to fit on the shorter encoder. Default: the run's.")] = None,
    epochs: Annotated[str, typer.Option(help="Fine-tune the shorter encoder for this long first.")] = "0",
    out: Annotated[str | None, typer.Option(help="Run directory to create. Default: RUN-K-layers.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep only the first layers of a run's encoder and train heads on them: a smaller, faster model.

    Example: `bertvision cut runs/sts-b --tolerance 0.5`
    """
    from bertvision.cutting import cut as cut_run
    from bertvision.progress import Progress

    made = cut_run(run, depth, tolerance=tolerance, heads=heads, epochs=epochs, out=out, progress=Progress(quiet=json))
    found = made.record.cut
    assert found is not None
    emit(json, {"run": str(made.path)} | found.as_dict(), lambda show: show.cut(str(made.path), found))
