"""A budget is a deadline: on a machine that slows down or speeds up, by a clock that only the work moves."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import Command, sentences, write_csv
from threadpoolctl import threadpool_info, threadpool_limits

from bertvision.errors import Interrupted
from bertvision.heads.variants import build
from bertvision.options import Request
from bertvision.prepare import prepare
from bertvision.progress import Bar, Progress
from bertvision.recipe import Recipe
from bertvision.reports.content import _reproduce
from bertvision.reports.parts import Code
from bertvision.runs.directory import Run
from bertvision.states.passes import collect
from bertvision.states.sources import Memory
from bertvision.training import budget, measuring, threads
from bertvision.training.deadline import ANSWERS, CLOSING, HEADS, STARTUP, STATES, TUNE, Clock, Watch, piece
from bertvision.training.fit import fit
from bertvision.training.loop import Loop, loop_of
from bertvision.training.measuring import MarkSeconds
from bertvision.training.polish import Lesson, polish
from bertvision.types import HELD_OUT, TRAIN

Speed = Callable[[float], float]
SECONDS = {"fine-tune": 1.0, "states": 0.05, "polish": 0.1, "answers": 0.1, "initialise": 0.05}  # for each tick
START, END = Fraction(0), Fraction(1)
LATE = 64  # seconds: a tenth more than a minute, less what it takes to close


class Machine(Progress):
    """Its clock moves only when a bar does. From some second on, work takes so many times as long."""

    def __init__(self, slow: Speed = lambda now: 1.0, seconds: dict[str, float] = SECONDS) -> None:
        super().__init__(quiet=True)
        self.now, self.slow, self.seconds, self.said = 0.0, slow, seconds, list[str]()
        self.after: Callable[[str], None] = lambda label: None

    def clock(self) -> Clock:
        return Clock(self.now, lambda: self.now)

    def say(self, line: str) -> None:
        self.said.append(line)

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator[Bar]:
        each = next(seconds for name, seconds in self.seconds.items() if name in label)
        with super().bar(label, total, done) as bar:
            tick = bar.tick

            def timed(steps: int) -> None:
                self.now += steps * each * self.slow(self.now)
                self.after(label)
                tick(steps)

            bar.tick = timed  # type: ignore[method-assign]
            yield bar


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is what a machine of the usual speed takes for the table of 120 rows, batches of 8."""
    monkeypatch.setattr(measuring, "epoch_seconds", lambda setting: 13 * SECONDS["fine-tune"])
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: {"joint": MarkSeconds(4.9, 3.2, 1.1, 1.2)})


def request(table: Path, out: Path, **options: object) -> Request:
    given = {
        "train": str(table),
        "out": str(out),
        "backbone": "tiny",
        "budget": 1.0,
        "folds": "0",
        "heads": "closed-form,last-layer",
    }
    return Request(**given | options)


def ended(table: Path, out: Path, machine: Machine, **options: object) -> Run:
    return fit(request(table, out, **options), progress=machine, clock=machine.clock())


def test_the_pace_follows_the_machine_in_seconds_and_the_slower_average_counts() -> None:
    machine = Machine()
    watch = Watch(machine.clock(), 1.0, {TUNE: 30.0, CLOSING: 4.0})
    turn, paces = watch.turn(TUNE), []
    for slow in 20 * [1.0] + 10 * [3.0] + 5 * [1.0]:
        machine.now += slow
        turn.done(1 / 30)
        paces.append(watch.pace)
    assert paces[19] == pytest.approx(1.0)
    assert 2.5 < paces[29] < 3.0
    assert paces[34] > 1.5  # as it may be slow again


