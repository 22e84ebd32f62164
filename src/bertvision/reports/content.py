"""The content of a report, section by section, whatever it is written as."""

import shlex
from fractions import Fraction
from typing import Any

from bertvision.analysis import Table, analyses
from bertvision.errors import UserError
from bertvision.league import league
from bertvision.options import Request, flag
from bertvision.reports import summary
from bertvision.reports.excerpts import cards
from bertvision.reports.findings import Finding
from bertvision.reports.formats import after
from bertvision.reports.parts import Code, Found, Item, Section

# Sections in the order they are read, with the analyses that each shows.
PLAN = {
    "Learning curves": ("curve", "shares", "less-data"),
    "League table": (),
    "Layers": ("layers", "depth", "without-layer", "transfer"),
    "Errors": ("overlap", "breakdown", "questions", "second", "confusion", "disagreement", "errors"),
    "Calibration": ("calibration", "coverage"),
    "Cost": ("cost",),
}
NOTHING = {"layers": "No head of this run weighs layers in a way that can be read, nor were layers tried alone."}


def title_of(found: list[Finding]) -> str:
    tasks = list(dict.fromkeys(finding.task for finding in found))
    what = found[0].label if len(found) == 1 else f"{len(found)} runs"
    return f"{', '.join(tasks)}: {what}"


def written(found: list[Finding]) -> list[Section]:
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
    plan = PLAN | {"Other findings": tuple(name for name in analyses if name not in placed)}
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
    made.append(Section("How to reproduce", f"{prefix}reproduce", [], _reproduce(finding.info), level))
    return made


def _items(finding: Finding, name: str) -> list[Item]:
    tables = finding.tables.get(name)
    if not tables:
        return []
    if name == "errors":
        return [cards(table, finding.evidence.kind) for table in tables]
    return [Found(name, tables, [_narrowed(finding, name, table) for table in tables])]


def _narrowed(finding: Finding, name: str, table: Table) -> Table:
    """What one figure can show: the mark that the report is about, or the best head."""
    rows = table.rows
    if name == "less-data" or "weight" in rows[0]:
        here = [row for row in rows if row["epochs"] == finding.mark]
        latest = max(rows, key=lambda row: Fraction(row["epochs"]))["epochs"]
        rows = here or [row for row in rows if row["epochs"] == latest]
        return Table(f"{table.title}, {after(rows[0]['epochs'])}", table.note, rows)
    if name == "transfer":
        best = finding.evidence.entry["best_head"]
        shown = best if any(row["head"] == best for row in rows) else rows[0]["head"]
        rows = [row for row in rows if row["head"] == shown and row["metric"] == finding.metric]
        return Table(f"{table.title}: {shown}", table.note, rows)
    return table


def _comparison(found: list[Finding]) -> list[Section]:
    """What several runs have in common: shown once, before each has its own sections."""
    apart = summary.differences(found)
    items: list[Item] = [summary.overview(found), *([apart] if apart.rows else [])]
    sections = [Section("Summary", "summary", summary.sentences_of_all(found), items)]
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.task, finding.metric), []).append(finding)
    shared = [group for group in groups.values() if len(group) > 1]
    for title, anchor, listed in (
        ("Learning curves", "learning-curves", [item for group in shared for item in _curves(group)]),
        ("League table", "league-table", [item for group in shared for item in _league(group)]),
        ("Cost", "cost", [item for group in shared for item in _score_against_cost(_distinct(group))]),
    ):
        if listed:
            sections.append(Section(f"{title} of all runs", anchor, [], listed))
    return sections


def _distinct(found: list[Finding]) -> list[Finding]:
    """Two marks of a run have one curve."""
    first = {finding.evidence.run.path: finding for finding in reversed(found)}
    return [finding for finding in found if finding in first.values()]


def _curves(found: list[Finding]) -> list[Item]:
    rows = [row for one in _distinct(found) for row in _curve_rows(one, True) if row["role"] in ("encoder", "selected")]
    title = f"{found[0].task}: {found[0].split} {found[0].metric} over fine-tuning"
    note = "What was selected at each mark (solid) and the encoder (dotted)."
    return [Found("curves-of-runs", [], [Table(title, note, rows)])] if rows else []


def _curve_rows(finding: Finding, named: bool) -> list[dict[str, Any]]:
    tables = finding.tables.get("curve", [])
    return [({"run": finding.label} if named else {}) | row for table in tables for row in table.rows]


def _score_against_cost(found: list[Finding]) -> list[Item]:
    rows = [row for finding in found for row in _curve_rows(finding, len(found) > 1)]
    title = f"{found[0].split} {found[0].metric} against time"
    note = "Seconds of the run up to each mark, with every head and every evaluation in it."
    return [Found("score-against-cost", [], [Table(title, note, rows)])] if rows else []


def _league(found: list[Finding]) -> list[Item]:
    try:
        metric, ranked = league([finding.reference for finding in found])
    except (UserError, LookupError):
        return []
    labels = {(str(finding.evidence.run.path), finding.mark): finding.label for finding in found}
    rows, several = [], len(found) > 1
    for row in ranked:
        where = {"run": labels.get((row["run"], row["epoch"]), row["run"]), "epochs": row["epoch"]} if several else {}
        cost = {"parameters": row["parameters"]} | ({"seconds": row["seconds"]} if several else {})
        rows.append({"model": row["model"], **where, "held-out": row["held_out"], "dev": row["dev"], **cost,
                     "front": row["front"]})  # fmt: skip
    here = "" if several else f"{after(found[0].mark).capitalize()}."
    note = "◆: no model with as few parameters scores higher. Ensembles have none of their own, and are left out."
    drawn = Table(f"Held-out {metric} against parameters", "", rows)
    ranking = Table(f"Encoder and heads by held-out {metric}", f"{here} {note}".strip(), rows)
    return [ranking, Found("league", [], [drawn])] if rows else []


def _reproduce(info: dict[str, Any]) -> list[Item]:
    items: list[Item] = []
    if "store" not in info:  # what `train` was told is partly the store's
        items.append(Code(f"Spelled out{_but(info.get('plan', {}))}", spelled_out(info["options"])))
    items.append(Code("As it was called", str(info["command"])))
    digests = [{"what": f"{name.replace('_', '-')} data", "examples": part["examples"], "sha256": part["sha256"]}
               for name, part in info["data"].items()]  # fmt: skip
    for what, key in (("encoder's weights", "weights_sha256"), ("tokenizer", "tokenizer_sha256")):
        if info.get(key):
            digests.append({"what": what, "examples": None, "sha256": info[key]})
    items.append(Table("Digests", "Of the texts and targets, and of the encoder before fine-tuning.", digests))
    known = {**info["versions"], **info["machine"]}
    rows = [{"what": name, "is": str(value)} for name, value in known.items()]
    return [*items, Table("Versions and machine", "", rows)]


def _but(plan: dict[str, Any]) -> str:
    """What a budget changed half-way through cannot be spelled out."""
    if plan.get("changed_at") is None:
        return ""
    return f" (but the learning rate of the first {plan['changed_at']} steps was that of {plan['epochs']} epochs)"


def spelled_out(options: dict[str, Any]) -> str:
    """The command with every option that is not the default, also those that were decided on the way."""
    usual, words = Request().as_dict(), ["bertvision", "fit", str(options["task"])]
    for name, value in options.items():
        if name in ("task", "out", "budget") or value is None or value == usual.get(name):
            continue
        words += [flag(name)] if value is True else [flag(name), str(value)]
    return shlex.join(words)
