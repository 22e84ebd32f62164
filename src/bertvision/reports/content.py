"""The content of a report, section by section, independent of the format it is written in."""

import shlex
from fractions import Fraction
from typing import Any

from bertvision.analysis import Table, analyses
from bertvision.formats import after, spaced
from bertvision.league import league
from bertvision.options import Request, flag
from bertvision.recipe import Recipe
from bertvision.records import RunRecord
from bertvision.reports import summary
from bertvision.reports.excerpts import cards
from bertvision.reports.findings import Finding
from bertvision.reports.parts import Code, Item, Plot, Section

# Sections in order, with the analyses that each shows.
PLAN = {
    "Learning curves": ("curve", "shares", "less-data"),
    "League table": (),
    "Layers": ("layers", "depth", "without-layer", "transfer"),
    "Errors": ("overlap", "breakdown", "questions", "second", "confusion", "disagreement", "errors"),
    "Calibration": ("calibration", "coverage"),
    "Cost": ("cost",),
}
NOTHING = {"layers": "No head of this run has comparable layer weights, and none was solved layer by layer."}


def title_of(found: list[Finding]) -> str:
    tasks = list(dict.fromkeys(finding.task for finding in found))
    what = found[0].label if len(found) == 1 else f"{len(found)} runs"
    return f"{', '.join(tasks)}: {what}"


def written(found: list[Finding]) -> list[Section]:
    """All sections: of one run, or of several runs together and then of each."""
    if len(found) == 1:
        return _run(found[0], "", 1)
    sections = _comparison(found)
    for index, finding in enumerate(found, 1):
        first, *rest = _run(finding, f"run-{index}-", 2)
        sections += [Section(finding.label, f"run-{index}", first.paragraphs, first.items), *rest]
    return sections


def _run(finding: Finding, prefix: str, level: int) -> list[Section]:
    made = [Section("Summary", f"{prefix}summary", summary.sentences(finding), [summary.facts(finding)], level)]
    placed = {name for names in PLAN.values() for name in names}
    plan = PLAN | {"Other analyses": tuple(name for name in analyses if name not in placed)}
    for title, names in plan.items():
        items = [item for name in names for item in _items(finding, name)]
        if title == "League table":
            items += _league([finding])
        if title == "Cost":
            items = [*_score_against_cost([finding]), *items]
        lines = [NOTHING[name] for name in names if name in NOTHING and not finding.known(name)]
        lines += finding.missing(names)
        if items or lines:
            made.append(Section(title, f"{prefix}{title.lower().replace(' ', '-')}", lines, items, level))
    made.append(Section("How to reproduce", f"{prefix}reproduce", [], _reproduce(finding.record), level))
    return made


def _items(finding: Finding, name: str) -> list[Item]:
    tables = finding.tables.get(name)
    if not tables:
        return []
    if name == "errors":
        return [cards(table, finding.evidence.kind) for table in tables]
    return [Plot(name, tables, [_narrowed(finding, name, table) for table in tables])]


def _narrowed(finding: Finding, name: str, table: Table) -> Table:
    """What one figure can show: the mark of the report, or the best head."""
    rows = table.rows
    if name == "less-data" or "weight" in rows[0]:
        latest = max(rows, key=lambda row: Fraction(row["epochs"]))["epochs"]
        mark = finding.mark if any(row["epochs"] == finding.mark for row in rows) else latest
        return Table(f"{table.title}, {after(mark)}", table.note, [row for row in rows if row["epochs"] == mark])
    if name == "transfer":
        best = finding.evidence.mark_record.best_head
        shown = best if any(row["head"] == best for row in rows) else rows[0]["head"]
        rows = [row for row in rows if row["head"] == shown and row["metric"] == finding.metric]
        return Table(f"{table.title}: {shown}", table.note, rows)
    return table


