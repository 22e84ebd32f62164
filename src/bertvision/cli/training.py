"""Commands that make runs: fit, demo."""

from typing import Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, app, print_json, taking_fit_options
from bertvision.cli.asking import predict
from bertvision.options import Request

ARNHOLM = (
    "Arnholm lies on the river Issel. About 31,400 people live in Arnholm. The bridge of Arnholm was built by"
    " Mara Teld. Arnholm is known for its pianos."
)


@app.command()
@taking_fit_options()
def fit(
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run at --out.")] = False,
    json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Fine-tune an encoder up to some marks, with heads learning beside it; keep what is best on held-out data.

    Examples:

    * `bertvision fit table --train reviews.csv --text review --label stars`

    * `bertvision fit sts-b --data glue/ --epochs 1 --marks 3/10,1/2,1`

    * `bertvision fit rte --data glue/ --backbone path/to/encoder --epochs 0` (heads only: nothing is fine-tuned)
    """
    chosen = Request(**options)
    from bertvision.training.fit import fit as run_fit

    run = run_fit(chosen, resume=resume)
    show_run(run, json)


@app.command()
def demo(
    questions: Annotated[
        bool, typer.Option("--questions", help="Answer questions on (invented) paragraphs instead.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Run directory to make. Default: one in runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Fit a real encoder on film reviews, or on questions, in two or three minutes, and ask it about new ones."""
    from bertvision.progress import Progress
    from bertvision.training.fit import fit as run_fit

    progress = Progress(quiet=json)
    if questions:
        progress.say("Questions on paragraphs about invented people, towns and firms, encoder minilm-l6, 3/2 epochs.")
        options = Request(
            task="squad2-invented", limit=800, dev_limit=300, batch_size=8, epochs="3/2", marks="1/2,3/2", out=out
        )
    else:
        progress.say("Sentiment of film-review sentences (Rotten Tomatoes), encoder minilm-l6, one epoch on 4,000.")
        options = Request(task="demo", limit=4000, out=out)
    run = run_fit(options, resume=resume, progress=progress)
    show_run(run, json)
    if json:
        return
    if questions:
        for question in ("Who built the bridge of Arnholm?", "When was Arnholm founded?"):
            predict(str(run.path), question=question, context=ARNHOLM)
        typer.echo(f'Ask it yourself: bertvision predict {run.path} --question "..." --context "..."')
    else:
        predict(str(run.path), ["A joy from the first scene to the last.", "Two hours I will never get back."])
        typer.echo(f'Ask it yourself: bertvision predict {run.path} "your sentence"')


def show_run(run: Any, as_json: bool) -> None:
    if as_json:
        print_json({"run": str(run.path), **run.scores})
    else:
        from bertvision import show

        show.run(run)
