"""What a deployment staged that led, and was replaced before its flush: the next leader publishes it, once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.clock import SteppedClock
from tests.support.crash import die_at
from tests.support.events import CLOCK, append_numbers, create_events, numbers, rows_table, switch, visible
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, contents, correction
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.append.append import Append
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance.maintain import MaintenancePolicy, maintain
from tidemark.collections.mode import FAIL_POINTS as PROMOTION
from tidemark.collections.staged import corrections
from tidemark.collections.staged.batches import (
    BatchName,
    corrections_branch,
    describe_waiting,
    list_batches,
    own_corrections,
)
from tidemark.collections.staged.discard import discard_expired
from tidemark.collections.staged.flush import FAIL_POINTS, flush_all
from tidemark.errors import FencedByGeneration
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.publisher import FAIL_POINTS as PUBLISHING
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import find_abandoned
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.orchestration.status_page.observed import Observer
from tidemark.orchestration.status_page.staged import show_staged
from tidemark.orchestration.tasks.flush import staged_now
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import CollectionReport, Report
    from tidemark.settings import Settings

A, B, C = (1, "a"), (2, "b"), (3, "c")


def of(settings: Settings, generation: int) -> Settings:
    return replace(settings, generation=generation)


@pytest.fixture
def events(home: Settings) -> Shard:
    """A collection to which deployment 1 appended ``[0, 2)``; it leads, and is read-only for the upgrade."""
    shard = create_events(home)
    append_numbers(shard, home, 0, 2)
    switch(home, Mode.READ_ONLY)
    return shard


def flush_now(settings: Settings, *takes_over: int) -> Report:
    deployment = replace(deployment_of(settings), takes_over=frozenset(takes_over))
    return flush_all(Shards.connect(settings), deployment, [], clock=CLOCK)


def promote(settings: Settings) -> None:
    switch(settings, Mode.READ_WRITE)


def left(settings: Settings) -> list[tuple[int, Range]]:
    return [(batch.generation, batch.name.range) for batch in list_batches(Shards.connect(settings), [])]


def test_new_leader_publishes_what_the_old_one_staged(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 5)
    promote(of(home, 2))
    batches, mode = list_batches(Shards.connect(home), []), deployment_of(of(home, 2)).modes.read()
    assert describe_waiting(batches, mode) == "1 staged by deployment 1 wait until deployment 2 flushes"
    assert staged_now(Shards.connect(home), of(home, 2), [])["events"].ranges == {"p": [[2, 5]]}
    report = flush_now(of(home, 2)).collections["events"]
    assert (report.outcome, report.inserted, report.exit_code) == (Outcome.FLUSHED, 3, ExitCode.OK)
    assert report.details == {"ranges": {"p": [[2, 5]]}, "taken_over": ["staged/1/p/2:5"]}
    assert visible(events) == Counter(numbers(0, 5))
    assert events.load().state.ledgers == {"p": Ledger((Range(0, 5),))}
    assert flush_now(of(home, 2)).collections == {}


def test_leader_after_the_next_one_takes_over_from_both(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 3)
    promote(of(home, 2))
    switch(of(home, 2), Mode.READ_ONLY)
    append_numbers(events, of(home, 2), 3, 4)
    promote(of(home, 3))
    report = flush_now(of(home, 3)).collections["events"]
    assert report.details["taken_over"] == ["staged/1/p/2:3", "staged/2/p/3:4"]
    assert visible(events) == Counter(numbers(0, 4))


def test_deployment_that_never_led_is_only_named_until_somebody_asks(events: Shard, home: Settings) -> None:
    append_numbers(events, of(home, 2), 2, 3)
    append_numbers(events, of(home, 4), 3, 4)
    promote(of(home, 3))
    report = flush_now(of(home, 3)).collections["events"]
    assert (report.outcome, report.batches) == (Outcome.UNCHANGED, 0)
    assert "1 staged by deployment 2 wait until somebody decides" in str(report.details["waiting"])
    assert "1 staged by deployment 4 wait until deployment 4 leads" in str(report.details["waiting"])
    assert visible(events) == Counter(numbers(0, 2))
    assert staged_now(Shards.connect(home), of(home, 3), []) == {}
    assert flush_now(of(home, 3), 2).collections["events"].details["taken_over"] == ["staged/2/p/2:3"]
    assert (visible(events), left(home)) == (Counter(numbers(0, 3)), [(4, Range(3, 4))])


def test_deployment_beside_the_leader_takes_nothing_over(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 3)
    assert deployment_of(of(home, 2)).heir_of([1, 2]) == {2}
    assert append_numbers(events, of(home, 2), 2, 3).outcome is Outcome.STAGED
    assert left(home) == [(1, Range(2, 3)), (2, Range(2, 3))]
    promote(of(home, 2))
    report = flush_now(of(home, 2)).collections["events"]
    assert (report.inserted, report.details["already_published"]) == (1, ["p 2:3"])
    assert (visible(events), left(home)) == (Counter(numbers(0, 3)), [])


def test_append_of_what_the_old_leader_staged_publishes_it(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 5)
    promote(of(home, 2))
    assert append_numbers(events, of(home, 2), 2, 5).outcome is Outcome.APPENDED
    assert append_numbers(events, of(home, 2), 2, 5).outcome is Outcome.SKIPPED
    assert (visible(events), left(home)) == (Counter(numbers(0, 5)), [])


def test_what_the_new_leader_accepted_comes_first(events: Shard, home: Settings) -> None:
    append_numbers(events, of(home, 2), 2, 6)
    append_numbers(events, of(home, 2), 8, 10)
    append_numbers(events, home, 3, 5)  # inside
    append_numbers(events, home, 9, 12)  # in part
    promote(of(home, 2))
    report = flush_now(of(home, 2)).collections["events"]
    assert (report.outcome, report.error.kind) == (Outcome.FLUSHED, "RangeOverlap")
    assert report.error.hint.endswith("--range 9:12 --generation 1")
    assert report.details["already_published"] == ["p 3:5"]
    assert (visible(events), left(home)) == (Counter([*numbers(0, 6), *numbers(8, 10)]), [(1, Range(9, 12))])


def test_old_leader_that_looked_before_the_promotion_stages_nothing_after_it(events: Shard, home: Settings) -> None:
    deployment, name = deployment_of(home), BatchName("p", Range(2, 3))
    batch = Append(shard=events, name=name, deployment=deployment, clock=CLOCK)
    assert batch.look() is None
    batch.write(rows_table(numbers(2, 3)))
    promote(of(home, 2))
    with pytest.raises(FencedByGeneration):
        batch.finish()
    assert left(home) == []


def test_retention_of_staged_batches_keeps_what_the_next_flush_publishes(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 3)
    append_numbers(events, of(home, 2), 3, 4)
    promote(of(home, 3))
    declaration = Declaration.model_validate(
        {"name": "events", "kind": "append-only", "schema": "id bigint, name string", "staged_retention": "1d"}
    )
    leader, late = deployment_of(of(home, 3)), SteppedClock(10**15)
    discarded = discard_expired(Shards.connect(home), events, declaration, leader, now_ms=late.now_ms(), clock=late)
    assert ([batch.generation for batch in discarded], left(home)) == ([2], [(1, Range(2, 3))])


def test_the_status_page_tells_what_each_deployment_has_staged(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 2, 3)
    append_numbers(events, of(home, 2), 3, 4)
    batches = show_staged(Observer(home, SystemClock()))["batches"]
    assert sorted((each["generation"], each["range"]) for each in batches) == [(1, [2, 3]), (2, [3, 4])]


# -- at once, and killed -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_flushes_at_once_take_over_once(events: Shard, home: Settings) -> None:
    for number in range(2, 6):
        append_numbers(events, home, number, number + 1)
    promote(of(home, 2))
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: flush_now(of(home, 2)), range(2)))
    assert [report.exit_code for report in reports] == [ExitCode.OK, ExitCode.OK]
    assert sum(each.inserted for report in reports for each in report.collections.values()) == 4
    assert visible(events) == Counter(numbers(0, 6))


@pytest.mark.slow
def test_old_leader_that_stages_while_the_new_one_takes_over(events: Shard, home: Settings) -> None:
    """Whatever was acknowledged is visible once after the last flush; the rest was refused."""

    def stage(number: int) -> int | None:
        try:
            assert append_numbers(events, home, number, number + 1).outcome is Outcome.STAGED
        except FencedByGeneration:
            return None
        return number

    with ThreadPoolExecutor(2) as pool:
        staging = pool.map(stage, range(2, 14))
        promoted = pool.submit(promote, of(home, 2))
        promoted.result()
        flush_now(of(home, 2))
        accepted = [number for number in staging if number is not None]
    flush_now(of(home, 2))
    assert visible(events) == Counter([*numbers(0, 2), *(row for n in accepted for row in numbers(n, n + 1))])
    assert left(home) == []


@pytest.mark.crash
@pytest.mark.parametrize("point", PROMOTION)
def test_killed_promotion_is_repeated_and_the_flush_takes_over(events: Shard, home: Settings, point: str) -> None:
    append_numbers(events, home, 2, 5)
    assert die_at(point, promote, of(home, 2)) == FAIL_POINT_EXIT, f"{point} was never reached"
    flush_now(of(home, 2))
    assert (visible(events), left(home)) == (Counter(numbers(0, 5)), [])


@pytest.mark.crash
@pytest.mark.parametrize("point", [*FAIL_POINTS, *PUBLISHING])
def test_killed_flush_takes_over_all_or_nothing(events: Shard, home: Settings, point: str) -> None:
    for number in range(2, 12):  # enough to be merged
        append_numbers(events, home, number, number + 1)
    promote(of(home, 2))
    assert die_at(point, flush_now, of(home, 2)) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert visible(events) in (Counter(numbers(0, 2)), Counter(numbers(0, 12)))
    assert flush_now(of(home, 2)).exit_code is ExitCode.OK
    assert (visible(events), left(home)) == (Counter(numbers(0, 12)), [])


# -- corrections ---------------------------------------------------------------------------------------------------


@pytest.fixture
def planes(home: Settings) -> Shard:
    """A collection of two rows, for which deployment 1, which leads read-only, staged a correction."""
    switch(home, Mode.READ_WRITE)
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    Writer.raise_token(shard, 1).publish(correction(shard.load(), insert=[A, B], time=1), lower=0, new_upper=5)
    switch(home, Mode.READ_ONLY)
    stage_correction(shard, 1)
    return shard


def stage_correction(shard: Shard, generation: int) -> None:
    batch = correction(shard.load(), insert=[C], retract=[A], time=7)
    branch = corrections_branch(generation, None)
    stage_whole(shard, batch, branch=branch, lower=5, time=7, digest=b"after", digest_note="m")


def flush_planes(settings: Settings) -> CollectionReport:
    return flush_now(settings).collections["planes"]


def test_new_leader_publishes_corrections_of_the_old_one(planes: Shard, home: Settings) -> None:
    promote(of(home, 2))
    head = planes.load()
    assert find_abandoned(head, now_ms=0, max_age_ms=10**15) == own_corrections(head, deployment_of(of(home, 2)))
    kept = own_corrections(head, deployment_of(of(home, 2)))
    assert find_abandoned(head, now_ms=10**15, max_age_ms=0, kept=kept) == []
    report = flush_planes(of(home, 2))
    assert (report.outcome, report.details) == (Outcome.FLUSHED, {"taken_over": ["staged/1/reconcile/all"]})
    assert contents(planes.load()) == Counter([B, C])
    assert (planes.load().staged_branches, leftovers(home, planes)) == ({}, set())


def test_stale_corrections_of_the_old_leader_stay_and_are_named(planes: Shard, home: Settings) -> None:
    promote(of(home, 2))
    Writer.join(planes, 2).publish(correction(planes.load(), retract=[B], time=5), lower=5, new_upper=9)
    report = flush_planes(of(home, 2))
    branch = corrections_branch(1, None)
    assert (report.details["stale"], report.details["next"]) == ([branch], "tidemark reconcile planes")
    assert (contents(planes.load()), [*planes.load().staged_branches]) == (Counter([A]), [branch])


def test_maintenance_keeps_what_a_deployment_will_publish_whatever_its_age(planes: Shard, home: Settings) -> None:
    stage_correction(planes, 2)  # of a deployment that may lead one day
    switch(home, Mode.READ_WRITE)
    policy = MaintenancePolicy(staged_age_ms=-1)
    before = planes.load().staged_branches
    report = maintain(None, Shards.connect(home), planes, deployment=deployment_of(home), policy=policy, clock=CLOCK)
    assert (len(before), report.details["abandoned_branches"]) == (2, [])
    assert planes.load().staged_branches == before


def test_own_corrections_come_before_those_of_the_old_leader(planes: Shard, home: Settings) -> None:
    stage_correction(planes, 2)
    promote(of(home, 2))
    report = flush_planes(of(home, 2))
    assert (report.outcome, report.details["superseded"]) == (Outcome.FLUSHED, [corrections_branch(1, None)])
    assert contents(planes.load()) == Counter([B, C])


@pytest.mark.crash
@pytest.mark.parametrize("point", [*corrections.FAIL_POINTS, *PUBLISHING])
def test_killed_flush_of_corrections_takes_over_all_or_nothing(planes: Shard, home: Settings, point: str) -> None:
    promote(of(home, 2))
    assert die_at(point, flush_now, of(home, 2)) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert contents(planes.load()) in (Counter([A, B]), Counter([B, C]))
    flush_now(of(home, 2))
    assert (contents(planes.load()), planes.load().staged_branches) == (Counter([B, C]), {})
