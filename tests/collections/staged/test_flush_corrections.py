"""Corrections of a read-only deployment: published together if the contents are the same, named otherwise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyiceberg.types import LongType

from tests.support.commits import act_before_commit
from tests.support.crash import die_at
from tests.support.declared import csv_declaration
from tests.support.discarding import discard
from tests.support.events import CLOCK, switch
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, Row, change_log, contents, correction, local_path, updates_table
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.digest.digest import Digest, digest_to_bytes
from tidemark.collections.staged.batches import BatchName, corrections_branch, list_batches
from tidemark.collections.staged.corrections import FAIL_POINTS
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.collections.staged.slices import Coverage, Slice, reconcile_command, slice_text, to_reconcile
from tidemark.entry_points import parse_interval
from tidemark.errors import FencedByEpoch, ReadOnly
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.holds import downgrade_since, hold
from tidemark.iceberg.commit.publisher import FAIL_POINTS as PUBLISHING
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.iceberg.maintenance.compaction_plan import CompactionPolicy
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.digest_file import read_digest
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging.branches import drop_staged
from tidemark.iceberg.staging.correction_branches import stage_whole
from tidemark.interval import Interval
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

A, B, C, D = (1, "a"), (2, "b"), (3, "c"), (4, "d")
DAY = 10


@pytest.fixture
def planes(home: Settings) -> Shard:
    switch(home, Mode.READ_WRITE)
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    batch = correction(shard.load(), insert=[A, B], time=1)
    Writer.raise_token(shard, 1).publish(batch, lower=0, new_upper=5)
    return shard


def stage_correction(
    shard: Shard,
    settings: Settings,
    *,
    insert: list[Row] | None = None,
    retract: list[Row] | None = None,
    days: tuple[int, int] | None = None,
    time: int = 7,
    digest: bytes | None = b"after",
    column: str = "day",
) -> str:
    """Stage a correction of everything, or of ``days``; without a ``column`` as Tidemark did before it said which."""
    interval = days and (days[0] * DAY, days[1] * DAY)
    branch = corrections_branch(settings.generation, interval)
    batch = correction(shard.load(), insert=insert or [], retract=retract or [], time=time)
    about = slice_text(Slice(column, Range(*interval)) if interval else None) if column else ""
    stage_whole(shard, batch, branch=branch, lower=5, time=time, digest=digest, digest_note="m", about=about)
    return branch


def flush_now(settings: Settings) -> dict[str, CollectionReport]:
    return flush_all(Shards.connect(settings), deployment_of(settings), [], clock=CLOCK).collections


def digest_of(*rows: Row, buckets: int = 4096) -> bytes:
    hashes = np.array([hash(row) for row in rows], dtype=np.int64)
    return digest_to_bytes(Digest.of_hashes(hashes, hashes, buckets), "rows")


def test_corrections_are_published_when_the_mode_ends(planes: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    stage_correction(planes, home, insert=[C], retract=[A])
    [listed] = list_batches(Shards.connect(home), [])
    assert (listed.name, listed.generation, listed.rows) == (BatchName("reconcile", Range(5, 8)), 1, 2)
    assert (listed.slice, listed.stale) == ("all", "")
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


def test_slices_are_published_together(planes: Shard, home: Settings) -> None:
    writer = Writer.join(planes, 1)
    writer.advance(lower=5, new_upper=6, digest=digest_of(A, B), digest_note="n")
    stage_correction(planes, home, retract=[A], days=(0, 1), time=7, digest=digest_of(B))
    stage_correction(planes, home, insert=[C], days=(1, 2), time=8, digest=digest_of(A, B, C))
    stage_correction(planes, home, insert=[D], retract=[B], days=(2, 3), time=9, digest=digest_of(A, D, buckets=8192))
    before = planes.load()
    report = flush_now(home)["planes"]
    assert (report.outcome, report.inserted, report.retracted, report.batches) == (Outcome.FLUSHED, 2, 2, 3)
    assert (report.details, report.error) == ({}, None)
    head = planes.load()
    assert head.main.parent_snapshot_id == before.main.snapshot_id, "one commit"
    assert (contents(head), head.staged_branches) == (Counter([C, D]), {})
    assert change_log(head) == Counter({(A, 1): 1, (B, 1): 1, (A, 9): -1, (B, 9): -1, (C, 9): 1, (D, 9): 1})
    assert check_invariant(planes).holds
    assert (read_digest(head), head.state.digest) == (digest_of(C, D), "m")
    assert head.row_count == 2
    assert leftovers(home, planes) == set()
    compact(Writer.join(planes, 1))
    assert contents(planes.load()) == Counter([C, D])


def test_digests_that_do_not_add_up_are_not_kept(planes: Shard, home: Settings) -> None:
    stage_correction(planes, home, retract=[A], days=(0, 1), digest=None)
    stage_correction(planes, home, insert=[C], days=(1, 2), digest=digest_of(A, B, C))
    assert flush_now(home)["planes"].batches == 2
    assert (contents(planes.load()), read_digest(planes.load())) == (Counter([B, C]), None)


def test_commits_that_leave_the_contents_alone_do_not_count(planes: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    stage_correction(planes, newer, insert=[C], retract=[A])
    writer = Writer.raise_token(planes, 1)  # the leader goes on beside it
    writer.advance(lower=5, new_upper=9)
    hold(planes, "reader", since=1, expires_at_ms=10**15)
    downgrade_since(planes, 2, now_ms=0)
    compact(writer)
    [listed] = list_batches(Shards.connect(newer), [])
    assert listed.stale == ""
    switch(newer, Mode.READ_WRITE)
    before = planes.load().state.upper
    report = flush_now(newer)["planes"]
    head = planes.load()
    assert (report.outcome, contents(head), head.staged_branches) == (Outcome.FLUSHED, Counter([B, C]), {})
    assert read_digest(head) == b"after"
    [time] = {time for _, time in change_log(head)} - {1}
    assert before <= time < head.state.upper, "times below the upper were final"
    assert contents(head, head.table.metadata.snapshot_by_name("hold-reader")) == Counter([A, B])
    assert leftovers(home, planes) == set()


def test_corrections_that_something_overtook_stay_and_are_named(planes: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    branch = stage_correction(planes, newer, insert=[C], retract=[A])
    Writer.join(planes, 1).publish(correction(planes.load(), insert=[D], time=5), lower=5, new_upper=9)
    switch(newer, Mode.READ_WRITE)
    [listed] = list_batches(Shards.connect(newer), [])
    assert listed.stale == "the contents have changed since"
    report = flush_now(newer)["planes"]
    assert (report.outcome, report.exit_code) == (Outcome.FAILED, ExitCode.TRANSIENT)
    assert report.details["stale"] == [branch]
    assert report.details["reasons"] == {branch: "the contents have changed since"}
    assert report.error is not None
    assert (report.error.kind, report.error.hint) == ("StaleCorrections", "tidemark reconcile planes")
    assert flush_now(newer)["planes"].details == report.details, "it is named again until it was reconciled"
    head = planes.load()
    assert (contents(head), [*head.staged_branches]) == (Counter([A, B, D]), [branch])
    assert read_state(newer, "planes").stale == (branch,)


def test_corrections_of_other_columns_stay(planes: Shard, home: Settings) -> None:
    branch = stage_correction(planes, home, insert=[C])
    with planes.load().table.update_schema() as update:
        update.add_column("seats", LongType())
    Writer.join(planes, 1).advance(lower=5, new_upper=9)
    assert flush_now(home)["planes"].details["reasons"] == {branch: "the columns have changed since"}
    assert [*planes.load().staged_branches] == [branch]


def test_what_is_stale_leaves_the_other_slices_published(planes: Shard, home: Settings) -> None:
    current = stage_correction(planes, home, insert=[C], days=(1, 2))
    damaged = stage_correction(planes, home, insert=[D], days=(0, 1))
    lost = read_added_files(planes.load().table.io, snapshot_of(planes, damaged))[0].file_path
    Path(local_path(lost)).unlink()
    report = flush_now(home)["planes"]
    assert (report.outcome, report.inserted, report.exit_code) == (Outcome.FLUSHED, 1, ExitCode.TRANSIENT)
    assert report.details["reasons"] == {damaged: "it is damaged"}
    head = planes.load()
    assert (contents(head), [*head.staged_branches]) == (Counter([A, B, C]), [damaged]), current


def snapshot_of(shard: Shard, branch: str) -> Snapshot:
    snapshot = shard.load().table.metadata.snapshot_by_name(branch)
    assert snapshot is not None
    return snapshot


def test_newer_correction_supersedes_older_ones_of_its_rows(planes: Shard, home: Settings) -> None:
    older = [stage_correction(planes, home, insert=[C], days=(day, day + 1), time=7) for day in range(2)]
    stage_correction(planes, home, insert=[D], days=(0, 2), time=8)
    report = flush_now(home)["planes"]
    assert (report.outcome, report.inserted, sorted(report.details["superseded"])) == (Outcome.FLUSHED, 1, older)
    assert (contents(planes.load()), planes.load().staged_branches) == (Counter([A, B, D]), {})


def test_later_commit_counts_though_the_clock_stepped_back(planes: Shard, home: Settings) -> None:
    older = stage_correction(planes, home, insert=[C], days=(0, 2), time=9)
    stage_correction(planes, home, insert=[D], days=(0, 1), time=8)
    assert flush_now(home)["planes"].details["stale"] == [older]
    assert contents(planes.load()) == Counter([A, B, D])


def test_days_supersede_an_older_week(planes: Shard, home: Settings) -> None:
    week = stage_correction(planes, home, insert=[D], days=(0, 2), time=7)
    for day, row in enumerate((C, (5, "e"))):
        stage_correction(planes, home, insert=[row], days=(day, day + 1), time=8)
    assert flush_now(home)["planes"].details["superseded"] == [week]
    assert contents(planes.load()) == Counter([A, B, C, (5, "e")])


def test_older_correction_of_more_rows_stays(planes: Shard, home: Settings) -> None:
    older = stage_correction(planes, home, insert=[C], time=7)
    stage_correction(planes, home, insert=[D], days=(0, 1), time=8)
    report = flush_now(home)["planes"]
    assert report.details["reasons"] == {older: "newer corrections are about some of its rows"}
    assert (contents(planes.load()), [*planes.load().staged_branches]) == (Counter([A, B, D]), [older])
    assert flush_now(home)["planes"].details["stale"] == [older]


def test_slices_of_which_nobody_knows_the_rows_are_published_one_by_one(planes: Shard, home: Settings) -> None:
    """As an older Tidemark staged them: the column of the scope may have been another one."""
    first = stage_correction(planes, home, insert=[C], days=(0, 1), time=7, column="")
    stage_correction(planes, home, insert=[D], days=(1, 2), time=8, column="")
    report = flush_now(home)["planes"]
    assert (report.inserted, report.details["stale"]) == (1, [first])
    assert contents(planes.load()) == Counter([A, B, D])
    assert to_reconcile(planes.load(), [first], column="day") == [Interval(0, DAY)]
    assert to_reconcile(planes.load(), [first], column="") == [None]


def test_empty_correction_says_that_an_older_one_is_out_of_date(planes: Shard, home: Settings) -> None:
    Writer.join(planes, 1).advance(lower=5, new_upper=6, digest=b"kept", digest_note="n")
    older = stage_correction(planes, home, insert=[C], time=7)
    stage_correction(planes, home, days=(0, 1), time=8, digest=None)
    report = flush_now(home)["planes"]
    assert (report.inserted, report.details["stale"]) == (0, [older])
    head = planes.load()
    assert (contents(head), read_digest(head), head.state.digest) == (Counter([A, B]), b"kept", "n")
    assert flush_now(home)["planes"].details["stale"] == [older], "it stays so, though its reason is gone"
    assert contents(planes.load()) == Counter([A, B])


def test_corrections_of_rewritten_files_stay(planes: Shard, home: Settings) -> None:
    writer = Writer.join(planes, 1)
    writer.publish(correction(planes.load(), insert=[C], time=5), lower=5, new_upper=6)
    batch = correction(planes.load(), insert=[], retract=[A], time=7)
    branch = corrections_branch(1, None)
    stage_whole(planes, batch, branch=branch, lower=6, time=7, digest=None, digest_note="")
    compact(writer, policy=CompactionPolicy(min_small_files=2))
    assert flush_now(home)["planes"].details["reasons"] == {
        branch: "files with rows that it retracts were rewritten since"
    }
    assert (contents(planes.load()), [*planes.load().staged_branches]) == (Counter([A, B, C]), [branch])


def write_as_another_engine(shard: Shard) -> None:
    table = shard.load().table
    table.append(updates_table([D], time=0, diff=1).cast(table.schema().as_arrow()))


@pytest.mark.parametrize("when", ["before", "between", "gone"])
def test_rows_of_another_engine_are_not_the_contents(planes: Shard, home: Settings, when: str) -> None:
    if when != "between":
        write_as_another_engine(planes)
    stage_correction(planes, home, insert=[C], retract=[A])
    if when == "between":
        write_as_another_engine(planes)
    if when == "gone":  # put right by a commit without rows of ours
        Writer.join(planes, 1).publish(lower=5, new_upper=6)
    report = flush_now(home)["planes"]
    assert (report.outcome, "foreign_commits" in report.details) == (Outcome.FLUSHED, when != "gone")
    head = planes.load()
    assert (contents(head), head.foreign) == (Counter([B, C]), None)


def test_rows_of_another_engine_are_not_dropped_against_the_declaration(planes: Shard, home: Settings) -> None:
    registry = deployment_of(home).registry
    registry.replace([csv_declaration("planes", on_foreign_commit="fail")], seen=registry.read())
    branch = stage_correction(planes, home, insert=[C])
    write_as_another_engine(planes)
    report = flush_now(home)["planes"]
    assert report.error is not None
    assert (report.outcome, report.error.kind) == (Outcome.REFUSED, "ForeignCommit")
    assert (contents(planes.load()), [*planes.load().staged_branches]) == (Counter([A, B, D]), [branch])


def test_commit_that_says_so_outdates_what_was_staged(planes: Shard, home: Settings) -> None:
    branch = stage_correction(planes, home, insert=[C])
    Writer.join(planes, 1).advance(lower=5, new_upper=6, outdates_staged=True)
    assert flush_now(home)["planes"].details["stale"] == [branch]


def test_corrections_that_are_replaced_leave_no_file_behind(planes: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    for row in (A, B):
        stage_correction(planes, home, insert=[C], retract=[row])
    assert leftovers(home, planes) == set()
    drop_staged(planes, planes.load().staged_branches)
    assert leftovers(home, planes) == set()


def test_new_deployment_publishes_what_it_computed_beside_the_leader(planes: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    stage_correction(planes, newer, insert=[C], retract=[A])
    switch(newer, Mode.READ_WRITE)  # raises the token, which moves main and not the contents
    assert flush_now(newer)["planes"].outcome is Outcome.FLUSHED
    assert contents(planes.load()) == Counter([B, C])


def test_flush_that_loses_a_race_starts_over(planes: Shard, home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, row in enumerate((C, D)):
        stage_correction(planes, home, insert=[row], days=(day, day + 1), time=7 + day)
    shards = Shards.connect(home)
    act_before_commit(shards.open("planes"), monkeypatch, lambda: Writer.join(planes, 1).advance(lower=5, new_upper=9))
    assert flush_all(shards, deployment_of(home), [], clock=CLOCK).collections["planes"].batches == 2
    assert contents(planes.load()) == Counter([A, B, C, D])
    assert leftovers(home, planes) == set(), "what the first attempt wrote is gone"


@pytest.mark.crash
@pytest.mark.parametrize("point", [*FAIL_POINTS, *PUBLISHING])
def test_killed_flush_publishes_all_slices_or_none(planes: Shard, home: Settings, point: str) -> None:
    stage_correction(planes, home, insert=[C], days=(0, 1), time=7)
    stage_correction(planes, home, retract=[A], days=(1, 2), time=8)
    switch(home, Mode.READ_WRITE)
    assert die_at(point, flush_now, home) == FAIL_POINT_EXIT, f"{point} was never reached"
    assert contents(planes.load()) in (Counter([A, B]), Counter([B, C]))
    assert die_at("", flush_now, home) == 0
    head = planes.load()
    assert (contents(head), head.staged_branches) == (Counter([B, C]), {})
    assert check_invariant(planes).holds
    forget_leases(home)
    remove_orphans(planes, older_than_ms=10**15)
    assert leftovers(home, planes) == set()


def test_damaged_corrections_stay(planes: Shard, home: Settings) -> None:
    branch = stage_correction(planes, home, insert=[C])
    table = planes.load().table
    table.append(table.scan(snapshot_id=planes.load().main.snapshot_id).to_arrow(), branch=branch)
    [listed] = list_batches(Shards.connect(home), [])
    assert listed.stale == "it is damaged"
    assert flush_now(home)["planes"].details["stale"] == [branch]
    assert contents(planes.load()) == Counter([A, B])
    discarded = discard(
        Shards.connect(home), deployment_of(home), Selection(producer="reconcile"), who="tests", why="", clock=CLOCK
    )
    assert ([batch.branch for batch in discarded], planes.load().staged_branches) == ([branch], {})


FIRST, SECOND, BOTH = (Slice("day", Range(*days)) for days in ((0, 10), (10, 20), (0, 20)))


@pytest.mark.parametrize(
    ("parts", "one", "covers", "touches"),
    [
        ([], FIRST, False, False),
        ([FIRST], SECOND, False, False),
        ([FIRST], BOTH, False, True),
        ([FIRST, SECOND], BOTH, True, True),
        ([BOTH], FIRST, True, True),
        ([FIRST], None, False, True),
        ([None], FIRST, True, True),
        ([None], None, True, True),
        ([FIRST], Slice("other", Range(10, 20)), False, True),
        ([FIRST], Slice("", Range(10, 20)), False, True),
        ([Slice("", Range(0, 10))], SECOND, False, True),
        ([Slice("", Range(0, 10))], Slice("", Range(0, 10)), False, True),
    ],
)
def test_slices_cover_and_touch(parts: list[Slice | None], one: Slice | None, *, covers: bool, touches: bool) -> None:
    coverage = Coverage()
    for part in parts:
        coverage.add(part)
    assert (coverage.covers(one), coverage.touches(one)) == (covers, touches)


def test_command_can_be_pasted() -> None:
    assert reconcile_command("c", None) == "tidemark reconcile c"
    text = reconcile_command("c", Interval(0, 86_400_000))
    assert text == "tidemark reconcile c --interval 1970-01-01T00:00:00 1970-01-02T00:00:00"
    assert parse_interval(*text.split()[-2:]) == Interval(0, 86_400_000)
