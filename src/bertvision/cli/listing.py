"""Commands that list what is available: ls, show."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli.app import Debug, Json, app, emit
from bertvision.errors import UserError
from bertvision.options import one_of

if TYPE_CHECKING:
    from bertvision.heads.base import Shape

HeadKind = Annotated[str | None, typer.Option("--kind", help="Heads for `class`, `score` or `span`.")]
HeadLayers = Annotated[
    int | None,
    typer.Option("--layers", min=1, help="Hidden-state layers: 25 for BERT-large, 26 with the pooler's output."),
]
HeadFeatures = Annotated[int | None, typer.Option("--features", min=1, help="Features of a hidden state.")]
HeadLabels = Annotated[int, typer.Option("--labels", min=2, help="Classes, for kind `class`.")]
HeadTokens = Annotated[
    int, typer.Option("--tokens", min=1, help="Spans: tokens of a window. Parameter counts do not depend on it.")
]
HeadBackbone = Annotated[str | None, typer.Option("--backbone", help="Use the layers and features of this encoder.")]


@app.command()
def ls(
    what: Annotated[str, typer.Argument(help="tasks, heads, backbones or analyses.")],
    kind: HeadKind = None,
    layers: HeadLayers = None,
    features: HeadFeatures = None,
    tokens: HeadTokens = 386,
    labels: HeadLabels = 2,
    backbone: HeadBackbone = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List tasks, heads, backbones or analyses.

    Example: `bertvision ls heads --kind span --layers 25 --features 1024` counts every head's parameters at that shape.
    """
    shape = _shape(kind, layers, features, labels, backbone)
    if shape is not None and what == "heads":
        from bertvision.heads import heads
        from bertvision.heads.description import row

        rows = [row(name, shape) for name in heads if heads[name].fits(shape)]
    else:
        rows = _listing(what)
    emit(json, rows, lambda show: show.table(rows))


@app.command("show")
def show_head(
    what: Annotated[str, typer.Argument(help="head")],
    name: Annotated[str, typer.Argument(help="A name of `bertvision ls heads`, with options as `fit --heads` takes.")],
    kind: HeadKind = None,
    layers: HeadLayers = None,
    features: HeadFeatures = None,
    tokens: Annotated[int, typer.Option(min=1, help="Spans: tokens of a window.")] = 386,
    labels: HeadLabels = 2,
    backbone: HeadBackbone = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a head is made of: its layers in order, with their output shapes and parameters.

    Example: `bertvision show head adapter-64-ngram --backbone minilm-l6`
    """
    if what != "head":
        raise UserError(f"`bertvision show {what}`: only `show head NAME` is known.")
    from bertvision.heads import heads
    from bertvision.heads.description import layer_table
    from bertvision.heads.variants import check

    recipe = heads[name.partition(":")[0]]
    chosen = kind or recipe.kinds[0]
    if chosen not in recipe.kinds:
        raise UserError(f"--kind '{chosen}': '{name}' is for {', '.join(recipe.kinds)}.")
    usual = "minilm-l6" if layers is None and features is None else None
    shape = _shape(chosen, layers, features, labels, backbone or usual)
    assert shape is not None
    check(name, shape)
    rows = layer_table(name, shape, tokens)
    emit(json, rows, lambda show: show.table(rows))


def _listing(what: str) -> list[dict[str, Any]]:
    one_of("ls", what, ("tasks", "heads", "backbones", "analyses"))
    if what == "tasks":
        from bertvision.tasks import tasks

        return [{"name": n, "metrics": ", ".join(tasks[n].metrics), "about": tasks[n].about} for n in tasks]
    if what == "heads":
        from bertvision.heads import SETS, heads

        default, rows = SETS["default"].split(","), []
        for name in heads:
            entry, kinds = heads[name], ", ".join(heads[name].kinds)
            chosen = "yes" if name in default else ""
            rows.append({"name": name, "kinds": kinds, "source": entry.source, "default": chosen, "about": entry.about})
        return rows
    if what == "backbones":
        from bertvision.backbones import backbones

        rows = [{"name": name, "about": backbones[name].about} for name in backbones]
        return [*rows, {"name": "FOLDER or HUB-NAME", "about": "any transformers encoder, e.g. microsoft/mpnet-base"}]
    from bertvision.analysis import analyses

    takes = {True: "minutes", False: "an instant"}
    found = [(name, analyses[name]) for name in analyses]
    return [{"name": n, "kinds": ", ".join(a.kinds), "takes": takes[a.deep], "about": a.about} for n, a in found]


def _shape(
    kind: str | None, layers: int | None, features: int | None, labels: int, backbone: str | None
) -> "Shape | None":
    """The shape that is asked for, by numbers or by a backbone."""
    if kind is None and layers is None and features is None and backbone is None:
        return None
    one_of("--kind", kind or "class", ("class", "score", "span"))
    from bertvision.heads.base import Shape

    span, outputs = kind == "span", {"score": 1, "span": 2}.get(kind or "class", labels)
    if backbone is not None and (layers, features) != (None, None):
        raise UserError("--backbone has layers and features of its own: leave out --layers and --features.")
    if backbone is not None:
        from bertvision.backbones.encoder import load

        encoder = load(backbone, outputs, 0, span=span)
        return Shape(encoder.layers, encoder.features, outputs, True, encoder.pooled and not span, span)
    if layers is None or features is None:
        raise UserError("Give --layers and --features, or --backbone.")
    return Shape(layers, features, outputs, True, False, span)
