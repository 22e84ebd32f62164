"""The commands of this package: `bertvision reproduce` and `bertvision store import`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, app, emit, taking_options
from bertvision.cli.storing import Repair, print_info, store_app
from bertvision.errors import UserError


@app.command()
@taking_options("data", "backbone", "limit", "dev_limit", "epochs")
def reproduce(
    what: Annotated[str, typer.Argument(help="squad2, squad2-answerable or glue.")],
    heads: Annotated[str | None, typer.Option(help="Heads to train instead of the experiment's own (cheaper).")] = None,
    seeds: Annotated[str, typer.Option(help="Random seeds, comma-separated; scores are means over them.")] = "0",
    out: Annotated[
        str, typer.Option(help="Folder of the runs. Finished ones are reused, others resumed.")
    ] = "runs/reproduce",
    write: Annotated[
        Path | None,
        typer.Option(
            help="Markdown file to put the tables in, between two comments. Figures go into a folder beside it."
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
    from bertvision_paper import document, drawing
    from bertvision_paper.plan import Plan
    from bertvision_paper.tables import reproduce as run_experiments

    plan = Plan(**scale, heads=heads, seeds=tuple(int(part) for part in seeds.split(",")), out=out)
    if write is not None:
        drawing.check()
    shown = run_experiments(what, plan, Progress(quiet=json))
    if write is not None:
        name = Path(plan.backbone).name
        given = scale | {"data": "FOLDER", "backbone": name, "seeds": seeds, "heads": heads}
        options = [f"--{key.replace('_', '-')} {value}" for key, value in given.items() if value is not None]
        document.write(write, f"reproduce {what} {name}", " ".join(["bertvision reproduce", what, *options]), shown)
    tables = [table for table in shown if isinstance(table, Table)]
    emit(json, [asdict(table) for table in tables], lambda show: show.analyses(("", what, table) for table in tables))


@store_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="HDF5 with states (N, T, D, L) or (N, D, L), and a label for each.")],
    out: Annotated[str, typer.Option(help="The store to write.")],
    kind: Annotated[str, typer.Option(help="`class` or `score`.")],
    dev: Annotated[Path | None, typer.Option(help="A second file like it, to report on.")] = None,
    states: Annotated[str, typer.Option(help="Name of the dataset of states.")] = "hidden_states",
    labels: Annotated[str, typer.Option(help="Name of the dataset of labels.")] = "labels",
    mask: Annotated[str, typer.Option(help="Name of the dataset of masks, if there is one.")] = "attention_mask",
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16 or int8.")] = "fp16",
    repair: Repair = False,
    debug: Debug = False,
) -> None:
    """Make a store from HDF5 files of hidden states, padded and in float32, as the original project wrote them."""
    from bertvision.progress import Progress
    from bertvision_paper.hdf5 import import_hdf5

    print_info(import_hdf5(file, dev, kind, (states, labels, mask), out, dtype, repair, Progress()), False)
