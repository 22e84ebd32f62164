"""Commands that create runs: fit, demo."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, Resume, app, emit, request_of, taking_options
from bertvision.cli.asking import predict
from bertvision.options import Request

if TYPE_CHECKING:
    from bertvision.runs.directory import Run

ARNHOLM = (
    "Arnholm lies on the river Issel. About 31,400 people live in Arnholm. The bridge of Arnholm was built by"
    " Mara Teld. Arnholm is known for its pianos."
)


@app.command()
@taking_options()
def fit(resume: Resume = False, json: Json = False, debug: Debug = False, **options: Any) -> None:
    """Fine-tune an encoder with heads on all its layers, and keep the model that is best on held-out data.

    Examples:

    * `bertvision fit reviews.csv --text review --label stars --budget 3`

    * `bertvision fit sts-b --data glue/ --epochs 1 --marks 3/10,1/2,1`

    * `bertvision fit rte --data glue/ --backbone path/to/encoder --epochs 0` (heads only: nothing is fine-tuned)
    """
    request = request_of(**options)
    from bertvision.progress import Progress
    from bertvision.training.deadline import Clock

    clock = Clock.of_process()  # before the imports that take seconds
    from bertvision.training.fit import fit as run_fit

    show_run(run_fit(request, resume=resume, progress=Progress(), clock=clock), json)


@app.command()
def demo(
    questions: Annotated[
        bool, typer.Option("--questions", help="Answer questions on (invented) paragraphs instead.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Run directory to create. Default: one in runs/.")] = None,
    resume: Resume = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a real encoder on film reviews, or on questions, in two or three minutes, and try it on new ones."""
    from bertvision.progress import Progress
    from bertvision.training.fit import fit as run_fit

    progress = Progress(quiet=json)
    if questions:
        progress.say("Questions on paragraphs about invented people, towns and firms, encoder minilm-l6, 3/2 epochs.")
        request = Request(
            task="squad2-invented", limit=800, dev_limit=300, batch_size=8, epochs="3/2", marks="1/2,3/2", out=out
        )
    else:
        progress.say("Sentiment of film-review sentences (Rotten Tomatoes), encoder minilm-l6, one epoch on 4,000.")
        request = Request(task="demo", limit=4000, out=out)
    run = run_fit(request, resume=resume, progress=progress)
    show_run(run, json)
    if json:
        return
    if questions:
        for question in ("Who built the bridge of Arnholm?", "When was Arnholm founded?"):
            predict(str(run.path), question=question, context=ARNHOLM)
        typer.echo(f'Try it yourself: bertvision predict {run.path} --question "..." --context "..."')
    else:
        predict(str(run.path), ["A joy from the first scene to the last.", "Two hours I will never get back."])
        typer.echo(f'Try it yourself: bertvision predict {run.path} "your sentence"')


def show_run(run: "Run", as_json: bool) -> None:
    emit(as_json, {"run": str(run.path), **run.results.as_dict()}, lambda show: show.run(run))
