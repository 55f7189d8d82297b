"""What the table of the reference, 5.5, says of files and of deletes, by its names, on real ones.

There, a delete is a range of time, and the state that a replay restores has it. Here the buffer holds no deletes: a
retention or another engine deletes rows of files. So the nearest scenarios are told: what was deleted before or after
it was persisted stays deleted. Deleted rows that are not persisted come back:
``test_rows_that_another_engine_deleted_or_changed_come_back``. Memory has no part in a replay, which writes files: of
``replay_compacts`` the hard limit and the small files are left.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at, declare, send
from tests.ingest.persist.test_persist import old, persist, stored
from tests.ingest.replay.test_replay import EAGER, contents, delete, replayed
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.maintenance.retain import retain
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.compaction import compact
from tidemark.interval import time_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.homes import Home

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def test_replay_compacts(hourly: Home) -> None:
    declare(hourly, hard_limit=50)
    at(hourly, 2)
    send(hourly, 1, 61)
    hourly.ingest()
    at(hourly, 10)
    assert persist(hourly).strategy == "persisted"
    for _ in range(10):
        send(hourly, 0, *range(5))
        hourly.ingest()
    send(hourly, 0, 5)
    assert hourly.ingest().exit_code == ExitCode.TRANSIENT, "the hard limit is reached"
    before = contents(hourly)
    delete(hourly, "id < 20 and id > 10")
    assert replayed(hourly).inserted == 50, "a replay brings back what was there, whatever the limit"
    assert contents(hourly) == before
    assert [(len(each.minutes), each.is_persisted) for each in stored(hourly)] == [(50, False), (1, True)]
    persist(hourly, now=True)
    assert hourly.ingest().inserted == 1
    assert hourly.ids() == [*range(52)]


@pytest.mark.parametrize("by", ["another engine", "retention"])
def test_replay_delete(hourly: Home, by: str) -> None:
    send(hourly, 0, 10)
    hourly.ingest()
    persist(hourly, now=True)
    if by == "retention":
        retention = Retention(age="1h", column="at")
        done = retain(hourly.shard(), retention, deployment=hourly.deployment, now_ms=FIVE + 75 * MINUTE_MS)
        assert done.rows == 1
    else:
        delete(hourly, f"at < '{time_text(FIVE + 20 * MINUTE_MS).replace(' ', 'T')}+00:00'")
    assert hourly.ids() == []
    send(hourly, 0, 15)
    hourly.ingest()
    persist(hourly, now=True)
    assert replayed(hourly).strategy == "unchanged"
    assert hourly.ids() == [1], "the delete is not undone, and takes no row that came later"


def test_replay_delete_persisted_chunks(hourly: Home) -> None:
    send(hourly, 0, 10, 12)
    hourly.ingest()
    delete(hourly, "id = 0")
    send(hourly, 0, 15)
    hourly.ingest()
    persist(hourly, now=True)
    assert stored(hourly) == [old(12, 15)]
    assert replayed(hourly).strategy == "unchanged"
    assert hourly.ids() == [1, 2], "its partition was persisted without the row"


@pytest.mark.spark
def test_replay_delete_compact_os_chunks(home_spark: SparkSession, ingesting: Home) -> None:
    """There, two persisted chunks lie beside each other; here the second persist puts both into one file."""
    at(ingesting, 0)
    ingesting.declare_reader(
        schema="id bigint, at timestamp", event_time="at", partition="hour", key=["id"], lifecycle=RULES
    )
    for rows in (((0, 10), (1, 20)), ((0, 10), (2, 30))):
        for id_, minute in rows:
            row = {"id": id_, "at": time_text(FIVE + minute * MINUTE_MS)}
            ingesting.send(0, json.dumps(row).encode())
        ingesting.ingest()
        persist(ingesting, now=True)
    assert stored(ingesting) == [old(10, 20, 30)]
    home_spark.sql("DELETE FROM tidemark.collections.events WHERE id = 1")
    assert compact(Writer.join(ingesting.shard(), 1), policy=EAGER).outcome == "compacted"
    before = contents(ingesting)
    for _ in range(2):
        assert (stored(ingesting), ingesting.ids(), contents(ingesting)) == ([old(10, 30)], [0, 2], before)
        assert replayed(ingesting).strategy == "unchanged"
