"""Partitions close once all sequencers have passed them; the state of partitions moves with the rows."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at, declare, partitions_by, send
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.append import append_rows
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import InputsGone
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Range
from tidemark.iceberg.staging.branches import drop_staged, list_staged
from tidemark.ingest.batches import BatchesSeen
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.partitions.closing import Closing, Look
from tidemark.ingest.partitions.state import PROPERTY, PartitionRules, Partitions
from tidemark.ingest.partitions.status import read_partitions
from tidemark.ingest.quarantine import list_quarantined, retry
from tidemark.interval import Unit, time_text
from tidemark.lifecycle.partitions import name_partition
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.iceberg.commit.batch import Batch
    from tidemark.iceberg.commit.publisher import Published

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def append(ingesting: Home, number: int, *minutes: int, to: str = "gate") -> None:
    """Append a batch of rows with these event times into the buffer."""
    ingesting.declare_writer(to, schema="id bigint, at timestamp")
    times = pa.array([(FIVE + minute * MINUTE_MS) * 1000 for minute in minutes], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": pa.array(range(len(minutes)), pa.int64()), "at": times})
    name = BatchName("p", Range(number, number + len(minutes)))
    append_rows(ingesting.shard(to), name, rows, deployment=ingesting.deployment, clock=ingesting.clock)


def told(report: CollectionReport) -> dict[str, Any]:
    return {name: report.details.get(name) for name in ("closed", "reopened", "late_rows", "watermark")}


def partitions(ingesting: Home) -> Partitions:
    return partitions_by(ingesting)


def shown(ingesting: Home) -> dict[str, Any]:
    """Return what `tidemark buffer partitions` shows."""
    return read_partitions(ingesting.settings, ingesting.registry.get("events"), now_ms=ingesting.clock.now_ms())


def counts(ingesting: Home) -> dict[str, tuple[int, int, bool]]:
    found = partitions(ingesting).state.partitions
    return {name: (each.rows, each.late_rows, each.is_closed) for name, each in found.items()}


def test_a_partition_closes_when_all_sequencers_have_passed_it(hourly: Home) -> None:
    at(hourly, 66)
    send(hourly, 0, 1, 59, 66)
    send(hourly, 1, 2, 63)
    report = hourly.ingest()
    assert told(report) == {"closed": None, "reopened": None, "late_rows": None, "watermark": "2013-01-03 05:58:00"}
    assert counts(hourly) == {"2013-01-03T05": (3, 0, False), "2013-01-03T06": (2, 0, False)}
    send(hourly, 1, 65)
    report = hourly.ingest()
    assert report.details["closed"] == [{"partition": "2013-01-03T05", "rows": 3, "late_rows": 0}]
    assert report.details["watermark"] == "2013-01-03 06:00:00"
    assert counts(hourly)["2013-01-03T05"] == (3, 0, True)


def test_quiet_sequencers_do_not_hold_a_partition_open(hourly: Home) -> None:
    send(hourly, 0, 1)
    at(hourly, 2)
    hourly.ingest()
    before = hourly.upper("events")
    at(hourly, 4)
    hourly.ingest()
    assert hourly.upper("events") == before, "nothing is committed where nothing closes"
    at(hourly, 64)
    assert told(hourly.ingest())["closed"] is None
    assert partitions(hourly).is_closed("2013-01-03T04"), "also where no row ever came"
    at(hourly, 65)
    hourly.switch(Mode.READ_ONLY)
    assert told(hourly.ingest())["closed"] is None, "who may not publish closes nothing"
    hourly.switch(Mode.READ_WRITE)
    report = hourly.ingest()
    assert (report.outcome, report.details["closed"][0]["partition"]) == (Outcome.UNCHANGED, "2013-01-03T05")
    assert told(hourly.ingest())["closed"] is None, "a partition closes once"


def test_nothing_is_committed_before_the_first_row(hourly: Home) -> None:
    before = hourly.upper("events")
    for hour in range(3):
        at(hourly, 60 * hour)
        assert hourly.ingest().details.keys() == {"buffer"}
    assert hourly.upper("events") == before


def test_what_waits_holds_a_partition_open(hourly: Home) -> None:
    send(hourly, 0, 1, 59)
    at(hourly, 200)
    assert told(hourly.ingest(max_entries=1))["closed"] is None
    at(hourly, 300)
    assert told(hourly.ingest())["closed"] is None, "rows came now: more may come"
    at(hourly, 305)
    assert hourly.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 2, "late_rows": 0}]


def test_batches_of_other_tables_hold_nothing_open(ingesting: Home) -> None:
    ingesting.clock.step(FIVE - ingesting.clock.now_ms())
    source, columns = {"table": "events"}, "id bigint, at timestamp"
    ingesting.declare_reader(schema=columns, source=source, event_time="at", partition="hour", lifecycle=RULES)
    text = json.dumps({"id": 1, "at": time_text(FIVE + MINUTE_MS)}).encode()
    ingesting.send(0, text, headers=(("tidemark-table", b"events"),))
    ingesting.ingest()
    append(ingesting, 0, 2)
    at(ingesting, 66)
    assert ingesting.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 1, "late_rows": 0}]
    assert partitions(ingesting).known == ingesting.shard().load().state.ledgers


def test_a_batch_that_waits_holds_all_partitions_open(hourly: Home) -> None:
    at(hourly, 200)
    append(hourly, 0, 1, 2)
    append(hourly, 2, 3)
    send(hourly, 0, 130)
    send(hourly, 1, 130)
    assert told(hourly.ingest(max_entries=2)) == told(hourly.ingest(max_entries=1)) | {"watermark": None}
    assert told(hourly.ingest())["late_rows"] is None
    assert hourly.ids() == [0, 0, 0, 1, 1]


def test_a_producer_whose_clock_is_fast_hides_no_other_rows(hourly: Home) -> None:
    at(hourly, 200)
    send(hourly, 0, 320)
    at(hourly, 6)
    send(hourly, 0, 5)
    assert hourly.ingest().details["quarantined"] == 1
    assert [reason for _, _, reason, _ in hourly.bad()] == ["event-time-ahead"]
    assert partitions(hourly).state.sequencers[0].max_time_ms == FIVE + 5 * MINUTE_MS


def test_a_clock_that_was_ahead_is_told_and_can_be_forgiven(hourly: Home) -> None:
    send(hourly, 0, 1)
    hourly.ingest()
    at(hourly, 600)
    hourly.ingest()
    at(hourly, 10)
    assert "clock of an ingest was ahead" in shown(hourly)["watermark_ahead"]
    send(hourly, 0, 9)
    assert hourly.ingest().details["reopened"] == [{"partition": "2013-01-03T05", "late_rows": 1}]
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    with table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)
    hourly.ingest()
    send(hourly, 0, 10)
    assert told(hourly.ingest())["reopened"] is None
    assert "watermark_ahead" not in shown(hourly)
    assert counts(hourly) == {"2013-01-03T05": (3, 0, False)}


def test_what_is_shown_says_what_really_holds_partitions_open(hourly: Home) -> None:
    close_five(hourly)
    hourly.ingest()
    (first, *_) = shown(hourly)["partitions"]
    assert (first["state"], first["late_rows"]) == ("reopened", 1)
    at(hourly, 200)
    assert {each["holds_back"] for each in shown(hourly)["sequencers"]} == {False}, "all wait for the clock alone"
    append(hourly, 0, 1)
    assert "1 batches" in shown(hourly)["batches_wait"]


def test_rows_without_an_event_time_or_too_far_ahead_wait_in_the_quarantine(hourly: Home) -> None:
    hourly.send(0, b'{"id":7}')
    send(hourly, 0, 61, 1)
    assert hourly.ingest().details["quarantined"] == 2
    assert [reason for _, _, reason, _ in hourly.bad()] == ["event-time-missing", "event-time-ahead"]
    assert partitions(hourly).state.sequencers[0].max_time_ms == FIVE + MINUTE_MS, "no watermark moved"
    at(hourly, 2)
    deployment, declaration = hourly.deployment, hourly.registry.get("events")
    report = retry(hourly.shards, deployment, declaration, clock=hourly.clock)
    assert (report.inserted, report.details["still_bad"]) == (1, 1), "its time is no longer far ahead"
    assert counts(hourly)["2013-01-03T06"] == (1, 0, False), "a retried row counts, too"
    assert [row.reason for row in list_quarantined(hourly.shards, "events")] == ["event-time-missing"]


@pytest.mark.parametrize("partition", ["hour", "day", "month"])
@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "date"])
def test_odd_event_times_stop_no_ingest(ingesting: Home, type_: str, partition: str) -> None:
    partition = "day" if (type_, partition) == ("date", "hour") else partition
    ingesting.clock.step(FIVE - ingesting.clock.now_ms())
    columns = f"id bigint, at {type_}"
    ingesting.declare_reader(schema=columns)
    ingesting.send(0, b'{"id":1,"at":"9999-12-31"}')
    ingesting.ingest()
    ingesting.declare_reader(schema=columns, event_time="at", partition=partition, lifecycle={"late": "quarantine"})
    for minute in (0, 10, 20):
        at(ingesting, minute)
        ingesting.send(0, b'{"id":2,"at":"0001-01-01"}')
        ingesting.send(1, b'{"id":3,"at":"0001-01-01"}')
        assert ingesting.ingest().error is None
    at(ingesting, 60 * 24 * 40)
    assert ingesting.ingest().error is None
    assert partitions_by(ingesting, Unit(partition)).state.is_passed(name_partition(Unit(partition), FIVE))


def close_five(ingesting: Home) -> None:
    at(ingesting, 66)
    send(ingesting, 0, 1, 65)
    send(ingesting, 1, 2, 65)
    assert ingesting.ingest().details["closed"][0]["rows"] == 2
    send(ingesting, 1, 59, 66)


def test_late_rows_are_appended_and_reopen_their_partition(hourly: Home) -> None:
    close_five(hourly)
    report = hourly.ingest()
    assert report.inserted == 2
    assert report.details["reopened"] == [{"partition": "2013-01-03T05", "late_rows": 1}]
    assert (told(report)["late_rows"], told(report)["closed"]) == (1, None), "more may be late"
    at(hourly, 71)
    assert hourly.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 3, "late_rows": 1}]


def test_late_rows_are_put_aside(hourly: Home) -> None:
    declare(hourly, late="quarantine")
    close_five(hourly)
    report = hourly.ingest()
    assert (report.inserted, told(report)["late_rows"], told(report)["reopened"]) == (1, 1, None)
    assert [(partition, offset, reason) for partition, offset, reason, _ in hourly.bad()] == [(1, 2, "late")]
    assert counts(hourly)["2013-01-03T05"] == (2, 0, True)


def test_late_rows_that_are_let_in_by_a_retry_are_told_to_reopen_their_partition(hourly: Home) -> None:
    declare(hourly, late="quarantine")
    close_five(hourly)
    hourly.ingest()
    report = retry(hourly.shards, hourly.deployment, hourly.registry.get("events"), clock=hourly.clock)
    assert report.details["reopened"] == [{"partition": "2013-01-03T05", "late_rows": 1}]
    assert (told(report)["late_rows"], told(report)["closed"]) == (1, None)
    assert counts(hourly)["2013-01-03T05"] == (3, 1, False)


def test_late_rows_are_refused_until_they_are_let_in(hourly: Home) -> None:
    declare(hourly, late="refuse")
    close_five(hourly)
    before = hourly.upper("events")
    for mode in (Mode.READ_WRITE, Mode.READ_ONLY):
        hourly.switch(mode)
        report = hourly.ingest()
        assert report.error is not None
        assert (report.error.kind, report.exit_code) == ("LateRows", ExitCode.REFUSED)
        assert "number 2 with the event time 2013-01-03 05:59:00 of sequencer 1" in report.error.message
        assert (hourly.ids(), hourly.upper("events"), hourly.branches()) == ([0, 1, 2, 3], before, set())
    hourly.switch(Mode.READ_WRITE)
    declare(hourly, late="append")
    assert hourly.ingest().inserted == 2


def test_what_was_staged_counts_once_it_is_published(hourly: Home) -> None:
    send(hourly, 0, 1)
    hourly.ingest()
    hourly.switch(Mode.READ_ONLY)
    at(hourly, 66)
    send(hourly, 0, 3, 66)
    send(hourly, 1, 65)
    assert hourly.ingest().outcome is Outcome.STAGED
    hourly.switch(Mode.READ_WRITE)
    send(hourly, 1, 66)
    assert told(hourly.ingest())["closed"] is None, "what is staged is not there yet"
    flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
    report = hourly.ingest()
    assert report.details["closed"] == [{"partition": "2013-01-03T05", "rows": 2, "late_rows": 0}]
    assert counts(hourly)["2013-01-03T06"] == (3, 0, False)
    before = hourly.upper("events")
    assert (hourly.ingest().outcome, hourly.upper("events")) == (Outcome.UNCHANGED, before)


def test_what_is_staged_before_published_rows_is_not_late(hourly: Home) -> None:
    at(hourly, 66)
    hourly.switch(Mode.READ_ONLY)
    send(hourly, 0, 1)
    hourly.ingest()
    hourly.switch(Mode.READ_WRITE)
    send(hourly, 0, 66)
    send(hourly, 1, 66)
    assert told(hourly.ingest())["closed"] is None
    flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
    assert hourly.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 1, "late_rows": 0}]


def give_up_a_good_row_beside_a_published_bad_one(ingesting: Home) -> None:
    """Leave a row to be read again, late by then, whose number the quarantine knows."""
    declare(ingesting, late="quarantine")
    at(ingesting, 66)
    send(ingesting, 0, 66)
    send(ingesting, 1, 2)
    ingesting.ingest()
    ingesting.switch(Mode.READ_ONLY)
    send(ingesting, 0, 10)
    ingesting.send(0, b'{"id":')
    ingesting.ingest()
    ingesting.switch(Mode.READ_WRITE)
    send(ingesting, 1, 66)
    assert ingesting.ingest().details["watermark"] == "2013-01-03 06:01:00"
    drop_staged(ingesting.shard(), [each.branch for each in list_staged(ingesting.shard().load())])
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert [offset for _, offset, _, _ in ingesting.bad()] == [2]


def test_rows_that_are_late_when_they_are_read_again_are_not_lost(hourly: Home) -> None:
    give_up_a_good_row_beside_a_published_bad_one(hourly)
    assert hourly.ingest().details["late_rows"] == 1
    assert [(offset, reason) for _, offset, reason, _ in hourly.bad()] == [(1, "late"), (2, "row-unreadable")]
    assert hourly.ids() == [0, 1, 3]


def test_rows_that_are_late_when_they_are_staged_again_are_not_lost(hourly: Home) -> None:
    """A flush would publish no second batch of that name in the quarantine."""
    give_up_a_good_row_beside_a_published_bad_one(hourly)
    hourly.switch(Mode.READ_ONLY)
    assert hourly.ingest().outcome is Outcome.STAGED
    hourly.switch(Mode.READ_WRITE)
    flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
    assert [(offset, reason) for _, offset, reason, _ in hourly.bad()] == [(2, "row-unreadable")]
    assert hourly.ids() == [0, 1, 2, 3]
    assert hourly.ingest().details["late_rows"] == 1


@pytest.mark.parametrize("late", ["quarantine", "append"])
def test_rows_are_judged_again_if_another_run_closed_partitions_meanwhile(hourly: Home, late: str) -> None:
    declare(hourly, late=late)
    close_five(hourly)
    rules = PartitionRules.of(hourly.registry.get("events"))
    assert rules is not None
    look = Look(now_ms=hourly.clock.now_ms(), present={}, begun={}, batches=BatchesSeen())
    closing = Closing(rules=rules, log=BufferLog("t", "0123abcd"), look=look, passed_ms=None)
    with pytest.raises(InputsGone) if late == "quarantine" else nullcontext():
        closing.advance(hourly.shard().load())


def test_a_state_that_is_lost_or_of_another_column_is_rebuilt(hourly: Home) -> None:
    at(hourly, 62)
    send(hourly, 0, 1, 61)
    send(hourly, 1, 2, 62)
    hourly.ingest()
    before = partitions(hourly)
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    with table.transaction() as transaction:
        transaction.remove_properties(PROPERTY)
    hourly.ingest()
    assert counts(hourly) == {"2013-01-03T05": (2, 0, False), "2013-01-03T06": (2, 0, False)}
    assert partitions(hourly).known == before.known
    assert partitions(hourly).state.sequencers == before.state.sequencers
    hourly.declare_reader(schema="id bigint, at timestamp", event_time="at")
    hourly.ingest()
    days = Partitions.parse(hourly.shard().load().table.properties, "at", Unit.DAY)
    assert {name: each.rows for name, each in days.state.partitions.items()} == {"2013-01-03": 4}


def test_event_times_are_declared_for_rows_that_are_there(ingesting: Home) -> None:
    ingesting.clock.step(FIVE - ingesting.clock.now_ms())
    ingesting.declare_reader(schema="id bigint, at timestamp")
    send(ingesting, 0, 1)
    ingesting.send(0, b'{"id":7}')
    ingesting.ingest()
    declare(ingesting)
    send(ingesting, 1, 3)
    ingesting.ingest()
    assert counts(ingesting) == {"2013-01-03T05": (2, 0, False)}


def test_what_another_commit_brought_meanwhile_counts_too(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    hourly.switch(Mode.READ_ONLY)
    send(hourly, 0, 1)
    hourly.ingest()
    hourly.switch(Mode.READ_WRITE)
    send(hourly, 1, 2)
    publish = Writer.publish

    def flush_first(writer: Writer, *batches: Batch, **more: Any) -> Published:
        monkeypatch.undo()
        flush_all(hourly.shards, deployment_of(hourly.settings), [], clock=hourly.clock)
        return publish(writer, *batches, **more)

    monkeypatch.setattr(Writer, "publish", flush_first)
    assert hourly.ingest().inserted == 1
    assert (hourly.ids(), counts(hourly)) == ([0, 1], {"2013-01-03T05": (2, 0, False)})
    assert partitions(hourly).known == hourly.shard().load().state.ledgers


def test_rows_of_appended_batches_count_and_move_no_watermark(hourly: Home) -> None:
    append(hourly, 0, 0, 59)
    send(hourly, 0, 1)
    assert hourly.ingest().inserted == 3
    assert counts(hourly) == {"2013-01-03T05": (3, 0, False)}
    assert partitions(hourly).state.sequencers[0].max_time_ms == FIVE + MINUTE_MS
    assert partitions(hourly).known == hourly.shard().load().state.ledgers
    at(hourly, 65)
    assert hourly.ingest().details["closed"] == [{"partition": "2013-01-03T05", "rows": 3, "late_rows": 0}]
