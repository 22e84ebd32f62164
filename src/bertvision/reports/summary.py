"""The summary of a report: which model was selected, how much better it is, and what it cost."""

from typing import Any

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.formats import after, duration, interval, listed, number, size, spaced
from bertvision.inference.evaluate import compare
from bertvision.metrics.intervals import Score
from bertvision.records import ENCODER
from bertvision.reports.findings import Finding
from bertvision.reports.parts import Fact, Facts
from bertvision.types import HELD_OUT


def sentences(finding: Finding) -> list[str]:
    """The summary of one run."""
    return [_selected(finding), _compared(finding), _cost(finding)]


def _selected(finding: Finding) -> str:
    data = finding.record.data
    on = f" on {data[finding.split].examples:,} examples" if finding.split in data else ""
    chosen = f" It was selected on {data[HELD_OUT].examples:,} held-out examples." if HELD_OUT in data else ""
    return (
        f"{finding.task}: {finding.model} {after(finding.mark)} has a {spaced(finding.split)} {finding.metric} of"
        f" {interval(finding.score)}{on}.{chosen}"
    )


def _compared(finding: Finding) -> str:
    if not finding.record.encoder_answered:
        return "The encoder's own score is not known: its states were imported."
    parts = []
    if finding.model != ENCODER:
        parts.append(f"{clearly(finding.above)} the encoder at the same mark ({interval(finding.above, True)})")
    if finding.mark != finding.last:
        change = finding.above_last
        parts.append(f"{clearly(change)} the encoder {after(finding.last)} ({interval(change, True)})")
    if finding.model != ENCODER:
        return f"It is {listed(parts)}."
    selected = "The encoder itself was selected: no head or ensemble is better on held-out examples"
    return f"{selected}; it is {parts[0]}." if parts else f"{selected}."


def clearly(change: Score) -> str:
    """A difference in words, to be followed by the baseline."""
    if change.low > 0:
        return "clearly above"
    if change.high < 0:
        return "clearly below"
    return f"not clearly {'above' if change.value >= 0 else 'below'}"


def _cost(finding: Finding) -> str:
    said, costs = [], finding.record.costs
    if costs is not None:
        until = finding.evidence.mark_record.seconds
        upto = f" ({duration(until)} up to that mark)" if finding.mark != finding.last else ""
        said.append(
            f"The run took {duration(costs.seconds)}{upto}, up to {size(costs.peak_memory_bytes)} of memory and"
            f" {size(costs.disk_bytes)} on disk, including all heads and evaluations."
        )
    encoder, heads = finding.record.size(ENCODER), finding.head_sizes
    if heads:
        head = "The head has" if len(heads) == 1 else f"The {len(heads)} heads have"
        share = f", {_percentage(sum(heads) / encoder)} of the encoder's {encoder:,}" if encoder else ""
        said.append(f"{head} {sum(heads):,} parameters{share}.")
    elif encoder is not None:
        said.append(f"The encoder has {encoder:,} parameters.")
    return " ".join(said)


def _percentage(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else "less than 0.1%"


def facts(finding: Finding) -> Facts:
    """The key numbers of one run."""
    costs, heads, encoder = finding.record.costs, finding.head_sizes, finding.record.size(ENCODER)
    made = [_fact(f"{spaced(finding.split)} {finding.metric}", finding.score)]
    if finding.model != ENCODER and finding.record.encoder_answered:
        made.append(_fact("above the encoder", finding.above, True))
    if costs is not None:
        made.append(Fact("time", duration(costs.seconds)))
        made.append(Fact("peak memory", size(costs.peak_memory_bytes)))
        made.append(Fact("disk", size(costs.disk_bytes)))
    if heads:
        label = "head parameters" if len(heads) == 1 else f"parameters of {len(heads)} heads"
        made.append(Fact(label, f"{sum(heads):,}", f"encoder {encoder:,}" if encoder else ""))
    return Facts(made)


def _fact(label: str, score: Score, signed: bool = False) -> Fact:
    return Fact(label, number(score.value, signed), f"{number(score.low, signed)} to {number(score.high, signed)}")


def overview(found: list[Finding]) -> Table:
    """A row per run."""
    rows = []
    for finding in found:
        recipe, costs = finding.record.recipe, finding.record.costs
        row: dict[str, Any] = {"run": finding.label, "model": finding.model, "epochs": finding.mark}
        row |= {"score": finding.score.as_dict(), "metric": f"{spaced(finding.split)} {finding.metric}"}
        row |= {name: getattr(costs, name, None) for name in ("seconds", "peak_memory_bytes", "disk_bytes")}
        rows.append(row | {"task": finding.task, "backbone": recipe.backbone, "seed": recipe.seed})
    return Table("Runs", "Each with the model selected on held-out examples; 95% bootstrap intervals.", rows)


def differences(found: list[Finding]) -> Table:
    """Each run against the first of its task, if both have the same dev examples."""
    rows: list[dict[str, Any]] = []
    for position, finding in enumerate(found):
        first = next(one for one in found if one.task == finding.task)
        change = difference(first, finding) if first in found[:position] else None
        if change is not None:
            row = {"run": finding.label, "against": first.label, "difference": change.as_dict()}
            rows.append(row | {"in words": clearly(change)})
    return Table("Against the first run of the task", "Paired bootstrap on the same dev examples.", rows)


def difference(one: Finding, other: Finding) -> Score | None:
    """How much `other` scores above `one`; None if they share no dev examples."""
    try:
        result = compare(one.reference, other.reference)
    except UserError:
        return None
    split = one.split if one.split in result.difference else next(iter(result.difference))
    return result.difference[split].get(one.metric)


def sentences_of_all(found: list[Finding]) -> list[str]:
    """The summary of several runs."""
    if len({(finding.task, finding.metric) for finding in found}) > 1:
        return ["The runs are of different tasks; each has its own section."]
    best = max(found, key=lambda finding: finding.held_out)
    others = [finding for finding in found if finding is not best]
    said = [
        f"{best.task}, {len(found)} runs: {best.label} has the best held-out score. Its model is {best.model}"
        f" {after(best.mark)}, with a {spaced(best.split)} {best.metric} of {interval(best.score)}."
    ]
    changes = {other.label: difference(other, best) for other in others}
    parts = [f"{clearly(change)} {label} ({interval(change, True)})" for label, change in changes.items() if change]
    apart = [label for label, change in changes.items() if not change]
    if parts:
        said.append(f"On the same dev examples it is {listed(parts)}.")
    if apart:
        said.append(f"It cannot be compared with {listed(apart)}: the dev examples differ.")
    times = {finding.label: finding.record.costs.seconds for finding in [best, *others] if finding.record.costs}
    if len(times) == len(found):
        said.append(f"Time: {listed([f'{label} {duration(seconds)}' for label, seconds in times.items()])}.")
    return said
