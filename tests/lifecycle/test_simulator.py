"""A day of each pattern: what the rules promise of it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.lifecycle.simulator import Pattern, Simulation, main, simulate


@cache
def day(pattern: Pattern) -> tuple[Simulation, list[str]]:
    simulation = Simulation(LifecycleRules())
    return simulation, list(simulate(simulation, pattern, days=1, seed=1))


def count(lines: list[str], *words: str) -> int:
    return sum(all(word in line for word in words) for line in lines)


@pytest.mark.parametrize("pattern", Pattern)
def test_each_row_is_persisted_or_open(pattern: Pattern) -> None:
    simulation, _ = day(pattern)
    waiting = sum(entry.rows for entries in simulation.entries.values() for entry in entries)
    staged = sum(chunk.rows for chunks in simulation.chunks.values() for chunk in chunks)
    assert simulation.arrived == simulation.persisted + waiting
    assert staged == waiting
    assert waiting < simulation.arrived / 20


@pytest.mark.parametrize("pattern", Pattern)
def test_the_state_keeps_only_partitions_in_use(pattern: Pattern) -> None:
    assert len(day(pattern)[0].state.partitions) <= 6


def test_steady_rows_are_persisted_by_age_and_each_hour_closes_once() -> None:
    _, lines = day(Pattern.STEADY)
    hours = [line.split("closed   ")[1][:13] for line in lines if "closed   " in line]
    assert len(hours) == len(set(hours)) == 24  # from that before the first one to that before the last one
    assert count(lines, "persist ", "oldest open row 30 min >= 30 min") == 48
    assert count(lines, "reopened") == 0


def test_a_burst_is_persisted_by_rows() -> None:
    assert count(day(Pattern.BURSTY)[1], "persist ", "persistable rows >= 1,000,000") == 24


def test_late_rows_reopen_their_hour_which_closes_again() -> None:
    events: dict[str, list[str]] = {}
    for line in day(Pattern.LATE)[1]:
        if " closed " in line or " reopened " in line:
            event, partition = line[21:].replace(":", "").split()[:2]
            events.setdefault(partition, []).append(event)
    assert sum(found.count("reopened") for found in events.values()) > 100
    for partition, found in events.items():
        assert all(one != other for one, other in pairwise(found)), f"{partition} is announced once at a time"


def test_cold_partitions_are_persisted_when_the_window_is_over() -> None:
    _, lines = day(Pattern.COLD)
    assert count(lines, "persist ") == count(lines, "persist ", "cold: no row for 5 min >= 5 min") == 12


def test_steps_of_the_clock_lose_nothing() -> None:
    _, lines = day(Pattern.CLOCK_STEPS)
    assert count(lines, "the clock is") == 4
    assert count(lines, "wrote") > 48


def test_the_same_seed_gives_the_same_day(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--pattern", "cold", "--days", "1", "--seed", "1"]
    assert main(arguments) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == day(Pattern.COLD)[1]
    assert summary.endswith("are persisted in 12 files")
