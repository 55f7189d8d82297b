"""Corrections of a read-only deployment: published as they are if nothing moved, dropped otherwise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import die_at
from tests.support.events import CLOCK, switch
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, Row, contents, correction
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName, corrections_branch, list_batches
from tidemark.collections.staged.flush import FAIL_POINTS, flush_all
from tidemark.errors import FencedByEpoch, ReadOnly
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

A, B, C = (1, "a"), (2, "b"), (3, "c")


@pytest.fixture
def planes(home: Settings) -> Shard:
    switch(home, Mode.READ_WRITE)
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    batch = correction(shard.load(), insert=[A, B], time=1)
    Writer.raise_token(shard, 1).publish(batch, lower=0, new_upper=5)
    return shard


def stage_correction(
    shard: Shard, settings: Settings, *, insert: list[Row], retract: list[Row], interval: tuple[int, int] | None = None
) -> None:
    branch = corrections_branch(settings.generation, interval)
    batch = correction(shard.load(), insert=insert, retract=retract, time=7)
    stage_whole(shard, batch, branch=branch, lower=5, time=7, digest=b"after", digest_note="m")


def flush_now(settings: Settings) -> dict[str, CollectionReport]:
    return flush_all(Shards.connect(settings), deployment_of(settings), [], clock=CLOCK).collections


def test_corrections_are_published_when_the_mode_ends(planes: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    stage_correction(planes, home, insert=[C], retract=[A])
    [listed] = list_batches(Shards.connect(home), [])
    assert (listed.name, listed.generation, listed.rows) == (BatchName("reconcile", Range(5, 8)), 1, 2)
    with pytest.raises(ReadOnly):
        flush_now(home)
    assert contents(planes.load()) == Counter([A, B])
    switch(home, Mode.READ_WRITE)
    writer = Writer.join(planes, 1)
    report = flush_now(home)["planes"]
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.FLUSHED, 1, 1)
    head = planes.load()
    assert (contents(head), head.staged_branches, read_digest(head)) == (Counter([B, C]), {}, b"after")
    assert flush_now(home) == {}
    with pytest.raises(FencedByEpoch):
        writer.advance(lower=head.state.upper, new_upper=10**14)


def test_corrections_that_are_replaced_leave_no_file_behind(planes: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    for row in (A, B):
        stage_correction(planes, home, insert=[C], retract=[row])
    assert leftovers(home, planes) == set()
    drop_staged(planes, planes.load().staged_branches)
    assert leftovers(home, planes) == set()


def test_corrections_that_something_overtook_are_dropped(planes: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    stage_correction(planes, newer, insert=[C], retract=[A])
    Writer.join(planes, 1).advance(lower=5, new_upper=9)  # the leader goes on beside it
    switch(newer, Mode.READ_WRITE)
    report = flush_now(newer)["planes"]
    assert report.outcome is Outcome.UNCHANGED
    assert report.details["stale"] == [corrections_branch(2, None)]
    head = planes.load()
    assert (contents(head), head.staged_branches) == (Counter([A, B]), {})


def test_new_deployment_publishes_what_it_computed_beside_the_leader(planes: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    stage_correction(planes, newer, insert=[C], retract=[A])
    switch(newer, Mode.READ_WRITE)  # raises the token, which moves main and not the contents
    assert flush_now(newer)["planes"].outcome is Outcome.FLUSHED
    assert contents(planes.load()) == Counter([B, C])


def test_corrections_of_rewritten_files_are_dropped(planes: Shard, home: Settings) -> None:
    writer = Writer.join(planes, 1)
    writer.publish(correction(planes.load(), insert=[C], time=5), lower=5, new_upper=6)
    batch = correction(planes.load(), insert=[], retract=[A], time=7)
    stage_whole(planes, batch, branch=corrections_branch(1, None), lower=6, time=7, digest=None, digest_note="")
    compact(writer)
    report = flush_now(home)["planes"]
    assert report.outcome in {Outcome.FLUSHED, Outcome.UNCHANGED}
    assert contents(planes.load()) == Counter([B, C] if report.outcome is Outcome.FLUSHED else [A, B, C])
    assert planes.load().staged_branches == {}


def test_of_several_slices_one_is_published(planes: Shard, home: Settings) -> None:
    stage_correction(planes, home, insert=[], retract=[A], interval=(0, 10))
    stage_correction(planes, home, insert=[C], retract=[], interval=(10, 20))
    report = flush_now(home)["planes"]
    assert (report.outcome, len(report.details["stale"])) == (Outcome.FLUSHED, 1)
    assert contents(planes.load()) == Counter([B])


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS[-1:])
def test_killed_flush_has_published_and_the_next_drops_the_other_slices(
    planes: Shard, home: Settings, point: str
) -> None:
    stage_correction(planes, home, insert=[C], retract=[], interval=(0, 5))
    stage_correction(planes, home, insert=[], retract=[A], interval=(5, 10))
    switch(home, Mode.READ_WRITE)
    assert die_at(point, flush_now, home) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert contents(planes.load()) == Counter([A, B, C])
    [left] = list_batches(Shards.connect(home), [])
    assert die_at("", flush_now, home) == 0
    assert list_batches(Shards.connect(home), []) == [], f"{left.name} is stale"
    assert contents(planes.load()) == Counter([A, B, C])
    assert leftovers(home, planes) == set()


def test_damaged_corrections_are_dropped(planes: Shard, home: Settings) -> None:
    stage_correction(planes, home, insert=[C], retract=[])
    table = planes.load().table
    table.append(table.scan(snapshot_id=planes.load().main.snapshot_id).to_arrow(), branch=corrections_branch(1, None))
    assert flush_now(home)["planes"].outcome is Outcome.UNCHANGED
    assert contents(planes.load()) == Counter([A, B])
