"""Commands that study runs: analyse, cut, reproduce."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, RunArgument, app, print_json, taking_options
from bertvision.errors import UserError

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
        bool, typer.Option("--deep", help="Also those that train heads or run the encoder (minutes). Their results are kept.")
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
    if json:
        print_json({run: plain(tables) for run, tables in found.items()})
        return
    from bertvision import show

    for run, tables in found.items():
        for name, several in tables.items():
            for table in several:
                show.analysis(run if len(runs) > 1 else "", name, table.title, table.note, table.rows)


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
    if json:
        print_json({"run": str(made.path)} | found.as_dict())
        return
    from bertvision import show

    show.cut(str(made.path), found)


@app.command()
@taking_options("data", "backbone", "limit", "dev_limit", "epochs")
def reproduce(
    what: Annotated[str, typer.Argument(help="squad2, squad2-answerable or glue.")],
    heads: Annotated[
        str | None, typer.Option(help="Heads to train instead of the experiment's own (cheaper).")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Random seeds, comma-separated; scores are means over them.")] = "0",
    out: Annotated[
        str, typer.Option(help="Folder of the runs. Finished ones are reused, others resumed.")
    ] = "runs/reproduce",
    write: Annotated[
        Path | None,
        typer.Option(
            help="Markdown file to put the tables in, between two comments that are added if missing; figures go beside it."
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
    **scale: Any,
) -> None:
    """Run the paper's experiments at the given scale, and print its tables beside ours. Rerun it to continue.

    Example: `bertvision reproduce squad2 --data SQuAD2/ --limit 8000 --dev-limit 2000 --epochs 1`
    """
    if not all(part.strip().isdigit() for part in seeds.split(",")):
        raise UserError(f"--seeds must be numbers, such as 0,1,2; got '{seeds}'.")
    if write is not None and (write.is_dir() or not write.parent.is_dir()):
        raise UserError(f"--write must be a file in an existing folder; got '{write}'.")
    from bertvision.analysis import Table
    from bertvision.progress import Progress
    from bertvision.reproduction import drawing
    from bertvision.reproduction.document import write as write_tables
    from bertvision.reproduction.plan import Plan
    from bertvision.reproduction.tables import reproduce as run_experiments

    plan = Plan(**scale, heads=heads, seeds=tuple(int(part) for part in seeds.split(",")), out=out)
    if write is not None:
        drawing.check()
    shown = run_experiments(what, plan, Progress(quiet=json))
    if write is not None:
        scale["backbone"] = Path(scale["backbone"]).name
        given = [
            f"--{name.replace('_', '-')} {value}"
            for name, value in scale.items()
            if value is not None and name != "data"
        ]
        command = " ".join(["bertvision reproduce", what, "--data FOLDER", *given, f"--seeds {seeds}"])
        write_tables(
            write, f"reproduce {what} {scale['backbone']}", command + (f" --heads {heads}" if heads else ""), shown
        )
    tables = [table for table in shown if isinstance(table, Table)]
    if json:
        print_json([asdict(table) for table in tables])
        return
    from bertvision import show

    for table in tables:
        show.analysis("", what, table.title, table.note, table.rows)