def test_pieces_share_what_is_left_and_fixed_ones_keep_their_time() -> None:
    machine = Machine()
    work = {
        piece(STATES, START, "joint"): 10.0,
        piece(HEADS, START, "joint"): 5.0,
        piece(ANSWERS, START, "joint"): 3.0,
        piece(TUNE, END): 25.0,
        CLOSING: 4.6,
    }
    watch = Watch(machine.clock(), 1.0, work)
    assert watch.end == pytest.approx(57.6)
    states = watch.turn(piece(STATES, START, "joint"))
    assert states.seconds() == pytest.approx(1.3 * 50 * 10 / 40)
    short = Watch(machine.clock(), 1.0, work | {states.name: 2.0}).turn(states.name)
    assert short.seconds() == pytest.approx(3 * 50 * 2 / 32)
    machine.now = 30.0
    tune = watch.turn(piece(TUNE, END))
    assert (tune.seconds(), tune.over()) == (pytest.approx(57.6 - 4.6 - 30), 0.0)
    assert tune.reach() == pytest.approx(23 / 25)
    machine.now = 50.0
    assert tune.over() == pytest.approx(20 / 23)
    machine.now = 54.0
    assert tune.over() > 1
    assert watch.turn(piece(TUNE, END)).over() == 1.0  # too late to begin
    assert watch.fits(3.7)
    assert not watch.fits(4.0)


def test_without_a_budget_nothing_is_ever_over() -> None:
    machine = Machine()
    turn = Watch(machine.clock()).turn(piece(TUNE, END))
    machine.now = 1e9
    turn.done(0.5)
    assert (turn.over(), turn.reach()) == (0.0, float("inf"))


def test_threads_are_given_up_while_others_use_the_processors() -> None:
    """In the middle, this thread gets a third of the time; there, one thread is the faster choice."""
    now, used, probes = [0.0], [0.0], list[tuple[float, bool]]()

    def settle() -> bool:
        probes.append((now[0], 20 <= now[0] < 60))
        return probes[-1][1]

    watched = threads.Threads(settle, lambda: now[0], lambda: used[0])
    for second in range(100):
        now[0] += 1.0
        used[0] += 0.33 if 20 <= second < 60 else 1.0
        watched.adapt()
    assert [when for when, _ in probes] == [21, 51, 61]  # at once, in between, and when the others have gone
    assert [alone for _, alone in probes] == [True, True, False]


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 13, 100, 222, 20_000])
def test_a_mark_names_exactly_the_step_that_was_reached(steps_per_epoch: int) -> None:
    loop = Loop.__new__(Loop)
    loop.windows, loop.recipe = range(steps_per_epoch), Recipe(batch_size=1)  # type: ignore[assignment]
    for step in {0, 1, 2, 6, 13, 101, 333, steps_per_epoch, 3 * steps_per_epoch - 1}:
        assert loop.step_of(loop.mark_of(step)) == step
    assert loop.mark_of(2 * steps_per_epoch) == 2
    if steps_per_epoch <= 100:
        assert 100 % loop.mark_of(5).denominator == 0


@pytest.mark.parametrize("slow", [lambda now: 1.0, lambda now: 3.0 if now > 20 else 1.0, lambda now: 0.5])
def test_the_learning_rate_reaches_zero_when_time_is_up(table: Path, slow: Speed) -> None:
    setting, machine = prepare(request(table, table, lead="own"), Progress(quiet=True)), Machine(slow)
    loop = loop_of(setting, build([], setting.shape, 0), Accelerator(cpu=True))
    turn, rates = Watch(machine.clock(), 1.0, {TUNE: 52.0, CLOSING: 3.0}).turn(TUNE), list[float]()

    def after_step(loss: float) -> None:
        machine.now += machine.slow(machine.now)
        turn.done(1 / 52)
        rates.append(loop.optimizer.param_groups[0]["lr"] / loop.lr)

    loop.advance(130, 130, after_step, turn.over)
    assert max(rates) > 0.9
    assert rates[-1] < 0.1
    assert rates[-5:] == sorted(rates[-5:], reverse=True)
    assert 45 < machine.now < 57


def test_a_machine_as_planned_uses_its_time(table: Path, tmp_path: Path, planned: None) -> None:
    machine = Machine()
    run = ended(table, tmp_path / "run", machine)
    assert 51 < machine.now < 58
    plan, last = run.record.plan, run.results.last
    assert plan is not None
    assert 0.9 < Fraction(last.mark) / Fraction(plan.epochs) < 1.1
    assert run.record.recipe.marks == f"0,{last.mark}"
    assert last.step == round(13 * Fraction(last.mark))
    (said, *_) = _reproduce(run.record)
    assert isinstance(said, Code)
    assert f"first {last.step} steps" in said.label