def _comparison(found: list[Finding]) -> list[Section]:
    """What several runs share, before each has its own sections."""
    apart = summary.differences(found)
    items: list[Item] = [summary.overview(found), *([apart] if apart.rows else [])]
    sections = [Section("Summary", "summary", summary.sentences_of_all(found), items)]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.task, finding.metric), []).append(finding)
    shared = [group for group in groups.values() if len(group) > 1]
    for title, make in (("Learning curves", _curves), ("League table", _league), ("Cost", _score_against_cost)):
        listed = [item for group in shared for item in make(group)]
        if listed:
            sections.append(Section(f"{title} of all runs", title.lower().replace(" ", "-"), [], listed))
    return sections


def _curves(found: list[Finding]) -> list[Item]:
    rows = [row for row in _curve_rows(found) if row["role"] in ("encoder", "selected")]
    title = f"{found[0].task}: {found[0].split} {found[0].metric} over fine-tuning"
    note = "The model selected at each mark (solid) and the encoder (dotted)."
    return [Plot("curves-of-runs", [], [Table(title, note, rows)])] if rows else []


def _score_against_cost(found: list[Finding]) -> list[Item]:
    rows = _curve_rows(found)
    title = f"{found[0].split} {found[0].metric} against time"
    note = "Time of the run up to each mark, including all heads and evaluations."
    return [Plot("score-against-cost", [], [Table(title, note, rows)])] if rows else []


def _curve_rows(found: list[Finding]) -> list[dict[str, Any]]:
    """The learning curves of all runs; two marks of the same run have one curve."""
    first = {finding.evidence.run.path: finding for finding in reversed(found)}
    rows = []
    for finding in [finding for finding in found if finding in first.values()]:
        label = {"run": finding.label} if len(found) > 1 else {}
        rows += [label | row for table in finding.tables.get("curve", []) for row in table.rows]
    return rows


def _league(found: list[Finding]) -> list[Item]:
    metric, ranked = league([finding.reference for finding in found])
    labels = {(str(finding.evidence.run.path), finding.mark): finding.label for finding in found}
    rows, several = [], len(found) > 1
    for row in ranked:
        where = {"run": labels[row["run"], row["epoch"]], "epochs": row["epoch"]} if several else {}
        cost = {"parameters": row["parameters"]} | ({"seconds": row["seconds"]} if several else {})
        scores = {"held-out": row["held_out"], "dev": row["dev"]}
        rows.append({"model": row["model"], **where, **scores, **cost, "front": row["front"]})
    here = "" if several else f"{after(found[0].mark).capitalize()}."
    note = f"{here} ◆: no model with as few parameters scores higher. Ensembles have no parameters and are not listed."
    ranking = Table(f"Single models by held-out {metric}", note.strip(), rows)
    drawn = Table(f"Held-out {metric} against parameters", "", rows)
    return [ranking, Plot("league", [], [drawn])] if rows else []


def _reproduce(record: RunRecord) -> list[Item]:
    items: list[Item] = []
    if record.store is None and not record.recipe.in_memory:  # `train` takes some options from the store
        plan = record.plan
        changed = plan.changed_at if plan else None
        but = f" (except the learning rate of the first {changed} steps, which the --budget changed)" if changed else ""
        items.append(Code(f"All options{but}", spelled_out(record.recipe)))
    items.append(Code("Original command", record.command))
    digests: list[dict[str, Any]] = [
        {"what": f"{spaced(name)} data", "examples": part.examples, "sha256": part.sha256}
        for name, part in record.data.items()
    ]
    for what, digest in (("encoder weights", record.weights_sha256), ("tokenizer", record.tokenizer_sha256)):
        if digest:
            digests.append({"what": what, "examples": None, "sha256": digest})
    items.append(Table("Digests", "Of texts and targets, and of the encoder before fine-tuning.", digests))
    rows = [{"what": name, "is": str(value)} for name, value in (record.versions | record.machine).items()]
    return [*items, Table("Versions and machine", "", rows)]


def spelled_out(recipe: Recipe) -> str:
    """The command with every option that differs from the default, including those that were decided."""
    usual, words = Request().as_dict(), ["bertvision", "fit", recipe.task]
    for name, value in recipe.as_dict().items():
        if name in ("task", "out", "budget") or value is None or value == usual[name]:
            continue
        words += [flag(name, value)] if isinstance(value, bool) else [flag(name), str(value)]
    return shlex.join(words)
