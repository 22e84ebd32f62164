"""Commands that use finished runs: evaluate, compare, league, predict; and score, for files of answers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, NullThreshold, RunArgument, app, emit
from bertvision.errors import UserError

if TYPE_CHECKING:
    from bertvision.inference.model import Model
    from bertvision.types import Examples


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
    store: Annotated[
        str | None, typer.Option(help="Score on the states of this store, e.g. of another checkpoint, instead.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --store: also on states of another encoder; run.json notes it.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Score every model of a run: on its dev data again, on other data, or on the states in a store."""
    from bertvision.inference.evaluate import evaluate_on_store
    from bertvision.inference.model import Model
    from bertvision.progress import Progress
    from bertvision.stores.reader import open_store

    if store is not None:
        if data or dev or out or null_threshold is not None or decoding:
            raise UserError("--store brings its own data: leave out --data, --dev, --out and decoding options.")
        result = evaluate_on_store(run, open_store(store), force=force, progress=Progress())
    else:
        model = Model(run, everything=True)
        model.progress = Progress()
        result = model.evaluate(dev, data=data, out=out, null_threshold=null_threshold, decoding=decoding)
    emit(json, result.as_dict(), lambda show: show.evaluation(result))


@app.command()
def compare(run_a: RunArgument, run_b: RunArgument, json: Json = False, debug: Debug = False) -> None:
    """How much RUN_B's model scores above RUN_A's: paired bootstrap on the same dev examples."""
    from bertvision.inference.evaluate import compare as compare_runs

    result = compare_runs(run_a, run_b)
    emit(json, result.as_dict(), lambda show: show.comparison(result))


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
    model: Annotated[str | None, typer.Option(help="Use this model of the run instead of the selected one.")] = None,
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
    from bertvision.inference.model import Model, predict_file
    from bertvision.progress import Progress

    loaded = Model(run, model)
    if question is not None and not loaded.record.windowed:
        raise UserError(f"--question and --context: '{run}' was not trained on questions.")
    loaded.progress = Progress(quiet=file is None)
    asked: dict[str, Any] = {"top": top_k, "null_threshold": null_threshold}
    if file is not None:
        examples, answers = predict_file(loaded, file, **asked)
    else:
        examples = _examples(loaded, list(text or []))
        answers = loaded.predict(examples.texts, examples.second_texts, **asked)
    span = loaded.kind == "span"
    names = ("question", "context") if span else ("text", "text_pair")
    columns = [examples.texts] if examples.second_texts is None else [examples.texts, examples.second_texts]
    rows = [dict(zip(names, row[1:], strict=False)) | row[0] for row in zip(answers, *columns, strict=True)]
    source = str(loaded.run.path), loaded.mark, loaded.name
    emit(json, rows, lambda show: (show.answers if span else show.predictions)(rows, *source))


def _examples(model: "Model", texts: list[str]) -> "Examples":
    from bertvision.types import Examples

    if model.paired and len(texts) != 2:
        raise UserError(f"'{model.run.path}' was trained on pairs: give two texts, or --file FILE.")
    return Examples(texts[:1], texts[1:], None) if model.paired else Examples(texts, None, None)


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
    from bertvision.inference.official import score_squad2

    result = score_squad2(predictions, data, na_prob, na_threshold)
    emit(
        json,
        result,
        lambda show: show.table(
            [{"key": key, "value": f"{value:.4f}".rstrip("0").rstrip(".")} for key, value in result.items()]
        ),
    )


@app.command()
def league(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Run directories (RUN@3/10: that mark), or stores: all runs in runs/ from them."
        ),
    ],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Rank the encoder and all heads of some runs by held-out score; mark the best for their number of parameters."""
    from bertvision.league import league as rank

    metric, rows = rank(runs)
    emit(json, rows, lambda show: show.league(rows, metric))