@pytest.mark.parametrize("when", [0, 8, 20, 40, 50])
def test_a_machine_that_slows_down_at_any_time_is_not_late(
    table: Path, tmp_path: Path, planned: None, when: float
) -> None:
    machine = Machine(lambda now: 3.0 if now >= when else 1.0)
    run = ended(table, tmp_path / "run", machine)
    assert 40 < machine.now < LATE
    assert run.results.marks[0].mark == "0"


def test_a_faster_machine_trains_longer_but_not_for_ever(table: Path, tmp_path: Path, planned: None) -> None:
    usual, fast = Machine(), Machine(lambda now: 0.5)
    epochs = [Fraction(ended(table, tmp_path / f"{i}", one).results.last.mark) for i, one in enumerate((usual, fast))]
    assert epochs[1] > 1.6 * epochs[0]
    very = Machine(lambda now: 0.01)
    assert ended(table, tmp_path / "very", very).results.last.mark == str(measuring.HIGHEST)
    assert very.now < 3


def test_states_and_polishing_that_take_too_long_end_early(table: Path, tmp_path: Path, planned: None) -> None:
    machine = Machine(lambda now: 10.0)  # 80 seconds for all of it
    run = ended(table, tmp_path / "run", machine)
    assert machine.now < 66
    assert any("states of" in line for line in machine.said)
    assert run.results.last.mark == "0"
    assert run.record.recipe.epochs == "0"
    assert run.model().predict(["a great film"])


def test_a_second_way_to_read_pairs_is_left_out_if_there_is_no_time_for_it(
    pair_table: Path, tmp_path: Path, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = dict.fromkeys(("joint", "separate"), MarkSeconds(4.0, 2.4, 1.0, 1.0))
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: costs)
    machine = Machine(lambda now: 20.0 if now > 6.4 else 1.0)
    run = ended(pair_table, tmp_path / "run", machine, text="one", text_pair="two")
    assert machine.now < LATE
    assert "budget: no time to read pairs separate" in machine.said
    assert set(run.results.last.ways.values()) == {"joint"}


def test_polish_follows_the_clock(table: Path) -> None:
    setting, machine = prepare(request(table, table), Progress(quiet=True)), Machine()
    heads = build(["last-layer"], setting.shape, 0)
    source = Memory(collect(setting.encoder, setting.encoded[TRAIN], setting.reads, "joint"), 0)
    before, name = heads["last-layer"].output.weight.clone(), piece(HEADS, START, "joint")
    ticks = []

    def tick(steps: int) -> None:
        machine.now += 10.0
        ticks.append(steps)

    turn = Watch(machine.clock(), 1.0, {name: 3.2, CLOSING: 0.0}).turn(name)
    polish(heads, Lesson(source, setting.train_targets(), "class"), setting.recipe, tick, turn)
    assert len(ticks) == 7 < source.steps(setting.recipe.polish)
    assert not torch.equal(before, heads["last-layer"].output.weight)


