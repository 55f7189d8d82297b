"""Holds: history stays readable for as long as a reader needs it, whatever other tools do to the table."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate
from sqlalchemy.exc import OperationalError

from tests.conftest import settings_in
from tests.support.clock import SteppedClock
from tests.support.prepared_folder import PreparedFolder
from tests.support.rows import SCHEMA, contents, correction, updates_table
from tidemark.errors import AsOfBeforeSince, Fenced, NotPossible
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.holds import downgrade_since, hold, holding_history, release
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.maintenance.compaction import CompactionPolicy, compact
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.shard.state import NEVER, ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

FOREVER_MS = 10**15


@pytest.fixture(scope="module")
def three_rows(tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    """Rows 1, 2 and 3 that came at 10, 20 and 30, in a differential shard ``planes`` and an append-only ``events``."""

    def fill(folder: Path) -> None:
        shards = Shards.connect(settings_in(folder))
        planes = shards.create("planes", schema=SCHEMA)
        events = shards.create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)
        lower = 0
        for number in (1, 2, 3):
            time = number * 10
            batch = correction(planes.load(), insert=[(number, "x")], time=time)
            Writer.join(planes, 1).publish(batch, lower=lower, new_upper=time + 1)
            Writer.join(events, 1).publish(appended(events, number), lower=lower, new_upper=time + 1)
            lower = time + 1

    return PreparedFolder(tmp_path_factory.mktemp("three"), fill)


@pytest.fixture
def home(three_rows: PreparedFolder) -> Settings:
    return settings_in(three_rows.restored())


@pytest.fixture(params=["planes", "events"])
def shard(home: Settings, request: pytest.FixtureRequest) -> Shard:
    return Shards.connect(home).open(request.param)


def appended(shard: Shard, number: int) -> Batch:
    rows = updates_table([(number, "x")], time=0, diff=1).select(["id", "name"])
    rows = rows.append_column("_producer", [["p"]]).append_column("_batch", [[number]])
    return Batch(added=write_rows(shard.load().table, rows))


def tags(shard: Shard) -> dict[str, Counter[int | None]]:
    """The numbers that each tag of a hold pins."""
    head = shard.load()
    names = [name for name in head.table.metadata.refs if name.startswith("hold-")]
    return {name: numbers(contents(head, head.table.metadata.snapshot_by_name(name))) for name in names}


def numbers(rows: Counter[tuple[int | None, str | None]]) -> Counter[int | None]:
    return Counter(number for number, _ in rows.elements())


def expire_all_but_refs(shard: Shard) -> None:
    """What another tool's aggressive expiry leaves."""
    table = shard.load().table
    kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
    doomed = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
    assert doomed
    shard.iceberg.commit_table(table, (), (RemoveSnapshotsUpdate(**{"snapshot-ids": doomed}),))


def test_tag_is_set_moved_and_removed_with_its_hold(shard: Shard) -> None:
    before = len(shard.load().table.metadata.snapshots)
    hold(shard, "feed", since=10, expires_at_ms=FOREVER_MS)
    assert tags(shard) == {"hold-feed": Counter([1])}
    assert len(shard.load().table.metadata.snapshots) == before + 1, "one commit"
    hold(shard, "feed", since=20, expires_at_ms=FOREVER_MS)
    hold(shard, "other", since=30, expires_at_ms=FOREVER_MS)
    assert tags(shard) == {"hold-feed": Counter([1, 2]), "hold-other": Counter([1, 2, 3])}
    release(shard, "feed")
    assert tags(shard) == {"hold-other": Counter([1, 2, 3])}
    assert shard.load().foreign is None


def test_expired_hold_loses_its_tag(shard: Shard) -> None:
    hold(shard, "feed", since=10, expires_at_ms=100)
    downgrade_since(shard, 10, now_ms=99)
    assert set(tags(shard)) == {"hold-feed"}
    assert downgrade_since(shard, 10, now_ms=100) == 10
    assert downgrade_since(shard, 10, now_ms=101) == 10
    assert (tags(shard), shard.load().state.holds) == ({}, {})
    hold(shard, "late", since=20, expires_at_ms=200)
    Writer.join(shard, 1).seal(now_ms=200)
    assert (tags(shard), shard.load().state.holds) == ({}, {})


def test_a_durable_hold_stays_until_it_is_released(shard: Shard) -> None:
    hold(shard, "sink", since=20, expires_at_ms=NEVER)
    assert downgrade_since(shard, 30, now_ms=10**18) == 20
    assert (set(shard.load().state.holds), set(tags(shard))) == ({"sink"}, {"hold-sink"})
    with pytest.raises(NotPossible, match="sink hold its history"):
        Writer.join(shard, 1).seal(now_ms=10**18)
    release(shard, "sink")
    assert downgrade_since(shard, 30, now_ms=10**18) == 30


def test_a_fenced_writer_neither_takes_nor_releases_a_hold(shard: Shard) -> None:
    writer = Writer.join(shard, 1)
    hold(shard, "sink", since=10, expires_at_ms=NEVER, writer=writer)
    Writer.raise_token(shard, 1)
    with pytest.raises(Fenced):
        hold(shard, "sink", since=20, expires_at_ms=NEVER, writer=writer)
    with pytest.raises(Fenced):
        release(shard, "sink", writer=writer)
    assert shard.load().state.holds["sink"].since == 10


