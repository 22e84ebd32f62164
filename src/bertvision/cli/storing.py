"""Commands about stores of hidden states: extract, train, plan, and store info, verify, convert."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, app, emit, request_of, taking_options
from bertvision.cli.training import show_run
from bertvision.errors import UserError
from bertvision.options import DECIDING, Request

if TYPE_CHECKING:
    from bertvision.stores.reader import Store

StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="A store: a folder, or a URL that fsspec knows.")]
Repair = Annotated[bool, typer.Option("--repair", help="Check a finished store, and write damaged files again.")]
store_app = typer.Typer(help="Inspect a store of hidden states, check it, or write it in another number format.")
app.add_typer(store_app, name="store")


@app.command()
@taking_options(*DECIDING, "data", "train", "dev", "seed")
def extract(
    source: Annotated[str, typer.Argument(help="An encoder (as `fit --backbone`), or RUN[@MARK]: a fine-tuned one.")],
    out: Annotated[str, typer.Option(help="The store to write: a folder, or a URL that fsspec knows.")],
    split: Annotated[str, typer.Option(help="`train` (with what is held out of it), `dev`, or both.")] = "train,dev",
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16 or int8 (scaled so that outliers survive).")] = "fp16",
    views: Annotated[
        str,
        typer.Option(
            help="`tokens`, or pooled views: cls,mean and for pairs first,second. `auto`: what the task needs."
        ),
    ] = "auto",
    layers: Annotated[
        str | None, typer.Option(help="Only these, e.g. 0-3+6; 0 is the embeddings. Default: all.")
    ] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: write only this part. Parts may run anywhere, in any order.")
    ] = "1/1",
    shard_size: Annotated[int, typer.Option(help="Megabytes per file.")] = 128,
    order: Annotated[int, typer.Option(help="Seed of the order in which windows are stored.")] = 0,
    repair: Repair = False,
    json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Keep the hidden states of an encoder on disk, to train heads on them as often as you like.

    After an interruption, the same command continues where it stopped. Examples:

    * `bertvision extract minilm-l6 sts-b --data glue/ --out stores/sts-b`

    * `bertvision extract runs/squad2@3/10 squad2 --dtype int8 --out stores/squad2`
    """
    from bertvision.inference.extract import StoreOptions
    from bertvision.inference.extract import extract as write
    from bertvision.progress import Progress

    chosen = StoreOptions(out, split, dtype, views, layers, shard, shard_size, order, repair)
    store = write(source, request_of(**options), chosen, Progress(quiet=json))
    if store is None:
        done = "This part is written. The store is complete when the other parts are."
        emit(json, {"store": out, "finished": False}, lambda show: typer.echo(done))
    else:
        print_info(store, json)


@app.command()
@taking_options(
    "heads", "head_lr", "metric", "answer_length", "null_threshold", "null_share", "decoding", "seed", "words", "out"
)
def train(
    store: StoreArgument,
    polish: Annotated[
        int | None, typer.Option("--polish", "--epochs", min=1, help="Epochs of head training. Default: 8, spans 2.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Train heads on a store: no encoder runs. Leaves a run like `fit`. Texts, if they are at hand, are read for the
    model `words` only.

    Example: `bertvision train stores/sts-b --heads paper,ours --out runs/zoo`
    """
    from bertvision.progress import Progress
    from bertvision.stores.reader import open_store
    from bertvision.training.stored import train as run_train

    run = run_train(open_store(store), Request(**options, polish=polish, epochs="0"), Progress(quiet=json))
    show_run(run, json)


@app.command()
@taking_options(
    *("task", "data", "train", "dev", "text", "text_pair", "label", "kind", "backbone", "heads", "polish", "pairs"),
    *("max_length", "long", "stride", "limit"),
)
def plan(
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Plan for an encoder with this many hidden-state layers (25 for BERT-large)."),
    ] = None,
    features: Annotated[int | None, typer.Option(min=1, help="... and this many features.")] = None,
    flops: Annotated[float | None, typer.Option(help="Plan for a machine with this many FLOP/s, e.g. 5e13.")] = None,
    disk_rate: Annotated[float | None, typer.Option(help="... that reads and writes this many bytes/s.")] = None,
    disk: Annotated[float | None, typer.Option(help="... with this many bytes of free disk.")] = None,
    memory: Annotated[float | None, typer.Option(help="... and this many bytes of memory.")] = None,
    json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Estimate what training heads on a frozen encoder costs with its states in memory, stored, or recomputed.

    Examples:

    * `bertvision plan squad2 --data SQuAD2/ --heads paper --polish 4`

    * `bertvision plan squad2 --data SQuAD2/ --heads paper --layers 25 --features 1024 --flops 5e13 --disk-rate 2e9`
    (BERT-large on a large GPU, estimated from measurements here)
    """
    from bertvision.progress import Progress
    from bertvision.training.planner import Machine
    from bertvision.training.planner import plan as make_plan

    machine = Machine(layers, features, flops, disk_rate, disk, memory)
    found = make_plan(request_of(**options, epochs="0", dev_limit=10), machine, Progress(quiet=json))
    emit(json, asdict(found), lambda show: show.plan(found))


@store_app.command("info")
def info(store: StoreArgument, json: Json = False, debug: Debug = False) -> None:
    """What is in a store, and how large it is."""
    from bertvision.stores.reader import open_store

    print_info(open_store(store), json)


@store_app.command("verify")
def verify(store: StoreArgument, debug: Debug = False) -> None:
    """Check every file of a store against its checksum."""
    from bertvision.stores.format import damaged, refuse
    from bertvision.stores.reader import open_store

    opened = open_store(store)
    refuse(opened.place, opened.manifest, damaged(opened.place, opened.manifest), "damaged")
    typer.echo(f"'{store}' is intact: {len(opened.manifest['files'])} files.")


@store_app.command("convert")
def convert(
    store: StoreArgument,
    out: Annotated[str, typer.Option(help="The store to write.")],
    dtype: Annotated[str, typer.Option(help="fp32, fp16, bf16 or int8.")],
    repair: Repair = False,
    debug: Debug = False,
) -> None:
    """Write a store again in another number format, without the encoder."""
    from bertvision.progress import Progress
    from bertvision.stores.convert import convert as rewrite
    from bertvision.stores.reader import open_store

    if out == store:
        raise UserError("--out must be another store.")
    print_info(rewrite(open_store(store), out, dtype, repair, Progress()), False)


def print_info(store: "Store", as_json: bool) -> None:
    from bertvision.stores.reader import summary

    found = summary(store)
    emit(as_json, found, lambda show: show.table([{"": key, "value": value} for key, value in found.items()]))
