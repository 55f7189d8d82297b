"""Whatever refs somebody drops: what they named is put back, and what cannot be is said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from tests.support.rows import SCHEMA, change_log, contents, correction, updates_table
from tidemark.errors import CorruptState, FencedByGeneration
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.branch_commit import remove_snapshots
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.repair import plan_repair, repair
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.shard.head import MAIN, OWN_MAIN, OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.iceberg.maintenance.repair import Repair
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

EVERY_REF = (MAIN, OWN_MAIN, UPDATES, OWN_UPDATES)
ROWS = [(1, "a"), (2, "b")]


@pytest.fixture
def shard(home: Settings) -> Shard:
    """A row at time 0, another at 1; then a token and an advance, which leave the change log where it is."""
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    writer = Writer.raise_token(shard, 1)
    for time, row in enumerate(ROWS):
        writer.publish(correction(shard.load(), insert=[row], time=time), lower=time, new_upper=time + 1)
    writer.advance(lower=2, new_upper=10)
    return shard


def drop(shard: Shard, *refs: str, expire: bool = False) -> None:
    """Drop refs as ALTER TABLE … DROP BRANCH and DROP TAG do; ``expire`` what nothing names afterwards."""
    table = shard.load_table()
    updates = [RemoveSnapshotRefUpdate(ref_name=ref) for ref in refs]
    shard.iceberg.commit_table(table, (), tuple(updates))
    if expire:
        table = shard.load_table()
        kept, waiting = set[int](), [ref.snapshot_id for ref in table.metadata.refs.values()]
        while waiting:
            snapshot = table.metadata.snapshot_by_id(waiting.pop())
            if snapshot is not None:
                kept.add(snapshot.snapshot_id)
                waiting += [snapshot.parent_snapshot_id] if snapshot.parent_snapshot_id else []
        gone = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in kept]
        shard.iceberg.commit_table(table, (), (remove_snapshots(gone),))


def planned(shard: Shard) -> Repair:
    return plan_repair(shard.load_table().metadata, shard=shard.name)


def check_whole(shard: Shard, rows: list[tuple[int, str]]) -> None:
    """What is stored adds up, and the next correction is published and read back."""
    head = shard.load()
    assert (head.foreign, head.foreign_updates) == (None, None)
    assert contents(head) == Counter(rows)
    assert check_invariant(shard).holds
    upper = head.state.next_upper(0) - 1
    batch = correction(head, insert=[(3, "c")], retract=rows[:1], time=upper)
    Writer.join(shard, 1).publish(batch, lower=upper, new_upper=upper + 1)
    assert contents(shard.load()) == Counter([*rows[1:], (3, "c")])
    assert check_invariant(shard).holds
    assert not planned(shard).refs


@pytest.mark.parametrize(
    "refs",
    [
        (UPDATES,),
        (OWN_UPDATES,),
        (OWN_MAIN,),
        (MAIN,),
        (UPDATES, OWN_UPDATES),
        (MAIN, OWN_MAIN),
        (OWN_MAIN, OWN_UPDATES),
        EVERY_REF,
    ],
)
def test_dropped_refs_are_put_back_with_all_history(shard: Shard, refs: tuple[str, ...]) -> None:
    before, log = shard.load(), change_log(shard.load())
    drop(shard, *refs)
    with pytest.raises(CorruptState, match="it was removed by hand") as caught:
        shard.load()
    assert (caught.value.exit_code, "tidemark repair planes" in caught.value.hint) == (ExitCode.NOT_POSSIBLE, True)
    location = shard.load_table().metadata_location
    assert (set(planned(shard).refs), planned(shard).lost) == (set(refs), ())
    assert shard.load_table().metadata_location == location, "a plan changes nothing"
    assert set(repair(shard, generation=1).refs) == set(refs)
    after = shard.load()
    assert {ref: after.table.metadata.refs[ref] for ref in EVERY_REF} == {
        ref: before.table.metadata.refs[ref] for ref in EVERY_REF
    }
    assert (after.state, change_log(after)) == (replace(before.state, token=before.state.token.raised(1)), log)
    check_whole(shard, ROWS)


def test_change_log_that_was_expired_is_begun_anew_and_said(shard: Shard) -> None:
    hold(shard, "mirror", since=1, expires_at_ms=99)
    drop(shard, UPDATES, OWN_UPDATES, expire=True)
    done = repair(shard, generation=1)
    assert set(done.refs) == {UPDATES, OWN_UPDATES}
    assert "changes and contents before 9 cannot be read any more" in done.lost[0]
    assert "'mirror'" in done.lost[1]
    assert shard.load().state.since == 9
    assert change_log(shard.load()) == {}
    check_whole(shard, ROWS)


def test_rows_of_other_engines_stay_foreign(shard: Shard) -> None:
    before = shard.load()
    before.table.append(updates_table([(9, "foreign")], time=0, diff=1).cast(before.table.schema().as_arrow()))
    drop(shard, OWN_MAIN, UPDATES)
    repair(shard, generation=1)
    head = shard.load()
    assert head.foreign is not None
    assert (head.contents, head.updates) == (before.contents, before.updates)


def test_contents_whose_own_snapshot_is_gone_are_those_of_main(shard: Shard) -> None:
    table = shard.load().table
    table.append(updates_table([(9, "foreign")], time=0, diff=1).cast(table.schema().as_arrow()))
    drop(shard, OWN_MAIN)
    table = shard.load_table()
    head = table.metadata.snapshot_by_name(MAIN)
    assert head is not None
    gone = [each for each in table.metadata.snapshots if each.snapshot_id != head.snapshot_id]
    log = table.metadata.snapshot_by_name(UPDATES)
    shard.iceberg.commit_table(table, (), (remove_snapshots(each for each in gone if each != log),))
    assert "counts as ours" in repair(shard, generation=1).lost[0]
    assert contents(shard.load()) == Counter([*ROWS, (9, "foreign")])


def test_lost_contents_are_not_made_up(shard: Shard) -> None:
    drop(shard, MAIN, OWN_MAIN, expire=True)
    with pytest.raises(CorruptState, match="has lost its contents"):
        repair(shard, generation=1)


def test_older_deployment_repairs_nothing_and_older_writers_are_fenced(shard: Shard) -> None:
    writer = Writer.join(shard, 1)
    drop(shard, UPDATES)
    repair(shard, generation=2)
    with pytest.raises(FencedByGeneration):
        writer.advance(lower=10, new_upper=11)
    drop(shard, UPDATES)
    with pytest.raises(FencedByGeneration):
        repair(shard, generation=1)


def test_shard_that_lacks_nothing_is_left_alone(shard: Shard) -> None:
    location = shard.load_table().metadata_location
    assert repair(shard, generation=1).refs == {}
    assert shard.load_table().metadata_location == location


def test_append_only_collection_has_no_change_log(home: Settings) -> None:
    shard = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
    drop(shard, OWN_MAIN)
    assert set(repair(shard, generation=1).refs) == {OWN_MAIN}
    assert shard.load().own.snapshot_id == shard.load().main.snapshot_id


def test_repair_that_meets_another_is_done_once(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(shard, UPDATES)
    commit = shard.iceberg.commit_table
    others = iter([lambda: repair(shard, generation=1)])

    def come_second(*arguments: object) -> object:
        for other in others:
            other()
        return commit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard.iceberg, "commit_table", come_second)
    assert set(repair(shard, generation=1).refs) == {UPDATES}
    check_whole(shard, ROWS)
