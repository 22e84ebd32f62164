"""Figures as SVG files: our scores with intervals, the paper's beside them."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.metrics.intervals import Score

PAPER, OURS = "paper", "ours"  # how the names of series end; the paper's are drawn hollow, dashed, without intervals
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # safe for colour-blind readers
Series = dict[Any, Score | float | None]  # x (a number or a word) -> y


@dataclass(frozen=True)
class Point:
    x: float | str
    y: Score
    label: str = ""


@dataclass(frozen=True)
class Figure:
    """What to draw, as plain data: name of series -> its points."""

    name: str
    title: str
    axes: tuple[str, str]
    series: dict[str, list[Point]] = field(default_factory=dict)
    joined: bool = True  # by lines; else points only

    def add(self, name: str, found: Series) -> None:
        """Add the values that are known. A plain number has no interval."""
        scores = {x: Score(y, y, y) if isinstance(y, float) else y for x, y in found.items()}
        if points := [Point(x, score) for x, score in scores.items() if score is not None]:
            self.series[name] = points


def check() -> None:
    """Refuse before the hours of work that the figures are about."""
    if find_spec("matplotlib") is None:
        raise UserError("Figures need matplotlib: pip install 'bertvision[report]', or leave out --write.")


def draw(figure: Figure, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Equal figures give byte-identical files, and text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "bertvision", "svg.fonttype": "none", "font.size": 10}):
        canvas, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        colours: dict[str, str] = {}  # a model has the same colour in the paper's series and in ours
        for name, points in figure.series.items():
            theirs, model = name.endswith(PAPER), name.removesuffix(PAPER).removesuffix(OURS)
            # Rounding can put a value 1e-17 outside of its interval.
            errors = [[max(0.0, p.y.value - p.y.low) for p in points], [max(0.0, p.y.high - p.y.value) for p in points]]
            axes.errorbar(
                [point.x for point in points], [point.y.value for point in points], yerr=None if theirs else errors,
                label=name, color=colours.setdefault(model, COLOURS[len(colours) % len(COLOURS)]), capsize=3,
                marker="o", markerfacecolor="none" if theirs else None,
                linestyle="none" if not figure.joined else "--" if theirs else "-",
            )  # fmt: skip
            for point in points:
                place = (point.x, point.y.value)
                axes.annotate(point.label, place, fontsize=7, xytext=(4, 3), textcoords="offset points")
        axes.set(title=figure.title, xlabel=figure.axes[0], ylabel=figure.axes[1])
        axes.grid(alpha=0.3)
        if len(figure.series) > 1:
            axes.legend(fontsize=8)
        canvas.savefig(path, format="svg", metadata={"Date": None})
        pyplot.close(canvas)
