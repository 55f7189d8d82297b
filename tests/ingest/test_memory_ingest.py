"""All of an ingest runs on a buffer in memory, too, in the process that has it; Spark's tasks are other processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.discarding import discard
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.mode import Mode
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ConfigurationInvalid
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.files.manifests import read_added_files
from tidemark.ingest import stage
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
    from tidemark.report import CollectionReport

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


@pytest.fixture
def staged(state: MemoryState, ingesting: Home, declared: Declaration) -> Declaration:
    """[0, 3), [3, 6) and [6, 9) of a new collection are staged."""
    ingesting.switch(Mode.READ_ONLY)
    for first in (0, 3, 6):
        write(state, 0, *map(row, range(first, first + 3)))
        assert ingesting.ingest().outcome is Outcome.STAGED
    return declared


def give_up_first_batch(ingesting: Home) -> None:
    deployment = deployment_of(ingesting.settings, clock=ingesting.clock)
    first, *_ = list_batches(ingesting.shards, ["events"])
    chosen = Selection(names=("events",), range=first.name.range)
    done = discard(ingesting.shards, deployment, chosen, who="tests", why="a test", clock=ingesting.clock)
    assert done == [first]


def damage_first_batch(ingesting: Home) -> None:
    first, *_ = list_batches(ingesting.shards, ["events"])
    table = ingesting.shard().load().table
    snapshot = table.metadata.snapshot_by_id(first.snapshot_id)
    assert snapshot is not None
    table.io.delete(next(iter(read_added_files(table.io, snapshot))).file_path)


LOSSES = {"damaged": damage_first_batch, "discarded": give_up_first_batch}


def go_on(ingesting: Home, first: str) -> list[CollectionReport]:
    """Switch to read-write, and let ingest and flush run in turns; return the reports of the ingests."""
    ingesting.switch(Mode.READ_WRITE)
    reports = []
    for step in ("ingest", "flush", "ingest", "ingest") if first == "ingest" else ("flush", "ingest", "ingest"):
        if step == "ingest":
            reports.append(ingesting.ingest())
        else:
            flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    return reports


@pytest.mark.parametrize("first", ["ingest", "flush"])
@pytest.mark.parametrize("how", ["damaged", "discarded"])
def test_the_first_staged_range_is_read_again(
    state: MemoryState, ingesting: Home, staged: Declaration, how: str, first: str
) -> None:
    LOSSES[how](ingesting)
    with open_reader(parse_connection(URI)) as reader:
        (found, _) = read_progress(
            ingesting.settings, [staged], reader, parse_connection(URI), now_ms=ingesting.clock.now_ms()
        )
    if how == "discarded":
        assert (found.committed, found.published) == (0, 0), "status tells of the hole"
    write(state, 0, row(9))
    reports = go_on(ingesting, first)
    assert (ingesting.ids(), ingesting.ledgers()) == (list(range(10)), {"0": "0:10"})
    assert ingesting.branches() == set()
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    dropped = [batch for report in reports for batch in report.details.get("dropped", [])]
    assert [batch["batch"].endswith(" 0:3") and "is damaged" in batch["message"] for batch in dropped] == [True] * (
        how == "damaged"
    )


@pytest.mark.parametrize("how", ["damaged", "discarded"])
def test_the_first_staged_range_is_lost_if_it_expired(
    state: MemoryState, ingesting: Home, staged: Declaration, how: str
) -> None:
    LOSSES[how](ingesting)
    state.expire(0, 4)
    (failed, *_) = go_on(ingesting, "flush")
    assert failed.error is not None
    assert (failed.error.kind, ingesting.ids()) == ("NoLongerExists", list(range(3, 9)))
    ingesting.declare_reader(source={"buffer": URI, "table": "t", "on_expired": "earliest"})
    assert ingesting.ingest().details["lost"] == 3
    assert (ingesting.ingest().outcome, ingesting.ledgers()) == (Outcome.UNCHANGED, {"0": "0:9"})


@pytest.mark.usefixtures("declared")
def test_what_expired_before_the_first_ingest_is_not_missed(state: MemoryState, ingesting: Home) -> None:
    write(state, 0, row(0), row(1), row(2))
    state.expire(0, 1)
    ingesting.switch(Mode.READ_ONLY)
    ingesting.ingest()
    state.expire(0, 2)
    ingesting.switch(Mode.READ_WRITE)
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), ingesting.ledgers()) == ([1, 2], {"0": "1:3"})


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("first", ["ingest", "flush"])
@pytest.mark.parametrize("how", ["damaged", "discarded", "read-only again"])
def test_bad_rows_of_a_batch_that_is_read_again_stand_once(
    state: MemoryState, ingesting: Home, how: str, first: str
) -> None:
    ingesting.switch(Mode.READ_ONLY)
    write(state, 0, row(0), BAD_LINE)
    ingesting.ingest()
    LOSSES.get(how, give_up_first_batch)(ingesting)
    write(state, 0, row(2), BAD_LINE)
    if how == "read-only again":
        ingesting.ingest()
    go_on(ingesting, first)
    assert (ingesting.ids(), ingesting.ledgers(), ingesting.branches()) == ([0, 2], {"0": "0:4"}, set())
    assert [offset for _, offset, _, _ in ingesting.bad()] == [1, 3]


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("first", ["ingest", "flush"])
@pytest.mark.parametrize("point", stage.FAIL_POINTS)
def test_bad_rows_of_a_run_that_died_stand_once(
    state: MemoryState, ingesting: Home, monkeypatch: pytest.MonkeyPatch, point: str, first: str
) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Died

    ingesting.switch(Mode.READ_ONLY)
    write(state, 0, row(0), BAD_LINE)
    with monkeypatch.context() as patched:
        patched.setattr(stage, "fail_point", die)
        with pytest.raises(Died):
            ingesting.ingest()
    write(state, 0, row(2))
    go_on(ingesting, first)
    flush_all(ingesting.shards, deployment_of(ingesting.settings), [], clock=ingesting.clock)
    assert (ingesting.ids(), ingesting.ledgers(), ingesting.branches()) == ([0, 2], {"0": "0:3"}, set())
    assert [offset for _, offset, _, _ in ingesting.bad()] == [1]


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