def test_history_is_held_inside_a_block_and_no_longer(shard: Shard) -> None:
    clock = SteppedClock(40)
    hold(shard, "feed", since=30, expires_at_ms=FOREVER_MS)
    with holding_history(shard, "feed", since=20, clock=clock) as outer:
        with holding_history(shard, "feed", longest_ms=5, clock=clock) as inner:
            held = sorted((held.since, held.expires_at_ms) for held in shard.load().state.holds.values())
            assert held == [(0, 45), (20, 40 + 86_400_000), (30, FOREVER_MS)]
        assert (outer, inner) == (20, 0)
        assert downgrade_since(shard, 30, now_ms=50) == 20
        assert Counter(read_arrow(shard, outer)["id"].to_pylist()) == Counter([1, 2])
    assert set(shard.load().state.holds) == {"feed"}, "the hold that the reader keeps from run to run stays"


def test_a_block_that_raises_holds_nothing_afterwards(shard: Shard) -> None:
    with pytest.raises(ZeroDivisionError):
        divide_in_block(shard)
    assert shard.load().state.holds == {}


def divide_in_block(shard: Shard) -> float:
    with holding_history(shard, "feed", clock=SteppedClock(40)):
        return len(shard.load().state.holds) / 0


def test_hold_of_a_time_that_is_not_final_follows_the_contents(home: Settings) -> None:
    planes = Shards.connect(home).open("planes")
    hold(planes, "feed", since=45, expires_at_ms=FOREVER_MS)
    lower = 31
    for number, time in ((4, 40), (5, 45), (6, 46)):
        batch = correction(planes.load(), insert=[(number, "x")], time=time)
        Writer.join(planes, 1).publish(batch, lower=lower, new_upper=time + 1)
        lower = time + 1
    assert tags(planes) == {"hold-feed": Counter([1, 2, 3, 4, 5])}


def test_held_contents_outlive_an_expiry_by_another_tool(shard: Shard) -> None:
    hold(shard, "feed", since=20, expires_at_ms=FOREVER_MS)
    expire_all_but_refs(shard)
    assert Counter(read_arrow(shard, 20)["id"].to_pylist()) == Counter([1, 2])
    assert Counter(read_arrow(shard)["id"].to_pylist()) == Counter([1, 2, 3])
    Writer.raise_token(shard, 1).advance(lower=31, new_upper=40)
    assert Counter(read_arrow(shard, 20)["id"].to_pylist()) == Counter([1, 2])
    if shard.name == "events":  # only a change log could tell what came before and after what was pinned
        for time in (9, 21):
            with pytest.raises(AsOfBeforeSince, match="expired by another tool"):
                read_arrow(shard, time)


def test_compaction_leaves_the_held_contents(home: Settings) -> None:
    planes = Shards.connect(home).open("planes")
    hold(planes, "feed", since=20, expires_at_ms=FOREVER_MS)
    assert compact(Writer.join(planes, 1), policy=CompactionPolicy(min_small_files=2)).outcome == "compacted"
    assert tags(planes) == {"hold-feed": Counter([1, 2])}


@pytest.mark.parametrize("since", [None, 20])
def test_hold_whose_outcome_is_unknown_is_found_though_it_is_released_again(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, since: int | None
) -> None:
    cut_after_commit(shard, monkeypatch, meanwhile=lambda: release(shard, "feed"))
    assert hold(shard, "feed", since=since, expires_at_ms=FOREVER_MS) == (since or 0)
    assert (shard.load().state.holds, tags(shard)) == ({}, {})


def test_release_that_another_one_overtakes_is_no_error(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(shard, "feed", since=20, expires_at_ms=FOREVER_MS)
    other = type(shard)(shard.iceberg, shard.namespace, shard.name, shard.writer_id)
    real, loads = type(shard).load, []

    def load(self: Shard) -> object:
        head = real(self)
        loads.append(self)
        if self is shard and len(loads) == 1:
            release(other, "feed")
        return head

    monkeypatch.setattr(type(shard), "load", load)
    release(shard, "feed")
    assert (shard.load().state.holds, tags(shard)) == ({}, {})


def cut_after_commit(shard: Shard, monkeypatch: pytest.MonkeyPatch, *, meanwhile: Callable[[], None]) -> None:
    """Cut the connection after the next commit has landed, and do something before anybody asks what became of it."""
    real, calls = shard.iceberg.commit_table, []

    def commit_table(*arguments: object) -> object:
        calls.append(arguments)
        result = real(*arguments)
        if len(calls) > 1:
            return result
        meanwhile()
        raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))

    monkeypatch.setattr(shard.iceberg, "commit_table", commit_table)


@pytest.mark.spark
def test_held_contents_outlive_expire_snapshots_of_spark(home_spark: SparkSession, shard: Shard) -> None:
    hold(shard, "feed", since=20, expires_at_ms=FOREVER_MS)
    home_spark.sql(
        f"CALL tidemark.system.expire_snapshots(table => 'collections.{shard.name}', "
        "older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    assert Counter(read_arrow(shard, 20)["id"].to_pylist()) == Counter([1, 2])
    assert tags(shard) == {"hold-feed": Counter([1, 2])}
