"""A day of each pattern: what the rules promise of it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from tidemark.collections.declarations.lifecycle import LifecycleRules
from tidemark.errors import UsageError
from tidemark.lifecycle.simulator import Pattern, Simulation, parse_rules, simulate


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


def test_the_same_seed_gives_the_same_day() -> None:
    simulation, lines = day(Pattern.COLD)
    again = Simulation(parse_rules([]))
    assert [*simulate(again, Pattern.COLD, days=1, seed=1)] == lines
    assert (again.files, again.most_open, again.reopened) == (12, simulation.most_open, 0)


def test_rules_are_tried_as_they_would_be_declared() -> None:
    rules = parse_rules(
        ["late_arrive_window=3h", "persist_age=6h", "persist_rows=1_000", "persist_when_cold=false", "soft_limit=8GiB"]
    )
    declared = {
        "late_arrive_window": "3h",
        "persist_age": "6h",
        "persist_rows": 1_000,
        "persist_when_cold": False,
        "soft_limit": "8GiB",
    }
    assert rules == LifecycleRules.model_validate(declared)
    simulation = Simulation(rules)
    assert count([*simulate(simulation, Pattern.LATE, days=1, seed=1)], "persist ", "persistable rows >= 1,000") > 0
    assert day(Pattern.LATE)[0].reopened > 100
    assert simulation.reopened == 0, "no row is later than the window"
    assert simulation.most_open > 5 * day(Pattern.LATE)[0].most_open, "which is what that costs"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (["persist_aeg=1h"], "--rule: unknown field 'persist_aeg'; did you mean 'persist_age'?"),
        (["max_compactions=3"], "--rule: unknown field 'max_compactions'"),
        (["persist_rows=-1"], "--rule, field 'persist_rows': "),
        (["persist_age=[1"], "no value of YAML"),
        (["persist_age=5m", "late_arrive_window=10m"], "`persist_age` 5m is less than `late_arrive_window` 10m"),
    ],
)
def test_what_a_declaration_refuses_is_refused(rules: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules(rules)
    assert said in str(caught.value)
