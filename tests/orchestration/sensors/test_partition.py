"""The sensor reads the state that ingests commit, and waits for a partition in the triggerer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from tidemark.clock import SystemClock
from tidemark.orchestration.sensors.partition import PartitionClosedSensor

if TYPE_CHECKING:
    from tests.support.homes import Home

HOUR_MS = 3_600_000


@pytest.fixture
def hourly(home: Home) -> Home:
    """One row at 00:10, which was ingested."""
    home.declare_reader(schema="id bigint, at timestamp", event_time="at", partition="hour")
    home.send(0, b'{"id":1,"at":"1970-01-01T00:10:00"}')
    home.ingest()
    return home


def sensor(partition: str, **arguments: Any) -> PartitionClosedSensor:
    return PartitionClosedSensor(task_id="wait", collection="events", partition=partition, timeout=60, **arguments)


@pytest.mark.slow  # stores that are really written
def test_it_waits_until_the_partition_is_closed(hourly: Home, context: Any) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor("1970-01-01T00", poll_seconds=0.5).execute(context)
    waiting = {"collection": "events", "partition": "1970-01-01T00", "poll_seconds": 0.5}
    assert deferred.value.trigger.serialize() == ("tidemark_triggers.PartitionClosedTrigger", waiting)
    hourly.clock.step(2 * HOUR_MS)
    hourly.ingest()
    expected = {"collection": "events", "partition": "1970-01-01T00", "rows": 1, "late_rows": 0}
    assert sensor("1970-01-01T00").execute_complete(context, {}, SystemClock().now_ms() + 1_000) == expected
    # No row ever came for this hour: nothing more is known than that it has passed.
    assert sensor("1969-12-31T23").execute(context)["rows"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "said"), [("1970-01-01", "'1970-01-01' is no partition of 'events'"), ("noon", "names no")]
)
def test_a_text_that_names_no_partition_fails_at_once(hourly: Home, context: Any, partition: str, said: str) -> None:
    assert hourly.ids() == [1]
    with pytest.raises(AirflowFailException, match=said):
        sensor(partition).execute(context)
