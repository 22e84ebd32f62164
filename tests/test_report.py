"""The report: what it says of every kind of run, that users' texts stay texts, and how it works in a browser."""

import json
import random
import re
import shutil
import sys
import zlib
from base64 import b85decode
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from conftest import Command, sentences, write_csv
from huggingface_hub import ModelCard
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

import bertvision
from bertvision.analysis import Table
from bertvision.errors import UserError
from bertvision.formats import after, bars, duration, grid, interval, markdown_table, number, size
from bertvision.metrics.intervals import Score
from bertvision.records import ENCODER, MATCHED, Selected
from bertvision.reports import make
from bertvision.reports.content import spelled_out, title_of, written
from bertvision.reports.excerpts import excerpt
from bertvision.reports.figures import draw
from bertvision.reports.findings import Finding, findings
from bertvision.reports.page import library
from bertvision.reports.parts import Plot, Section
from bertvision.reports.summary import clearly
from bertvision.runs import card
from bertvision.runs.directory import Run
from bertvision.tasks.invented import invent

HOSTILE = "<script>alert(1)</script> </script> [bold] |`*_ <img src=x onerror=alert(2)>"
LABELS = ("<b onclick=alert(3)>good</b>", "bad </script>")
SECTIONS = ["Summary", "Learning curves", "League table", "Layers", "Errors", "Calibration", "Cost", "How to reproduce"]


