"""A report in three sentences: what won, by how much, and what it cost."""

from typing import Any

from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.evaluation import compare
from bertvision.reports.findings import Finding
from bertvision.reports.formats import after, duration, interval, listed, number, size
from bertvision.reports.parts import Fact


def sentences(finding: Finding) -> list[str]:
    """Of one run."""
    return [_what(finding), _by_how_much(finding), _cost(finding)]


def _what(finding: Finding) -> str:
    counts = {name: part["examples"] for name, part in finding.info["data"].items()}
    on = f" on {counts[finding.split]:,} examples" if finding.split in counts else ""
    chosen = f", chosen on {counts['held_out']:,} held-out ones" if "held_out" in counts else ""
    return (
        f"{finding.task}: {finding.model} {after(finding.mark)} won, with {_split(finding)} {finding.metric}"
        f" {interval(finding.score)}{on}{chosen}."
    )


def _by_how_much(finding: Finding) -> str:
    parts = []
    if not finding.evidence.run.encoder_answered:
        return "What the encoder itself would answer is not known: its states were imported."
    if finding.model != "encoder":
        parts.append(f"{clearly(finding.above)} the encoder at the same mark ({interval(finding.above, True)})")
    if finding.mark != finding.last:
        end = after(finding.last)
        parts.append(f"{clearly(finding.above_last)} the encoder {end} ({interval(finding.above_last, True)})")
    it = "The encoder itself won: no head or ensemble was better on held-out examples"
    if finding.model == "encoder":
        return f"{it}; it is {parts[0]}." if parts else f"{it}."
    return f"It is {listed(parts)}."


def clearly(found: dict[str, float]) -> str:
    """A difference in words, to be followed by what it is a difference to."""
    if found["low"] > 0:
        return "clearly above"
    if found["high"] < 0:
        return "clearly below"
    return f"not clearly {'above' if found['value'] >= 0 else 'below'}"


def _cost(finding: Finding) -> str:
    costs, parts = finding.costs, []
    if "seconds" in costs:
        until = finding.evidence.entry["seconds"]
        upto = f" ({duration(until)} up to that mark)" if finding.mark != finding.last else ""
        parts.append(f"{duration(costs['seconds'])}{upto}")
    if "peak_memory_bytes" in costs:
        parts.append(f"at most {size(costs['peak_memory_bytes'])} of memory")
    if "disk_bytes" in costs:
        parts.append(f"{size(costs['disk_bytes'])} on disk")
    said = [f"The run cost {listed(parts)}, with every head and evaluation in it"] if parts else []
    return "; ".join([*said, *_parameters(finding)]) + "."


def _parameters(finding: Finding) -> list[str]:
    encoder, heads = finding.info["parameters"].get("encoder"), finding.heads
    if not heads or any(count is None for count in heads.values()):
        return [] if encoder is None else [f"the encoder has {encoder:,} parameters"]
    total = sum(count or 0 for count in heads.values())
    who = "its head has" if len(heads) == 1 else f"its {len(heads)} heads have"
    part = f"{total / encoder:.1%}" if encoder and total >= 0.001 * encoder else "less than 0.1%"
    share = f" beside the encoder's {encoder:,} ({part})" if encoder else ""
    return [f"{who} {total:,} parameters{share}"]


def facts(finding: Finding) -> list[Fact]:
    """The same at a glance."""
    score, costs, heads = finding.score, finding.costs, finding.heads
    made = [Fact(f"{_split(finding)} {finding.metric}", number(score["value"]), _range(score))]
    if finding.model != "encoder" and finding.evidence.run.encoder_answered:
        made.append(Fact("above the encoder", number(finding.above["value"], True), _range(finding.above, True)))
    for label, key, write in (("time", "seconds", duration), ("peak memory", "peak_memory_bytes", size),
                              ("disk", "disk_bytes", size)):  # fmt: skip
        if key in costs:
            made.append(Fact(label, write(costs[key])))
    if heads and all(count is not None for count in heads.values()):
        encoder = finding.info["parameters"].get("encoder")
        total = sum(count or 0 for count in heads.values())
        made.append(Fact("parameters of the head" if len(heads) == 1 else f"parameters of {len(heads)} heads",
                         f"{total:,}", f"encoder {encoder:,}" if encoder else ""))  # fmt: skip
    return made


def _range(found: dict[str, float], signed: bool = False) -> str:
    return f"{number(found['low'], signed)} to {number(found['high'], signed)}"


def _split(finding: Finding) -> str:
    return finding.split.replace("_", "-")


def overview(found: list[Finding]) -> Table:
    """A row per run."""
    rows = []
    for finding in found:
        options = finding.info["options"]
        rows.append({
            "run": finding.label, "model": finding.model, "epochs": finding.mark, "score": finding.score,
            "metric": f"{_split(finding)} {finding.metric}",
            **{key: finding.costs.get(key) for key in ("seconds", "peak_memory_bytes", "disk_bytes")},
            "task": finding.task, "backbone": options.get("backbone"), "seed": options.get("seed"),
        })  # fmt: skip
    return Table("The runs", "Each with the model that its held-out examples chose; 95% bootstrap intervals.", rows)


def differences(found: list[Finding]) -> Table:
    """Each run against the first of its task, on the dev examples that both have. Others have no row."""
    rows: list[dict[str, Any]] = []
    for number_, finding in enumerate(found):
        first = next(one for one in found if one.task == finding.task)
        if first in found[:number_]:
            change = difference(first, finding)
            if change:
                rows.append({"run": finding.label, "against": first.label, "difference": change,
                             "in words": clearly(change)})  # fmt: skip
    note = "Paired bootstrap on the same dev examples."
    return Table("Against the first run of the task", note, rows)


def difference(one: Finding, other: Finding) -> dict[str, float] | None:
    """How much `other` is above `one`; None where they share no dev examples."""
    try:
        result = compare(one.reference, other.reference)
    except UserError:
        return None
    split = one.split if one.split in result else next(key for key in result if key.startswith("dev"))
    return result[split]["difference"].get(one.metric)


def sentences_of_all(found: list[Finding]) -> list[str]:
    """Of several runs of one task."""
    if len({(finding.task, finding.metric) for finding in found}) > 1:
        return ["The runs are of different tasks; each is summed up in its own section."]
    best = max(found, key=lambda finding: finding.held_out)
    others = [finding for finding in found if finding is not best]
    said = [
        f"{found[0].task}, {len(found)} runs: {best.label} won on its held-out examples, with {best.model}"
        f" {after(best.mark)}: {_split(best)} {best.metric} {interval(best.score)}."
    ]
    changes = {other.label: difference(other, best) for other in others}
    parts = [f"{clearly(c)} {label} ({interval(c, True)})" for label, c in changes.items() if c]
    apart = [label for label, change in changes.items() if not change]
    if parts:
        said.append(f"On the same dev examples it is {listed(parts)}.")
    if apart:
        said.append(f"It cannot be compared with {listed(apart)}, which has other dev examples.")
    if all("seconds" in finding.costs for finding in found):
        times = [f"{other.label} {duration(other.costs['seconds'])}" for other in others]
        said.append(f"It took {duration(best.costs['seconds'])}; {listed(times)}.")
    return said
