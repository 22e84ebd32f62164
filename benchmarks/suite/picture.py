"""Ours minus the best of the others, per data set, a panel per number of rows: an SVG file for the page."""

from benchmarks.rivals.picture import GREY, as_text, style
from benchmarks.suite import BUDGETS, SIZES, TABLES
from benchmarks.suite.standings import BEHIND, Cells, duels

COLOURS = dict(zip(BUDGETS, ("#ff7f0e", "#1f77b4"), strict=True))


def svg(of: Cells) -> str:
    """Dots with 95% intervals; 0 is the best of the others. What is clearly behind is a cross."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    sets = [name for name in TABLES if any(cell[0] == name for cell in of)]
    sizes = sorted({cell[1] for cell in of})
    with matplotlib.rc_context(style("suite")):
        shape = {"figsize": (9, 1.3 + 0.32 * len(sets)), "sharey": True, "sharex": True, "squeeze": False}
        figure, plots = pyplot.subplots(1, len(sizes), **shape)
        for plot, size in zip(plots[0], sizes, strict=True):
            plot.axvline(0, color=GREY, lw=1)
            for number, minutes in enumerate(BUDGETS):
                found = [duel for duel in duels(of, minutes) if duel.cell[1] == size]
                places = [sets.index(duel.cell[0]) + 0.3 * (number - 0.5) for duel in found]
                for place, duel in zip(places, found, strict=True):
                    gain, low, high = duel.gain
                    plot.hlines(place, low, high, color=COLOURS[minutes], lw=1)
                    marker = "x" if duel.verdict == BEHIND else "o"
                    plot.scatter(gain, place, color=COLOURS[minutes], marker=marker, s=22, zorder=3)
                plot.scatter([], [], color=COLOURS[minutes], s=22, label=f"--budget {minutes}")
            plot.set_title(f"all rows (up to {size:,})" if size == max(SIZES) else f"{size:,} rows")
            plot.grid(alpha=0.2)
        plots[0, 0].set_yticks(range(len(sets)), sets)
        plots[0, 0].invert_yaxis()
        figure.supxlabel("ours minus the best of the others (test score); x: clearly behind", fontsize=9)
        named = plots[0, 0].get_legend_handles_labels()
        figure.legend(*named, frameon=False, loc="lower right", ncols=len(BUDGETS))
        figure.tight_layout()
        return as_text(figure)
