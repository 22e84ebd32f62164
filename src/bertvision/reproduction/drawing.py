"""Draw figures for a Markdown file, as SVG: ours with intervals, the paper's beside them."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from bertvision.errors import UserError
from bertvision.metrics.intervals import Score

PAPER = "paper"  # what the names of its series begin with: they are drawn hollow, dashed and without intervals
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # told apart by the colour-blind too


@dataclass(frozen=True)
class Point:
    x: float | str
    y: Score
    label: str = ""


@dataclass(frozen=True)
class Figure:
    """What is drawn, as plain data: name of series -> its points."""

    name: str
    title: str
    axes: tuple[str, str]
    series: dict[str, list[Point]] = field(default_factory=dict)
    joined: bool = True  # by lines; else points only


def check() -> None:
    """Before the hours of work that figures are about."""
    if find_spec("matplotlib") is None:
        raise UserError("Figures need matplotlib: pip install 'bertvision[report]', or leave out --write.")


def draw(figure: Figure, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # The same figures give the same file, to the byte; text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "bertvision", "svg.fonttype": "none", "font.size": 10}):
        canvas, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        colours: dict[str, str] = {}  # the same model has the same one here and in the paper
        for name, points in figure.series.items():
            theirs = name.startswith(PAPER)
            colour = colours.setdefault(name.removeprefix(f"{PAPER}: "), COLOURS[len(colours) % len(COLOURS)])
            x, y = [point.x for point in points], [point.y.value for point in points]
            below, above = ([max(0.0, end) for end in ends] for ends in (  # rounding leaves -1e-17
                [p.y.value - p.y.low for p in points], [p.y.high - p.y.value for p in points]))  # fmt: skip
            axes.errorbar(
                x, y, yerr=None if theirs else [below, above], label=name, color=colour, capsize=3, marker="o",
                markerfacecolor="none" if theirs else None,
                linestyle="none" if not figure.joined else "--" if theirs else "-",
            )  # fmt: skip
            for point in points:
                if point.label:
                    axes.annotate(point.label, (point.x, point.y.value), fontsize=7, xytext=(4, 3),
                                  textcoords="offset points")  # fmt: skip
        axes.set(title=figure.title, xlabel=figure.axes[0], ylabel=figure.axes[1])
        axes.grid(alpha=0.3)
        if len(figure.series) > 1:
            axes.legend(fontsize=8)
        canvas.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