def tiny_fit(out: Path, task: str, **options: Any) -> Run:
    settings = {"backbone": "tiny", "polish": 1, "epochs": 1, "marks": "0,1/2,1"} | options
    return bertvision.fit(task, quiet=True, out=out, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def class_run(folder: Path) -> Run:
    """Texts and labels contain markup. Two labels in five are wrong at random, so that every model makes errors."""
    draw = random.Random(0)
    write_csv(
        folder / "class.csv",
        ("text", "label"),
        [(f"{HOSTILE} {text}", LABELS[(draw.random() < 0.4) ^ (label == "pos")]) for text, label in sentences(120)],
    )
    heads = "learned-pooling-views:seed=0..1,closed-form,last-layer:data=50/100"
    return tiny_fit(folder / "class", "table", train=folder / "class.csv", heads=heads)


@pytest.fixture(scope="module")
def other_run(folder: Path, class_run: Run) -> Run:
    return tiny_fit(folder / "other", "table", train=folder / "class.csv", heads="last-layer", marks="1/2,1", seed=1)


@pytest.fixture(scope="module")
def score_run(folder: Path) -> Run:
    rows = [(text, text[: 4 + i % 20], f"{i % 20 / 4:.2f}") for i, (text, _) in enumerate(sentences(80))]
    write_csv(folder / "score.csv", ("sentence1", "sentence2", "score"), rows)
    return tiny_fit(folder / "score", "table", train=folder / "score.csv", heads="last-layer", marks="0,1")


@pytest.fixture(scope="module")
def span_run(folder: Path) -> Run:
    for part, paragraphs, seed in (("train", 6, 1), ("dev", 4, 2)):
        found = invent(paragraphs, seed)
        for paragraph in (paragraph for article in found["data"] for paragraph in article["paragraphs"]):
            paragraph["context"] += f" {HOSTILE}"  # at the end: answers keep their places
            for question in paragraph["qas"]:
                question["question"] += f" {HOSTILE}"
        (folder / f"{part}-v2.0.json").write_text(json.dumps(found))
    heads = "learned-pooling-normalised"
    return tiny_fit(folder / "span", "squad2", data=folder, heads=heads, marks="1/2,1", max_length=200)


@pytest.fixture(scope="module")
def page(folder: Path, class_run: Run) -> Path:
    """The class run's report, with made-up results of the deep analyses."""
    copy = copied(class_run, folder / "deep")
    mark = copy.results.selected.mark
    seeds = {"value": 0.7, "low": 0.6, "high": 0.75}
    kept = {
        "depth": [{"depth": k, "head": "closed-form", "held_out": k / 10, **seeds} for k in range(3)],
        "without-layer": [{"without": name, "head": "adapter-64-views", **seeds} for name in ("none", "0", "1")],
        "transfer": [
            {"head": head, "trained at": a, "asked at": b, "metric": "accuracy", "value": 0.5, "change": 0.1,
             "change low": -0.1, "change high": 0.2}
            for head in copy.results.at(mark).ways for a in ("0", "1/2", "1") for b in ("0", "1/2", "1")
        ],
    }  # fmt: skip
    (copy.path / "analysis").mkdir()
    for name, rows in kept.items():
        (copy.path / "analysis" / f"{name}-{mark.replace('/', '-')}.json").write_text(json.dumps(rows))
    return make([copy.path], folder / "class.html")


def copied(run: Run, path: Path) -> Run:
    shutil.copytree(run.path, path, ignore=shutil.ignore_patterns("encoder"))
    return Run(path)


def sections_of(*references: Path) -> dict[str, Section]:
    return {section.anchor: section for section in written(findings(references))}


def test_the_summary_says_what_was_selected_how_much_better_it_is_and_the_cost(class_run: Run) -> None:
    finding = Finding(class_run.path, "class")
    selected, compared, cost = sections_of(class_run.path)["summary"].paragraphs
    mark, model = class_run.results.shipped, class_run.results.selected.model
    assert selected.startswith(f"table: {model} ")
    assert f"dev accuracy of {interval(mark.score(model, 'accuracy'))} on 12 examples" in selected
    assert "selected on 108 held-out examples" in selected
    apart = mark.score(model, "accuracy").value - mark.score("encoder", "accuracy").value
    assert finding.above.value == pytest.approx(apart)
    baseline = "the encoder" if model == "encoder" else "the encoder at the same mark"
    assert baseline in compared.lower()
    assert class_run.record.costs is not None
    for part in (duration(class_run.record.costs.seconds), "of memory", "parameters"):
        assert part in cost


def test_differences_in_words() -> None:
    said = {(0.1, 0.2): "clearly above", (-0.2, -0.1): "clearly below", (-0.1, 0.3): "not clearly above"}
    assert {ends: clearly(Score(sum(ends) / 2, *ends)) for ends in said} == said


def test_a_run_without_heads_says_that_the_encoder_was_selected(folder: Path, class_run: Run) -> None:
    run = tiny_fit(folder / "none", "table", train=folder / "class.csv", heads="none", words=False, epochs=0, marks="0")
    assert "The encoder itself was selected" in sections_of(run.path)["summary"].paragraphs[1]
    assert "without fine-tuning" in make([run.path], folder / "none.md").read_text()


@pytest.mark.parametrize("kind", ["class", "score", "span"])
def test_the_cards_metadata_is_what_the_hub_reads(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"{kind}_run")
    results, data = run.results, ModelCard.load(run.path / "README.md").data
    (found,) = data.eval_results
    score = results.shipped.score(results.selected.model, results.metric)
    assert (found.metric_type, found.metric_value) == (results.metric, round(score.value, 4))
    assert (data.base_model, data.pipeline_tag) == ("tiny", card.PIPELINES[kind])
    record = replace(run.record, licence="mit", recipe=replace(run.record.recipe, backbone="microsoft/mpnet-base"))
    data = ModelCard(card.text_of(record, results, run.path)).data
    assert (data.base_model, data.license) == ("microsoft/mpnet-base", "mit")


def test_the_card_says_that_matched_probabilities_are_not_calibrated(class_run: Run) -> None:
    record, results = class_run.record, class_run.results
    results.selected = Selected(MATCHED, results.selected.mark)
    assert "no longer calibrated" in card.text_of(record, results, class_run.path)
    results.selected = Selected(ENCODER, results.selected.mark)
    assert "no longer calibrated" not in card.text_of(record, results, class_run.path)


@pytest.mark.parametrize("kind", ["class", "score", "span"])
def test_every_kind_of_run_has_every_section(kind: str, request: pytest.FixtureRequest) -> None:
    found = written(findings([request.getfixturevalue(f"{kind}_run").path]))
    assert [section.title for section in found] == SECTIONS
    names = {item.name for section in found for item in section.items if isinstance(item, Plot)}
    expected = {"curve", "league", "overlap", "breakdown", "disagreement", "calibration", "score-against-cost", "cost"}
    expected |= {"class": {"confusion", "coverage", "less-data", "layers"}, "score": set(),
                 "span": {"shares", "second", "questions", "coverage", "layers"}}[kind]  # fmt: skip
    assert names == expected
    assert any("--only depth,without-layer,transfer" in line for line in found[3].paragraphs)


def test_numbers_are_written_as_people_do() -> None:
    for value, text in ((0.8531, "0.853"), (-0.0001, "0.000"), (-0.5, "-0.500"), (1, "1.000")):
        assert number(value) == text
    assert number(0.02, signed=True) == "+0.020"
    assert interval(Score(0.853, 0.841, 0.864)) == "0.853 [0.841, 0.864]"
    times = {0.42: "0.4 s", 42.4: "42 s", 123: "2 min 3 s", 120: "2 min", 4320: "1 h 12 min", 3599.9: "1 h"}
    assert {seconds: duration(seconds) for seconds in times} == times
    sizes = {12: "12 bytes", 12_345: "12.3 kB", 12_345_678: "12.3 MB", 553_341_388: "553 MB", 1.2e9: "1.2 GB"}
    assert {count: size(count) for count in sizes} == sizes
    marks = {"0": "without", "3/10": "after 3/10 of an epoch of", "1": "after 1 epoch of", "2": "after 2 epochs of"}
    assert {mark: after(mark) for mark in marks} == {mark: f"{text} fine-tuning" for mark, text in marks.items()}


def test_bars_are_drawn_to_an_eighth_of_a_character() -> None:
    assert bars([("a", 0.5), ("bb", 1.0), ("c", -1.0)], width=4) == [" a ██   0.500", "bb ████ 1.000", " c      -1.000"]
    assert bars([("a", 0.5 + 1 / 32)], full=1.0, width=4) == ["a ██▏  0.531"]


def test_a_value_and_its_interval_share_a_cell_and_sort_as_a_number() -> None:
    row = {
        "epochs": "1/4",
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "change": 0.1,
        "change low": -0.1,
        "change high": 0.2,
    }
    row |= {"seconds": 61.0, "count": 1234, "words": 12.34, "none": None, "said a_b": 3}
    shown = grid([row])
    cells = {header: (cell.text, cell.key) for header, cell in zip(shown.headers, shown.rows[0], strict=True)}
    assert cells == {
        "epochs": ("1/4", 0.25),
        "score": ("0.500 [0.400, 0.600]", 0.5),
        "change": ("+0.100 [-0.100, +0.200]", 0.1),
        "time": ("1 min 1 s", 61.0),
        "count": ("1,234", 1234.0),
        "words": ("12.3", 12.34),
        "said a_b": ("3", 3.0),  # labels of users stay as they are
    }


def test_a_markdown_table_escapes_what_users_write() -> None:
    rows = [{"a|b": "x | *y*\n<z>", "score": {"value": 0.5, "low": 0.4, "high": 0.6}}, {"a|b": "2", "score": None}]
    assert markdown_table(rows).splitlines() == [
        r"| a\|b | score |",
        "| --- | ---: |",
        r"| x \| \*y\* &lt;z&gt; | 0.500 [0.400, 0.600] |",
        "| 2 | - |",
    ]
    assert len(markdown_table(rows, limit=1).splitlines()) == 3


def kinds_of(text: str, right: str, said: str, around: int = 5) -> list[tuple[str, str]]:
    return [(piece.text, piece.kind) for piece in excerpt(text, right, said, around)]


def test_answers_are_marked_where_they_first_occur() -> None:
    assert kinds_of("an owl, an owl", "owl", "") == [("an ", ""), ("owl", "right"), (", an", ""), (" … ", "cut")]
    assert kinds_of("the red owl", "red owl", "red") == [("the ", ""), ("red", "both"), (" owl", "right")]
    assert kinds_of("the red owl", "the red", "red owl") == [("the ", "right"), ("red", "both"), (" owl", "said")]
    far = kinds_of("red " + "ab " * 50 + "owl", "red", "owl")
    assert far == [("red", "right"), (" ab", ""), (" … ", "cut"), ("ab ", ""), ("owl", "said")]
    assert kinds_of("x" * 50, "owl", "") == [("x" * 10, ""), (" … ", "cut")]
    assert "".join(text for text, _ in kinds_of("abc", "nowhere", "b")) == "abc"
    assert kinds_of("", "", "") == []


class Markup(HTMLParser):
    """Tags with their attributes, and the text of each element of a kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text += data


@pytest.mark.parametrize("kind", ["class", "span"])
def test_texts_of_users_never_become_markup(
    kind: str, folder: Path, page: Path, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(f"{kind}_run")
    made = page if kind == "class" else make([run.path], folder / "span.html")
    found = Markup(made.read_text())
    assert HOSTILE in found.text
    assert [tag for tag, _ in found.tags].count("script") == 3
    assert "img" not in [tag for tag, _ in found.tags]
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert {attributes.get("class") for tag, attributes in found.tags if tag == "mark"} <= {"right", "said", "both"}
    text = make([run.path], folder / f"{kind}.md").read_text()
    assert "<script" not in text
    assert "<b" not in text
    assert r"\[bold\]" in text


def test_nothing_is_asked_of_a_network_and_the_file_is_small(page: Path) -> None:
    found = Markup(page.read_text())
    assert page.stat().st_size < 2_000_000
    for tag, attributes in found.tags:
        assert tag not in ("link", "iframe", "base", "object")
        for name in ("src", "href", "data", "action"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "http" not in " ".join(str(attributes.get("style")) for _, attributes in found.tags)
    assert {"default-src 'none'"} == {str(a["content"]).split(";")[0] for _, a in found.tags if "http-equiv" in a}


@pytest.mark.parametrize("kind", ["class", "score", "span"])
def test_every_figure_is_one_that_plotly_knows(
    kind: str, page: Path, folder: Path, request: pytest.FixtureRequest
) -> None:
    """plotly.py checks every attribute's name and value; the report itself does without, which takes a second less."""
    path = folder / "deep" if kind == "class" else request.getfixturevalue(f"{kind}_run").path
    items = [item for section in sections_of(path).values() for item in section.items if isinstance(item, Plot)]
    drawings = [draw(item.name, table) for item in items for table in item.drawn]
    figures = [Figure(drawing.figure) for drawing in drawings if drawing is not None]
    assert len(figures) >= 6
    assert all(figure.data for figure in figures)


def test_the_library_is_embedded_compressed_and_unchanged(page: Path) -> None:
    blocks = dict(re.findall(r'<script type="text/plain" id="(\w+)">([^<]*)</script>', page.read_text()))
    unpacked = {name: zlib.decompress(b85decode(text.replace(",", "<"))).decode() for name, text in blocks.items()}
    assert unpacked["plotly"] == get_plotlyjs()
    assert len(json.loads(unpacked["figures"])) == page.read_text().count("data-figure=")


def test_several_runs_are_compared_and_then_each_shown(class_run: Run, other_run: Run, folder: Path) -> None:
    found = findings([class_run.path, other_run.path])
    assert title_of(found) == "table: 2 runs"
    sections = {section.anchor: section for section in written(found)}
    summary = sections["summary"]
    assert any("On the same dev examples it is" in line for line in summary.paragraphs)
    overview, apart = summary.items
    assert isinstance(overview, Table)
    assert isinstance(apart, Table)
    assert [row["run"] for row in overview.rows] == ["class", "other"]
    assert [(row["run"], row["against"]) for row in apart.rows] == [("other", "class")]
    assert apart.rows[0]["in words"].endswith(("above", "below"))
    assert {"learning-curves", "league-table", "cost", "run-1", "run-2", "run-2-errors"} <= set(sections)
    assert sections["run-2-errors"].level == 2
    made = make([class_run.path, f"{class_run.path}@1/2", other_run.path], folder / "three.html")
    assert made.stat().st_size < 2_200_000
    assert "class@1/2" in made.read_text()


def test_runs_of_different_tasks_can_share_a_report(class_run: Run, span_run: Run, folder: Path) -> None:
    text = make([class_run.path, span_run.path], folder / "tasks.md").read_text()
    assert "The runs are of different tasks" in text
    assert "## span" in text


def test_markdown_has_the_same_sections_and_bars(class_run: Run, folder: Path) -> None:
    text = make([class_run.path], folder / "report.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    assert re.search(r"^ *1/2 [█▏▎▍▌▋▊▉]* +\d?\.\d{3}$", text, re.M)
    assert "| model | held-out | dev | parameters | front |" in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):  # what users write does not make columns
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


def test_what_is_missing_is_said_in_a_line(class_run: Run, span_run: Run, folder: Path) -> None:
    moved = copied(class_run, folder / "moved")
    record = moved.record
    record.recipe = replace(record.recipe, train=str(folder / "gone.csv"))
    record.write(moved.path / "run.json")
    shutil.rmtree(moved.path / "marks")
    sections = sections_of(moved.path)
    assert any("`errors`" in line and "gone.csv" in line for line in sections["errors"].paragraphs)
    assert sections["summary"].paragraphs
    old = copied(span_run, folder / "old")
    for mark in ("1/2", "1"):
        table = pyarrow.parquet.read_table(old.predictions_file(mark))
        kept = [name for name in table.column_names if not name.startswith(("null: ", "second: "))]
        pyarrow.parquet.write_table(table.select(kept), old.predictions_file(mark))
    sections = sections_of(old.path)
    (line,) = sections["calibration"].paragraphs
    assert "earlier version" in line
    assert sections["summary"].paragraphs


def test_the_command_is_spelled_out(class_run: Run) -> None:
    command = spelled_out(replace(class_run.record.recipe, train="my file.csv", strict=True))
    assert command.startswith("bertvision fit table --train 'my file.csv' --backbone tiny --strict ")
    assert f"--heads {class_run.record.recipe.heads} " in command
    assert "--out" not in command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "'nowhere' is not a run directory"),
        (("RUN", "--out", "FOLDER"), "is a folder. Name a file"),
        (("RUN", "--out", "FOLDER/none/report.html"), "does not exist. Create it first."),
        (("RUN", "--format", "pdf"), "--format must be one of html, md; got 'pdf'."),
        (("RUN@3/4",), "no mark called"),
    ],
)
def test_a_wrong_call_is_one_message(
    class_run: Run, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    replaced = [word.replace("RUN", str(class_run.path)).replace("FOLDER", str(tmp_path)) for word in arguments]
    code, _, err = command("report", *replaced)
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_report_and_says_where(class_run: Run, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "r.md"
    path.write_text("older")
    code, out, _ = command("report", class_run.path, "--out", path)
    assert code == 0
    assert out.startswith(f"{path}: ")
    assert path.read_text().startswith("# table: class")
    assert list(tmp_path.iterdir()) == [path]


def test_without_plotly_the_page_says_how_to_get_it(
    class_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    library.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'bertvision\[report\]'"):
        make([class_run.path], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
    assert make([class_run.path], tmp_path / "report.md").exists()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with driver.sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """The page in a browser without network; `troubles` has every error, dialog and request."""

    def __init__(
        self, browser: Any, path: Path, width: int, *, before: str = "", drawn: bool = True, **context: Any
    ) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **context)
        self.page, self.troubles = self.context.new_page(), list[str]()
        self.page.on("console", lambda said: said.type in ("error", "warning") and self.troubles.append(said.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(dialog.message) or dialog.dismiss())
        self.page.on("request", lambda asked: asked.url.startswith("http") and self.troubles.append(asked.url))
        self.page.add_init_script(before)
        self.page.goto(path.as_uri())
        if drawn and not before:
            self.drawn()

    def drawn(self, theme: str = "") -> None:
        """Wait until all figures are there (in that theme)."""
        wanted = f"='{theme}'" if theme else ""
        self.page.wait_for_selector(f"html[data-drawn{wanted}]", state="attached")

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.fixture(scope="module")
def desktop(browser: Any, page: Path) -> Iterator[Visit]:
    """The class run's report in a dark system, once for all tests: plotly.js takes a second to start."""
    with Visit(browser, page, 1280, color_scheme="dark") as visit:
        yield visit


def figures_are_drawn(visit: Visit) -> bool:
    sizes = visit.page.eval_on_selector_all(
        "[data-figure]",
        "all => all.map(e => { const r = e.querySelector('svg.main-svg')?.getBoundingClientRect();"
        " return [r?.width ?? 0, r?.height ?? 0]; })",
    )
    return len(sizes) >= 8 and all(width > 200 and height > 100 for width, height in sizes)


def test_every_figure_is_drawn_and_nothing_is_wrong_in_a_browser(desktop: Visit) -> None:
    assert figures_are_drawn(desktop)
    assert desktop.page.locator("mark.said").count() > 0
    assert desktop.troubles == []


def test_so_are_those_of_spans(browser: Any, span_run: Run, folder: Path) -> None:
    with Visit(browser, make([span_run.path], folder / "span-drawn.html"), 1280) as visit:
        assert figures_are_drawn(visit)
        assert visit.page.locator("p.context").count() > 0
        assert visit.troubles == []


def test_without_decompression_the_page_says_so_and_opens_its_tables(browser: Any, page: Path) -> None:
    with Visit(browser, page, 1280, before="delete window.DecompressionStream") as visit:
        visit.page.wait_for_selector("[data-figure].missing")
        assert "The numbers are in the tables" in visit.page.locator("[data-figure]").first.text_content()
        assert visit.page.locator("details.numbers:not([open])").count() == 0
        assert visit.page.locator("details.numbers table").first.is_visible()


def test_without_scripts_the_page_has_its_text_and_tables(browser: Any, page: Path) -> None:
    with Visit(browser, page, 1280, drawn=False, java_script_enabled=False) as visit:
        assert visit.page.locator("#summary > p").first.is_visible()
        assert visit.page.locator("#league-table table").is_visible()


def test_a_click_on_a_header_sorts_and_another_turns_it_round(desktop: Visit) -> None:
    box = desktop.page.locator("#league-table table")
    header = box.locator("th", has_text="parameters")
    column = header.evaluate("e => e.cellIndex")
    read = f"rows => rows.map(row => Number(row.cells[{column}].textContent.replaceAll(',', '')))"
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    values = box.locator("tbody tr").evaluate_all(read)
    assert values == sorted(values)
    assert len(set(values)) > 1
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert box.locator("tbody tr").evaluate_all(read) == sorted(values, reverse=True)
    assert box.locator("th[aria-sort=none]").count() == box.locator("thead th").count() - 1


def test_the_theme_follows_the_system_and_can_be_switched(desktop: Visit) -> None:
    colours = (
        "() => [getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('.main-svg .xtick text')).fill]"
    )
    dark = desktop.page.evaluate(colours)
    desktop.page.click("#theme")
    desktop.drawn("light")
    light = desktop.page.evaluate(colours)
    assert (dark[0], light[0]) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")
    assert dark[1] != light[1]
    desktop.page.reload()
    assert desktop.page.locator("html").get_attribute("data-theme") == "light"  # remembered
    assert desktop.troubles == []


def test_it_fits_a_phone(browser: Any, class_run: Run, other_run: Run, folder: Path) -> None:
    compared = make([class_run.path, other_run.path], folder / "compared.html")
    with Visit(browser, compared, 390, has_touch=True, is_mobile=True) as visit:
        assert visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert visit.page.evaluate("innerWidth") == 390
        contents = visit.page.locator("nav details")
        assert contents.get_attribute("open") is None
        contents.locator("summary").click()
        contents.locator("a", has_text="Errors").first.click()
        assert contents.get_attribute("open") is None
        assert visit.troubles == []
