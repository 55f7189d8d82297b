"""All of an ingest runs on a buffer in memory, too, in the process that has it; Spark's tasks are other processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.mode import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ConfigurationInvalid
from tidemark.exit_codes import ExitCode
from tidemark.ingest.progress import read_progress
from tidemark.ingest.quarantine import list_quarantined, retry
from tidemark.report import Outcome
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.formats.entry import Message
from tidemark.write_buffer.memory import MemoryState, registered
from tidemark.write_buffer.ranges import NumberRange
from tidemark.write_buffer.registry import check_shared, open_reader, read_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration

pytestmark = pytest.mark.slow  # stores that are really written, again and again

URI = "memory:events"
BAD_LINE = b'{"id":2}'  # names no table


@pytest.fixture
def state() -> Iterator[MemoryState]:
    state = MemoryState(2)
    with registered("events", state):
        yield state


@pytest.fixture
def declared(ingesting: Home) -> Declaration:
    return ingesting.declare_reader(source={"buffer": URI, "table": "t"})


def write(state: MemoryState, sequencer_id: int, *payloads: bytes) -> None:
    for payload in payloads:
        state.append(sequencer_id, Message(payload, (), 1_000_000))


def row(number: int) -> bytes:
    return json.dumps({"id": number, "_table": "t"}).encode()


def test_rows_and_bad_rows_come_once(state: MemoryState, ingesting: Home, declared: Declaration) -> None:
    write(state, 0, row(0), row(1), BAD_LINE)
    write(state, 1, row(3))
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.details["quarantined"]) == (Outcome.APPENDED, 3, 1)
    assert (ingesting.ids(), ingesting.ledgers()) == ([0, 1, 3], {"0": "0:3", "1": "0:1"})
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    (waiting,) = list_quarantined(ingesting.shards, "events")
    assert (waiting.topic, waiting.partition, waiting.offset, waiting.raw) == ("events", 0, 2, BAD_LINE)
    deployment = deployment_of(ingesting.settings, clock=ingesting.clock)
    assert retry(ingesting.shards, deployment, declared, clock=ingesting.clock, table="t").inserted == 1
    write(state, 1, row(4), row(5))
    assert ingesting.ingest(max_entries=1).inserted == 1
    with open_reader(parse_connection(URI)) as reader:
        found = read_progress(
            ingesting.settings, [declared], reader, parse_connection(URI), now_ms=ingesting.clock.now_ms()
        )
    assert [(each.sequencer, each.committed, each.lag) for each in found] == [(0, 3, 0), (1, 2, 1)]


@pytest.mark.usefixtures("declared")
def test_what_is_staged_is_flushed(state: MemoryState, ingesting: Home) -> None:
    ingesting.switch(Mode.READ_ONLY)
    write(state, 0, row(0), BAD_LINE)
    assert ingesting.ingest().outcome is Outcome.STAGED
    ingesting.switch(Mode.READ_WRITE)
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert (ingesting.ids(), ingesting.bad()) == ([0], [(0, 1, "table-missing", BAD_LINE)])


@pytest.mark.usefixtures("declared")
def test_what_expires_is_missed(state: MemoryState, ingesting: Home) -> None:
    write(state, 0, row(0))
    ingesting.ingest()
    write(state, 0, row(1), row(2))
    state.expire(0, 2)
    failed = ingesting.ingest()
    assert (failed.error and failed.error.kind, failed.exit_code) == ("NoLongerExists", ExitCode.INPUT_MISSING)


@pytest.mark.usefixtures("declared")
def test_spark_is_not_started_for_what_its_tasks_cannot_read(state: MemoryState, ingesting: Home) -> None:
    write(state, 0, row(0), row(1))
    failed = ingesting.ingest(small_entries=1, start_spark=lambda: pytest.fail("Spark was started"))
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code) == ("ConfigurationInvalid", ExitCode.CONFIGURATION)
    assert "Spark cannot read a memory buffer" in failed.error.message
    with pytest.raises(ConfigurationInvalid, match="Spark cannot read a memory buffer"):
        check_shared(parse_connection(URI))


@pytest.mark.usefixtures("state")
def test_a_range_that_has_lost_its_beginning_is_not_read(state: MemoryState) -> None:
    write(state, 0, row(0), row(1))
    connection, names = parse_connection(URI), ("number", "payload")
    (batch,) = read_batches(connection, NumberRange(0, 0, 2), names)
    assert batch.column("number").to_pylist() == [0, 1]
    (batch,) = read_batches(connection, NumberRange(0, 0, 1), names)
    assert batch.column("number").to_pylist() == [0], "what lies behind the end is cut off"
    state.expire(0, 1)
    from tidemark.write_buffer.errors import AfterWatermark, BufferMissing, NoLongerExists

    for part, error in (
        (NumberRange(0, 0, 2), NoLongerExists),
        (NumberRange(0, 3, 4), AfterWatermark),
        (NumberRange(2, 0, 1), BufferMissing),
    ):
        with pytest.raises(error):
            list(read_batches(connection, part, names))