def test_the_marks_of_a_run_report_on_the_same_sample_if_time_runs_out(
    table: Path, tmp_path: Path, planned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the last models answer, the machine almost stops. What reads the run later finds the same rows."""
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: {"joint": MarkSeconds(4.9, 3.2, 1.1, 15.0)})
    write_csv(tmp_path / "dev.csv", ("text", "label"), sentences(150, seed=1))
    machine = Machine(lambda now: 3.0 if now > 42 else 1.0)
    run = ended(table, tmp_path / "run", machine, dev=str(tmp_path / "dev.csv"))
    assert machine.now < LATE
    first, last = run.results.marks
    size = run.record.recipe.dev_limit
    assert size is not None
    assert 50 <= size < 150
    assert run.record.request.dev_limit is None
    assert any(f"scores on {size} rows of dev" in line for line in machine.said)
    again = prepare(run.record.recipe, Progress(quiet=True))
    assert again.parts["dev"].digest() == run.record.data["dev"].sha256
    for mark in (first, last):
        kept = run.predictions(mark.mark)["dev"]
        assert np.array_equal(kept.targets, again.targets("dev"))
        right = (kept.outputs["encoder"].argmax(1) == kept.targets).mean()
        assert mark.score("encoder", "accuracy", "dev").value == pytest.approx(right)
    shipped = run.results.selected
    found = run.model().evaluate().scores["dev"][shipped.model]["accuracy"].value
    assert found == pytest.approx(run.mark(shipped.mark).score(shipped.model, "accuracy", "dev").value)


def test_folds_share_the_time(table: Path, tmp_path: Path, planned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "mark_seconds", lambda *given: {"joint": MarkSeconds(5.4, 3.2, 10.8, 1.2)})
    for when in (99, 20):
        machine = Machine(lambda now, when=when: 3.0 if now > when else 1.0)
        run = ended(table, tmp_path / f"run-{when}", machine, folds="2")
        assert 40 < machine.now < LATE
        assert run.record.recipe.folds == ("2" if when == 99 else "1/2")
        again = prepare(run.record.recipe, Progress(quiet=True))
        assert again.parts[HELD_OUT].digest() == run.record.data[HELD_OUT].sha256
        kept = run.predictions(run.results.last.mark)[HELD_OUT]
        assert np.array_equal(kept.targets, again.targets(HELD_OUT))
        assert kept.outputs["closed-form+polish" if run.results.last.mark == "0" else "closed-form"].max() <= 1


def interrupted(table: Path, out: Path, at: int, jump: float = 0.0) -> Machine:
    """A run that is interrupted after some steps of fine-tuning, when `jump` more seconds have passed."""
    machine, steps = Machine(), [0]

    def after(label: str) -> None:
        steps[0] += "fine-tune" in label
        if steps[0] == at:
            machine.now += jump
            os.kill(os.getpid(), signal.SIGINT)

    machine.after = after
    with pytest.raises(Interrupted, match=f"Interrupted at step {at}"):
        ended(table, out, machine)
    return machine


def resumed(table: Path, out: Path) -> tuple[Run, Machine]:
    machine = Machine()
    return fit(request(table, out), resume=True, progress=machine, clock=machine.clock()), machine


def test_a_run_that_is_resumed_has_the_rest_of_its_time(table: Path, tmp_path: Path, planned: None) -> None:
    before = interrupted(table, tmp_path / "run", 10)
    run, after = resumed(table, tmp_path / "run")
    assert 51 < before.now + after.now < 58
    whole = ended(table, tmp_path / "whole", Machine())
    assert abs(run.results.last.step - whole.results.last.step) <= 1


def test_a_run_that_is_resumed_after_its_deadline_ends_with_what_it_has(
    table: Path, tmp_path: Path, planned: None
) -> None:
    interrupted(table, tmp_path / "run", 10, jump=1000.0)
    run, after = resumed(table, tmp_path / "run")
    assert [mark.step for mark in run.results.marks] == [0, 10]
    assert run.record.recipe.epochs == run.results.last.mark == "77/100"
    assert after.now < 10
    assert run.model().predict(["a great film"])


def test_a_command_begins_with_its_process() -> None:
    assert 0 < Clock.of_process().elapsed() < STARTUP + 1


def test_what_is_over_before_it_begins_is_refused_at_once(table: Path, tmp_path: Path, command: Command) -> None:
    code, _, err = command("fit", table, "--backbone", "tiny", "--budget", "0.01", "--out", tmp_path / "run")
    assert code == 1
    assert "--budget 0.01: starting and saving alone take about" in err
    assert not list(tmp_path.glob("run*"))


def test_the_number_of_threads_is_as_before_when_a_run_ends() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    several = [library["num_threads"] for library in threadpool_info()]
    try:
        with threads.kept():
            assert threads.settle() == (torch.get_num_threads() == 1)
            threadpool_limits(limits=1)
            torch.set_num_threads(1)
        assert torch.get_num_threads() == 2
        assert [library["num_threads"] for library in threadpool_info()] == several
        assert not threads.settle()  # only inside
    finally:
        torch.set_num_threads(before)


def test_a_side_of_polishing_is_not_crossed(table: Path) -> None:
    """Time was set aside for polishing at the last mark, or not."""
    recipe = prepare(request(table, table), Progress(quiet=True)).recipe
    unpolished = budget.ending_at(replace(recipe, epochs="1", marks="0,1"), Fraction(1, 5))
    assert (unpolished.marks, unpolished.polishes(Fraction(1, 5))) == ("0,1/5", False)
    polished = replace(recipe, epochs="1", marks="1", polish_until="2")
    assert budget.ending_at(polished, Fraction(1, 5)).polishes(Fraction(1, 5))
    assert budget.last_mark(polished, 13) == 2
    assert budget.last_mark(replace(polished, polish_until="all"), 13) == 10
