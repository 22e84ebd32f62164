"""Rank every model of some runs, and find those that no smaller one beats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import UserError
from bertvision.runs import open_run


def league(references: Sequence[str | Path]) -> tuple[str, list[dict[str, Any]]]:
    """(metric, rows), best on held-out data first. Ensembles are left out: they have no parameters of their own.

    `front` marks the Pareto front of held-out score against parameters; `seconds` are those of the run up to the mark.
    """
    rows, metrics = [], set()
    for reference in references:
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
                    "dev": entry["dev"][model][metric],
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
