"""Files that nothing names yet: the removal of orphans leaves those of processes that hold a lease."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.iceberg.staging.test_files import ONE, event_rows
from tests.support.crash import die_at
from tests.support.leases import leased, leases_of, run_sql, wait_for
from tests.support.rows import SCHEMA, contents, local_path
from tidemark.errors import InputsGone
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.kept_files import ORPHAN_AGE_MS, AssertFilesKept
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.leases import protection
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.maintenance import orphans
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

HOUR_MS = 3_600_000
LATER_MS = 2**50
WORKS_LONG = f"UPDATE tidemark_leases SET began_ms = began_ms - {3 * ORPHAN_AGE_MS}"


@pytest.fixture
def shard(store: Settings) -> Shard:
    return Shards.connect(store).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY)


def write(shard: Shard, *, aged_ms: int = 0) -> tuple[DataFile, ...]:
    files = write_rows(shard.load().table, event_rows([ONE]))
    for file in files:
        then = time.time() - aged_ms / 1000  # noqa: TID251 -- files have the time of the store
        os.utime(local_path(file.file_path), (then, then))
    return files


def publish(shard: Shard, files: tuple[DataFile, ...], batch: int = 0) -> None:
    upper = shard.load().state.upper
    assert isinstance(upper, int)
    new = Batch(added=files, producer="p", range=Range(batch, batch + 1))
    Writer.join(shard, 1).publish(new, lower=upper, new_upper=upper + 1)


def are_there(files: tuple[DataFile, ...]) -> bool:
    return all(Path(local_path(file.file_path)).exists() for file in files)


def test_files_of_whoever_holds_a_lease_stay_whatever_their_age(shard: Shard, store: Settings) -> None:
    earlier = write(shard, aged_ms=2 * HOUR_MS)
    with holding(store, "append", ["events"]):
        own = write(shard)
        remove_orphans(shard, older_than_ms=LATER_MS)
        assert (are_there(own), are_there(earlier)) == (True, False), "older than the lease: nobody will commit it"
    remove_orphans(shard, older_than_ms=LATER_MS)
    assert not are_there(own)


def test_a_lease_on_another_collection_protects_nothing(shard: Shard, store: Settings) -> None:
    files = write(shard)
    with holding(store, "append", ["planes"]):
        remove_orphans(shard, older_than_ms=LATER_MS)
    assert not are_there(files)


def test_maintenance_is_not_in_its_own_way(shard: Shard, store: Settings) -> None:
    files = write(shard)
    with holding(store, "maintain", ["events"]):
        remove_orphans(shard, older_than_ms=LATER_MS)
    assert not are_there(files)


def test_of_two_appenders_at_once_the_one_that_ends_leaves_the_other_protected(shard: Shard, store: Settings) -> None:
    with holding(store, "append", ["events"]):
        slow = write(shard)
        with holding(store, "append of another", ["events", "planes"]):
            quick = write(shard)
            assert len(leases_of(store)) == 2
            publish(shard, quick)
        remove_orphans(shard, older_than_ms=LATER_MS)
        publish(shard, slow, batch=1)
    assert contents(shard.load()) == Counter({ONE: 2})


def test_batch_that_took_days_to_write_is_committed_under_a_lease_alone(shard: Shard, store: Settings) -> None:
    files = write(shard, aged_ms=2 * ORPHAN_AGE_MS)
    with holding(store, "append", ["events"]):
        with pytest.raises(InputsGone, match="waited too long"):
            publish(shard, files)  # the lease is younger than the file
        run_sql(store, WORKS_LONG)
        remove_orphans(shard, older_than_ms=LATER_MS)
        publish(shard, files)
    assert contents(shard.load()) == Counter([ONE])


def test_lease_that_ran_out_and_was_ended_protects_nothing_when_its_process_goes_on(
    shard: Shard, store: Settings
) -> None:
    """The process stands still until the removal has ended its lease, and goes on before the file is removed."""
    files = write(shard, aged_ms=2 * ORPHAN_AGE_MS)
    with holding(store, "append", ["events"]):
        run_sql(store, "DELETE FROM tidemark_leases")
        wait_for(lambda: leases_of(store))
        run_sql(store, WORKS_LONG)
        with pytest.raises(InputsGone, match="waited too long"):
            publish(shard, files)


def test_removal_in_the_middle_of_a_commit_that_relies_on_its_lease(
    shard: Shard, store: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is ended after the commit has looked at it: the commit loses against the removal, and looks again."""
    files, look = write(shard, aged_ms=2 * ORPHAN_AGE_MS), AssertFilesKept.validate

    def look_and_stand_still(self: AssertFilesKept, base: object) -> None:
        look(self, base)
        monkeypatch.setattr(AssertFilesKept, "validate", look)
        run_sql(store, "DELETE FROM tidemark_leases")
        monkeypatch.setattr(orphans, "protect_writers", lambda *_, **__: None)  # before the lease comes back
        remove_orphans(shard, older_than_ms=LATER_MS)

    with holding(store, "append", ["events"]):
        run_sql(store, WORKS_LONG)
        monkeypatch.setattr(AssertFilesKept, "validate", look_and_stand_still)
        with pytest.raises(InputsGone, match="removed before its commit"):
            publish(shard, files)
    assert contents(shard.load()) == Counter()


@pytest.mark.crash
def test_files_of_a_process_that_is_stopped_stay_until_its_lease_runs_out(shard: Shard, store: Settings) -> None:
    with leased(replace(store, lease_s=3.0), "append", ("events",)) as process:
        files = write(shard)
        remove_orphans(shard, older_than_ms=LATER_MS)
        assert are_there(files)
        process.signal(signal.SIGSTOP)
        remove_orphans(shard, older_than_ms=LATER_MS)
        assert not are_there(files)
        assert leases_of(store) == [], "ended, so that its process knows it"
        process.signal(signal.SIGCONT)
        wait_for(lambda: leases_of(store))


@pytest.mark.crash
def test_a_removal_that_dies_after_it_has_ended_leases_is_done_by_the_next(shard: Shard, store: Settings) -> None:
    with leased(store, "append", ("events",)) as process:
        process.signal(signal.SIGKILL)
        files = write(shard)
        assert die_at(protection.FAIL_POINTS[0], remove, store) == FAIL_POINT_EXIT
        assert (leases_of(store), are_there(files)) == ([], True)
        assert die_at("", remove, store) == 0
        assert not are_there(files)


def remove(settings: Settings) -> None:
    remove_orphans(Shards.connect(settings).open("events"), older_than_ms=LATER_MS)


@pytest.mark.crash
def test_maintenance_waits_once_for_what_others_hold(
    shard: Shard, store: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with leased(store, "append", (shard.name,)), holding(store, protection.MAINTENANCE):
        assert protection.protect_writers(store, shard.name) is not None
        without_sleep = SimpleNamespace(monotonic=time.monotonic, sleep=pytest.fail)
        monkeypatch.setattr("tidemark.iceberg.leases.watching.time", without_sleep)
        assert protection.protect_writers(store, shard.name) is not None
        assert protection.protect_writers(store, "planes") is None
