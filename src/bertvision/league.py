"""Rank every model of some runs, and find those that no smaller one beats."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.runs import Run, open_run


def league(references: Sequence[str | Path]) -> tuple[str, list[dict[str, Any]]]:
    """(metric, rows), best on held-out data first. Ensembles are left out: they have no parameters of their own.

    `front` marks the Pareto front of held-out score against parameters; `seconds` are those of the run up to the mark.
    """
    rows, metrics = [], set()
    for reference in _runs(references):
        run, mark = open_run(reference)
        entry, info = run.mark(mark), run.info
        metric = run.scores["metric"]
        metrics.add((run.scores["task"], metric))
        for model, found in entry["held_out"].items():
            count = info["parameters"].get(model.removesuffix("+polish"))
            if count is None:
                continue
            rows.append(
                {
                    "model": model,
                    "run": str(run.path),
                    "epoch": mark,
                    "held_out": found[metric],
                    "dev": entry.get("dev", entry["held_out"])[model][metric],
                    "parameters": count,
                    "seconds": entry["seconds"],
                }
            )
    if len(metrics) > 1:
        raise UserError(f"The runs are of different tasks: {', '.join(sorted(task for task, _ in metrics))}.")
    rows.sort(key=lambda row: (-row["held_out"]["value"], row["parameters"]))
    smallest = float("inf")
    for row in rows:
        row["front"] = row["parameters"] < smallest
        smallest = min(smallest, row["parameters"])
    return metric, rows


def _runs(references: Sequence[str | Path]) -> Iterator[str | Path]:
    """The runs, and for a store all runs in runs/ that were trained on it."""
    for reference in references:
        if not (Path(reference) / "manifest.json").exists():
            yield reference
            continue
        place = Path(reference).resolve()
        found = [path.parent for path in sorted(Path("runs").glob("*/run.json"))]
        trained = [path for path in found if Path(Run(path).info.get("store", {}).get("place", "/")).resolve() == place]
        if not trained:
            raise UserError(f"No run in runs/ was trained on the store '{reference}': bertvision train {reference}")
        yield from trained
