"""A suite of real tables: BERTVision and what a user would take instead, on data that nobody tuned to.

    python -m benchmarks.suite.run --data ../shared/data/suite --dry-run    # the jobs, and what they will take
    python -m benchmarks.suite.run --data ../shared/data/suite --hours 8    # run them; finished jobs are kept
    python -m benchmarks.suite.page                                         # docs/suite.md and its picture
    python -m benchmarks.suite.check                                        # what issue 20 found broken, again

Job, Outcome, Contestant and the processes are those of `benchmarks/rivals`. A data set is a line of `TABLES`, a
contestant a file of this folder (or a part of one) that adds itself to `contestants`. Everybody gets the same rows of
train.csv (`--limit`); contestants that choose nothing on held-out rows train on all of them. test.csv only reports.
"""

from dataclasses import dataclass, replace

from benchmarks.rivals import Contestant, Task

from bertvision.registry import Registry

SIZES = (100, 1_000, 10_000)  # training rows; the last means all, up to that many
LARGE = 1_000  # sizes above this come last
BUDGETS = (1, 3)  # minutes
GRACE = 1.1  # a budget counts as kept within 10%, for everybody


@dataclass(frozen=True)
class Table:
    """A data set: its folder and columns, and what is needed to estimate seconds without reading it."""

    name: str
    folder: str
    kind: str
    rows: int  # of train.csv
    dev: int  # of test.csv
    words: int  # mean per example, both texts of a pair together
    label: str = "label"
    text: str = "text"
    pair: str | None = None
    dev_limit: int | None = None
    optional: bool = False  # run only if named by --sets

    def at(self, size: int) -> Task:
        """The table with so many training rows, as contestants are asked whether they take part in it."""
        rows, dev = min(size, self.rows), min(self.dev, self.dev_limit or self.dev)
        epoch = rows * (0.004 + 0.0006 * min(self.words, 200))  # measured: 9 ms for 8 words, 43 ms for 65
        return Task(self.name, self.kind, self.pair is not None, rows, dev, epoch, epoch / 2, size, self.dev_limit)

    def sizes(self, wanted: tuple[int, ...]) -> list[int]:
        """The sizes that give it other rows than a smaller one does."""
        ascending = sorted(wanted)
        return [size for i, size in enumerate(ascending) if i == 0 or self.rows > ascending[i - 1]]


SICK = Table("sick-label", "sick", "class", 4_936, 4_927, 19, text="text_a", pair="text_b", dev_limit=2_000)
TABLES = {
    table.name: table
    for table in (
        Table("banking77", "banking77", "class", 9_996, 3_080, 12),
        Table("trec", "trec", "class", 5_441, 500, 10),
        Table("trec-fine", "trec", "class", 5_441, 500, 10, label="label_fine"),
        Table("dbpedia14", "dbpedia14", "class", 3_000, 1_500, 46),
        Table("newsgroups20", "newsgroups20", "class", 1_600, 700, 179),
        Table("sms_spam", "sms_spam", "class", 3_958, 1_200, 15),
        Table("subj", "subj", "class", 5_000, 1_500, 24),
        Table("financial_phrasebank", "financial_phrasebank", "class", 3_838, 1_000, 23),
        Table("scicite", "scicite", "class", 4_000, 1_500, 34),
        SICK,
        replace(SICK, name="sick-score", kind="score", label="score"),
        Table("wine_points", "wine_points", "score", 4_140, 1_000, 37, label="points"),
        Table("clear_readability", "clear_readability", "score", 1_500, 500, 174, label="score"),
        Table("emobank-valence", "emobank", "score", 6_000, 1_000, 15, label="valence"),
        Table("emobank-arousal", "emobank", "score", 6_000, 1_000, 15, label="arousal", optional=True),
        Table("emobank-dominance", "emobank", "score", 6_000, 1_000, 15, label="dominance", optional=True),
    )
}

contestants: Registry[Contestant] = Registry("contestant", __name__)
