"""The command line: the only place that exits or reads argv. Heavy imports wait until they are needed."""

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from bertvision.errors import UserError
from bertvision.options import FitOptions

app = typer.Typer(
    name="bertvision",
    help="Partial fine-tuning with small heads on every layer's hidden states.\n\n"
    "Start with `bertvision demo`, or `bertvision fit table --train reviews.csv`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

ARNHOLM = (
    "Arnholm lies on the river Issel. About 31,400 people live in Arnholm. The bridge of Arnholm was built by"
    " Mara Teld. Arnholm is known for its pianos."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
NullThreshold = Annotated[
    float | None,
    typer.Option(help="Spans: no answer where its probability is above this. Default: what was tuned in training."),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run directory; RUN@3/10 means that mark of it.")]


def taking_fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` a command-line option for every field of FitOptions."""
    own = list(inspect.signature(command).parameters.values())
    made = []
    for entry in fields(FitOptions):
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
    signature = inspect.Signature(
        [*made, *[p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]]
    )
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return command


@app.command()
@taking_fit_options
def fit(
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run at --out.")] = False,
    json: Json = False,
    debug: Debug = False,
    **options: Any,
) -> None:
    """Fine-tune an encoder up to some marks, with heads learning beside it; keep the best on held-out data.

    Examples:

    * `bertvision fit table --train reviews.csv --text review --label stars`

    * `bertvision fit sts-b --data glue/ --epochs 1 --marks 3/10,1/2,1`

    * `bertvision fit rte --data glue/ --backbone path/to/encoder --epochs 0` (heads only: nothing is fine-tuned)
    """
    chosen = FitOptions(**options)
    from bertvision.training.fit import fit as run_fit

    run = run_fit(chosen, resume=resume)
    _show_run(run, json)


@app.command()
def evaluate(
    run: RunArgument,
    data: Annotated[str | None, typer.Option(help="Folder with the task's files. Default: the run's own.")] = None,
    dev: Annotated[
        str | None, typer.Option(help="One file to score on, like the training data (same columns, or SQuAD JSON).")
    ] = None,
    out: Annotated[
        str | None, typer.Option(help="Spans: folder for predictions.json and na_prob.json. Default: RUN/official.")
    ] = None,
    null_threshold: NullThreshold = None,
    decoding: Annotated[
        str | None, typer.Option(help="Spans: `span` or `argmax` (the paper's). Default: the run's.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score every model of a run: on its dev data again, or on other data."""
    from bertvision.evaluation import evaluate as evaluate_run
    from bertvision.progress import Progress

    result = evaluate_run(run, data, dev, Progress(), out, null_threshold=null_threshold, decoding=decoding)
    if json:
        _print_json(result)
    else:
        from bertvision import show

        show.evaluation(result)


@app.command()
def compare(run_a: RunArgument, run_b: RunArgument, json: Json = False, debug: Debug = False) -> None:
    """How much RUN_B's model scores above RUN_A's: paired bootstrap on the same dev examples."""
    from bertvision.evaluation import compare as compare_runs

    result = compare_runs(run_a, run_b)
    if json:
        _print_json(result)
    else:
        from bertvision import show

        show.comparison(result)


@app.command()
def predict(
    run: RunArgument,
    text: Annotated[list[str] | None, typer.Argument(help="A text; for pairs, two texts.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="CSV, TSV, JSONL or Parquet with the run's columns; .txt (single texts); SQuAD JSON (questions)."
        ),
    ] = None,
    question: Annotated[str | None, typer.Option(help="Spans: a question; with --context.")] = None,
    context: Annotated[
        str | None, typer.Option(help="Spans: the text to find the answer in; `@FILE` reads it from a file.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Spans: how many alternative answers to list.")] = 3,
    null_threshold: NullThreshold = None,
    model: Annotated[str | None, typer.Option(help="Ask this model of the run instead of the selected one.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Answer new texts: class and probabilities, a score, or the answer to a question.

    Examples:

    * `bertvision predict runs/demo-minilm-l6 "A joy from start to end."`

    * `bertvision predict runs/squad2-minilm-l6 --question "Who wrote it?" --context @article.txt`
    """
    if (question is None) != (context is None):
        raise UserError("--question and --context go together.")
    if question is not None and context is not None:
        from bertvision.tasks.reading import read_text

        text = [*(text or []), question, read_text(Path(context[1:])) if context.startswith("@") else context]
    if bool(text) == bool(file):
        raise UserError("Give either texts (for spans --question and --context) or --file FILE.")
    from bertvision.model import Model, predict_file
    from bertvision.progress import Progress
    from bertvision.types import Examples

    loaded = Model(run, model)
    if question is not None and not loaded.windowed:
        raise UserError(f"--question and --context: '{run}' was not trained on questions.")
    loaded.progress = Progress(quiet=file is None)
    if file is not None:
        examples, answers = predict_file(loaded, file, top=top_k, null_threshold=null_threshold)
    else:
        texts = list(text or [])
        if loaded.pairs and len(texts) != 2:
            raise UserError(f"'{run}' was trained on pairs: give two texts, or --file FILE.")
        examples = Examples([texts[0]], [texts[1]], None) if loaded.pairs else Examples(texts, None, None)
        answers = loaded.predict(examples.texts, examples.pairs, top=top_k, null_threshold=null_threshold)
    names = ("question", "context") if loaded.kind == "span" else ("text", "text_pair")
    rows = [{names[0]: t} | answer for t, answer in zip(examples.texts, answers, strict=True)]
    for row, pair in zip(rows, examples.pairs or [], strict=False):
        row[names[1]] = pair
    if json:
        _print_json(rows)
    else:
        from bertvision import show

        shown = show.answers if loaded.kind == "span" else show.predictions
        shown(rows, str(loaded.run.path), loaded.mark, loaded.name)


@app.command()
def score(
    metric: Annotated[str, typer.Argument(help="squad2: the official SQuAD 2.0 metric.")],
    predictions: Annotated[Path, typer.Argument(help="JSON: question id -> answer, empty for none.")],
    data: Annotated[Path, typer.Argument(help="SQuAD JSON with the right answers.")],
    na_prob: Annotated[Path | None, typer.Option(help="JSON: question id -> probability of no answer.")] = None,
    na_threshold: Annotated[
        float, typer.Option(help="With --na-prob: an answer counts as none where its probability is above this.")
    ] = 1.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score a file of answers as the official SQuAD 2.0 evaluation does, with its keys, in per cent."""
    if metric != "squad2":
        raise UserError(f"There is no metric '{metric}' for files of answers. Known: squad2.")
    from bertvision.evaluation import score_squad2

    result = score_squad2(predictions, data, na_prob, na_threshold)
    if json:
        _print_json(result)
    else:
        from bertvision import show

        show.table([{"key": key, "value": f"{value:.4f}".rstrip("0").rstrip(".")} for key, value in result.items()])


@app.command()
def ls(
    what: Annotated[str, typer.Argument(help="tasks, heads or backbones.")], json: Json = False, debug: Debug = False
) -> None:
    """List tasks, heads or backbones."""
    from bertvision import show

    rows = show.listing(what)
    if json:
        _print_json(rows)
    else:
        show.table(rows)


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
        progress.say("Questions on paragraphs about invented people, towns and firms, encoder minilm-l6, one epoch.")
        options = FitOptions(task="squad2-invented", limit=800, dev_limit=300, batch_size=8, marks="1/2,1", out=out)
    else:
        progress.say("Sentiment of film-review sentences (Rotten Tomatoes), encoder minilm-l6, one epoch on 4,000.")
        options = FitOptions(task="demo", limit=4000, out=out)
    run = run_fit(options, resume=resume, progress=progress)
    _show_run(run, json)
    if json:
        return
    if questions:
        for question in ("Who built the bridge of Arnholm?", "When was Arnholm founded?"):
            predict(str(run.path), question=question, context=ARNHOLM)
        typer.echo(f'Ask it yourself: bertvision predict {run.path} --question "..." --context "..."')
    else:
        predict(str(run.path), ["A joy from the first scene to the last.", "Two hours I will never get back."])
        typer.echo(f'Ask it yourself: bertvision predict {run.path} "your sentence"')


def _show_run(run: Any, as_json: bool) -> None:
    if as_json:
        _print_json({"run": str(run.path), **run.scores})
    else:
        from bertvision import show

        show.run(run)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def reference() -> str:
    """docs/cli.md: every command, argument and option, from the program itself."""
    group = typer.main.get_command(app)
    lines = ["# Command line", "", "Made by `make docs`; a test keeps it in step with the program.", ""]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
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
