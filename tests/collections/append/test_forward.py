"""Rows of a collection that writes to a buffer go into the log, as whole batches, and come by an ingest, each once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pytest

from tests.support.discarding import discard
from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.append.forward import check_before_spark
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.append_only import StatusHistory
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName, list_batches
from tidemark.collections.staged.discard import Selection
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import ConfigurationInvalid, CorruptState, IncompatibleChange, RangeOverlap, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.shard.ledger import Range
from tidemark.ingest import batches as batches_module
from tidemark.ingest.plan import LogRecreated
from tidemark.ingest.progress import count_waiting_batches
from tidemark.ingest.quarantine import retry
from tidemark.report import Outcome
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.batches.batch_log import open_batch_log
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable, EntryTooLarge, NoLongerExists
from tidemark.write_buffer.file.log import FileLog
from tidemark.write_buffer.registry import open_reader

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.append.forward import Appended
    from tidemark.collections.apply.plan import ApplyPlan
    from tidemark.errors import TidemarkError
    from tidemark.report import CollectionReport
    from tidemark.settings import Settings


@pytest.fixture
def forwarding(home: Settings, tmp_path: Path) -> Home:
    """A gateway, which keeps no row, and a reader of the same buffer."""
    opened = Home(home, tmp_path, now_ms=1_000_000)
    assert opened.buffer.logs
    opened.declare_writer()
    opened.declare_reader("events", source={"table": "gate"})
    return opened


def rows(start: int, end: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, end), pa.int64()), "name": [f"n{id_}" for id_ in range(start, end)]})


def append(opened: Home, start: int, end: int, name: str = "gate", *, producer: str = "p", **own: Any) -> Appended:
    batch = BatchName(producer, Range(start, end))
    return append_rows(
        opened.shard(name), batch, rows(start, end), deployment=opened.deployment, clock=opened.clock, **own
    )


def waiting_batches(opened: Home) -> dict[str, int]:
    connection = parse_connection(opened.buffer_folder.as_uri())
    declared = opened.deployment.registry.read().declarations.values()
    with open_reader(connection) as reader:
        return count_waiting_batches(opened.settings, declared, reader, connection)


def test_appended_rows_go_into_the_log_and_come_once(forwarding: Home) -> None:
    done = append(forwarding, 0, 3)
    assert (done.outcome, done.rows) == (Outcome.FORWARDED, 3)
    assert append(forwarding, 0, 3) == done, "the same range, the same answer"
    assert (forwarding.ids("gate"), forwarding.ids()) == ([], [])
    assert waiting_batches(forwarding) == {"events": 1}
    report = forwarding.ingest()
    assert (report.outcome, report.inserted) == (Outcome.APPENDED, 3)
    assert (forwarding.ids(), waiting_batches(forwarding)) == ([0, 1, 2], {})
    assert append(forwarding, 0, 3) == done
    assert forwarding.ingest().outcome is Outcome.UNCHANGED
    with pytest.raises(RangeOverlap, match=r"\[0, 3\)"):
        append(forwarding, 2, 5)
    assert append(forwarding, 3, 5).rows == 2
    assert forwarding.ingest().inserted == 2
    assert forwarding.ids() == list(range(5))
    assert forwarding.branches() == set()


def test_reader_that_writes_gets_its_rows_back_under_their_name(forwarding: Home) -> None:
    own = forwarding.declare_reader("own", source={"table": "rows"}, writes_to=forwarding.buffer_folder.as_uri())
    assert own.buffer_table == "rows"
    assert append(forwarding, 0, 3, "own").outcome is Outcome.FORWARDED
    assert append(forwarding, 0, 3).outcome is Outcome.FORWARDED, "the producer of another collection"
    assert forwarding.ingest("own").inserted == 3
    assert append(forwarding, 0, 3, "own").outcome is Outcome.SKIPPED, "visible by now"
    assert {(row["_producer"], row["_batch"]) for row in forwarding.rows("own")} == {("p", 0)}
    assert forwarding.ingest("events").inserted == 3
    assert {(row["_producer"], row["_batch"]) for row in forwarding.rows("events")} == {("gate.p", 0)}
    assert (forwarding.ids("own"), forwarding.ids("events")) == ([0, 1, 2], [0, 1, 2])


def test_producers_that_could_be_taken_for_each_other_are_refused(forwarding: Home) -> None:
    forwarding.declare_reader("own", source={"table": "own"}, writes_to=forwarding.buffer_folder.as_uri())
    append(forwarding, 0, 3, producer="p")
    append(forwarding, 0, 3, "own", producer="p")
    with pytest.raises(UsageError, match=r"'gate\.p' of 'own'"):
        append(forwarding, 0, 3, "own", producer="gate.p")
    append(forwarding, 0, 3, "own", producer="gate.q")
    with pytest.raises(UsageError, match=r"'q' of 'gate'"):
        append(forwarding, 0, 3, producer="q")


def test_collection_that_stored_rows_before_knows_what_it_has(forwarding: Home) -> None:
    """A declaration that is altered: what was appended directly is not forwarded."""
    forwarding.declare_reader("own", source={"table": "own"})
    forwarding.declare("version: 1\ncollections:\n  own: {kind: append-only, schema: 'id bigint, name string'}\n")
    assert append(forwarding, 0, 3, "own").outcome is Outcome.APPENDED
    forwarding.declare_reader("own", source={"table": "own"}, writes_to=forwarding.buffer_folder.as_uri())
    assert append(forwarding, 0, 3, "own").outcome is Outcome.SKIPPED
    with pytest.raises(RangeOverlap):
        append(forwarding, 2, 5, "own")
    assert append(forwarding, 3, 5, "own").outcome is Outcome.FORWARDED
    forwarding.ingest("own")
    assert forwarding.ids("own") == list(range(5))


def test_bad_rows_of_a_batch_go_to_the_quarantine_of_who_ingests(forwarding: Home) -> None:
    """What fits the columns of the writer need not fit those of a reader."""
    forwarding.declare_reader("short", source={"table": "gate"}, schema="id int, name string")
    big = pa.table({"id": pa.array([1, 2**40], pa.int64()), "name": ["a", "b"]})
    batch = BatchName("p", Range(0, 2))
    append_rows(forwarding.shard("gate"), batch, big, deployment=forwarding.deployment, clock=forwarding.clock)
    report = forwarding.ingest("short")
    assert (report.inserted, report.details["quarantined"]) == (1, 1)
    ((_, offset, reason, raw),) = forwarding.bad("short")
    assert (offset, reason, raw) == (0, "row-unreadable", b'{"id":1099511627776,"name":"b"}')
    assert forwarding.ingest("short").outcome is Outcome.UNCHANGED
    source = f"{{buffer: '{forwarding.buffer_folder.as_uri()}', table: gate}}"
    forwarding.declare(
        "version: 1\ncollections:\n"
        f"  short: {{kind: append-only, schema: 'id bigint, name string', source: {source}}}\n"
    )
    declaration = forwarding.registry.get("short")
    again = retry(forwarding.shards, forwarding.deployment, declaration, clock=forwarding.clock)
    assert (again.inserted, forwarding.ids("short")) == (1, [1, 2**40])


@pytest.mark.parametrize("name", ["gate", "own"])
def test_staged_batch_is_forwarded_by_the_flush(forwarding: Home, name: str) -> None:
    forwarding.declare_reader("own", source={"table": "own"}, writes_to=forwarding.buffer_folder.as_uri())
    forwarding.switch(Mode.READ_ONLY)
    assert append(forwarding, 0, 3, name).outcome is Outcome.STAGED
    assert append(forwarding, 0, 3, name).outcome is Outcome.STAGED
    assert forwarding.ingest("events").outcome is Outcome.UNCHANGED
    forwarding.switch(Mode.READ_WRITE)
    flushed = flush_all(forwarding.shards, forwarding.deployment, [], clock=forwarding.clock).collections[name]
    assert (flushed.outcome, flushed.details["ranges"]) == (Outcome.FLUSHED, {"p": [[0, 3]]})
    forwarding.ingest_all()
    assert forwarding.ids({"gate": "events"}.get(name, name)) == [0, 1, 2]
    assert forwarding.branches() == set()


def test_what_a_flush_forwarded_comes_to_a_collection_that_reads_the_buffer_later(forwarding: Home) -> None:
    forwarding.switch(Mode.READ_ONLY)
    append(forwarding, 0, 3)
    forwarding.switch(Mode.READ_WRITE)
    flush_all(forwarding.shards, forwarding.deployment, [], clock=forwarding.clock)
    again = append(forwarding, 0, 3)
    assert again.outcome is append(forwarding, 3, 5).outcome is Outcome.FORWARDED
    address = forwarding.buffer_folder.as_uri()
    forwarding.declare(
        "version: 1\ncollections:\n  gate: {kind: append-only, schema: 'id bigint, name string', "
        f"writes_to: '{address}', source: {{buffer: '{address}', table: gate}}}}\n"
    )
    forwarding.ingest("gate")
    assert forwarding.ids("gate") == [0, 1, 2, 3, 4]


def flush(opened: Home, *takes_over: int) -> CollectionReport:
    deployment = replace(opened.deployment, takes_over=frozenset(takes_over))
    return flush_all(opened.shards, deployment, ["gate"], clock=opened.clock).collections["gate"]


def test_twin_of_a_forwarded_batch_adds_nothing(forwarding: Home) -> None:
    newer, newest = forwarding.of_generation(2), forwarding.of_generation(3)
    forwarding.switch(Mode.READ_ONLY)
    for each in (forwarding, newer, newest):
        assert append(each, 0, 2).outcome is Outcome.STAGED
    forwarding.switch(Mode.READ_WRITE)
    assert flush(forwarding).details["ranges"] == {"p": [[0, 2]]}
    assert append(newest, 7, 8).outcome is Outcome.STAGED
    newest.switch(Mode.READ_WRITE)
    promoted = flush(newest)
    assert (promoted.outcome, promoted.error) == (Outcome.FLUSHED, None), "the other batch goes on"
    assert (promoted.details["ranges"], promoted.details["already_published"]) == ({"p": [[7, 8]]}, ["p 0:2"])
    assert flush(newest, 2).details["already_published"] == ["p 0:2"]
    assert newest.ingest().inserted == 3
    assert (newest.ids(), newest.branches()) == ([0, 1, 7], set())


def test_staged_batch_of_which_a_part_was_forwarded_keeps_no_other_back(forwarding: Home) -> None:
    newer = forwarding.of_generation(2)
    forwarding.switch(Mode.READ_ONLY)
    append(forwarding, 0, 2)
    append(newer, 0, 3)
    append(newer, 3, 4)
    forwarding.switch(Mode.READ_WRITE)
    flush(forwarding)
    newer.switch(Mode.READ_WRITE)
    flushed = flush(newer)
    assert (flushed.outcome, flushed.exit_code) == (Outcome.FLUSHED, ExitCode.REFUSED)
    assert flushed.details["ranges"] == {"p": [[3, 4]]}
    assert [left["batch"] for left in flushed.details["left_staged"]] == ["p 0:3"]
    newer.ingest()
    assert newer.ids() == [0, 1, 3]


def test_staged_batch_that_the_buffer_cannot_hold_stays_alone(forwarding: Home) -> None:
    forwarding.switch(Mode.READ_ONLY)
    append(forwarding, 0, 3)
    name = BatchName("p", Range(3, 4))
    large = pa.table({"id": pa.array([3], pa.int64()), "name": ["x" * 5_000]})
    append_rows(forwarding.shard("gate"), name, large, deployment=forwarding.deployment, clock=forwarding.clock)
    forwarding.switch(Mode.READ_WRITE)
    forwarding.declare(
        "version: 1\ncollections:\n  gate: {kind: append-only, schema: 'id bigint, name string', "
        f"writes_to: '{forwarding.buffer_folder.as_uri()}?limit_bytes=4000'}}\n"
    )
    flushed = flush_all(forwarding.shards, forwarding.deployment, [], clock=forwarding.clock).collections["gate"]
    assert (flushed.outcome, flushed.details["ranges"]) == (Outcome.FLUSHED, {"p": [[0, 3]]})
    ((left,),) = [flushed.details["left_staged"]]
    assert (left["batch"], left["kind"]) == ("p 3:4", "EntryTooLarge")
    assert forwarding.ingest().inserted == 3


def lose_names(forwarding: Home, how: str) -> None:
    folder = forwarding.buffer_folder / "batches"
    if how == "cut":
        FileLog(folder / "0").expire(2)
    elif how == "damaged":
        path = FileLog(folder / "0").path(1)
        path.write_bytes(path.read_bytes()[:-1])
    else:
        shutil.rmtree(folder)
    if how == "made anew":
        append(forwarding, 6, 9)


@pytest.mark.parametrize(
    ("how", "error"),
    [("cut", NoLongerExists), ("gone", BufferMissing), ("made anew", LogRecreated), ("damaged", CorruptState)],
)
def test_names_that_are_lost_are_said(forwarding: Home, how: str, error: type[TidemarkError]) -> None:
    append(forwarding, 0, 3)
    forwarding.ingest()
    append(forwarding, 3, 6)
    lose_names(forwarding, how)
    report = forwarding.ingest()
    assert report.error is not None
    assert report.error.kind == error.__name__
    assert forwarding.ids() == [0, 1, 2]


def test_names_that_may_not_be_read_are_said(forwarding: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    append(forwarding, 0, 3)
    refused = ConfigurationInvalid("the login may not read 'rows.batches'")
    monkeypatch.setattr(batches_module, "open_batches", lambda _: (_ for _ in ()).throw(refused))
    report = forwarding.ingest()
    assert report.error is None
    assert "the login may not read 'rows.batches'" in report.details["batches_wait"]
    monkeypatch.undo()
    assert forwarding.ingest().inserted == 3


@pytest.mark.parametrize("how", ["cut", "gone", "made anew"])
def test_lost_names_may_be_accepted(forwarding: Home, how: str) -> None:
    accepting = {"table": "gate", "on_expired": "earliest", "on_recreated": "earliest"}
    forwarding.declare_reader("accepting", source=accepting)
    append(forwarding, 0, 3)
    forwarding.ingest("accepting")
    append(forwarding, 3, 6)
    lose_names(forwarding, how)
    report = forwarding.ingest("accepting")
    assert report.error is None
    assert report.details.get("refused_batches", []) == (
        ["1 batches, whose names retention took"] if how == "cut" else []
    )
    assert forwarding.ids("accepting") == ([0, 1, 2, 6, 7, 8] if how == "made anew" else [0, 1, 2])


def test_row_that_the_buffer_cannot_hold_fails_its_own_caller_alone(forwarding: Home) -> None:
    limited = f"{forwarding.buffer_folder.as_uri()}?limit_bytes=4000"
    forwarding.declare_writer("limited", writes_to=limited)
    appenders = Appenders(forwarding.shards, forwarding.deployment, forwarding.clock, producer="web")
    appenders.register("limited")
    appender = appenders.monotonic_appender("limited")
    large = pa.table({"id": pa.array([9], pa.int64()), "name": ["x" * 5_000]})
    answers = [appender.task.put(each) for each in (rows(0, 2), large, rows(2, 4))]
    assert [answers[place].result().outcome for place in (0, 2)] == [Outcome.FORWARDED] * 2
    with pytest.raises(EntryTooLarge):
        answers[1].result()


def test_buffer_is_asked_before_spark_starts(forwarding: Home) -> None:
    gate = forwarding.registry.get("gate")
    check_before_spark([gate], forwarding.deployment)
    gone = gate.model_copy(update={"writes_to": (forwarding.folder / "nowhere").as_uri()})
    with pytest.raises(BufferMissing):
        check_before_spark([gone], forwarding.deployment)
    check_before_spark([gone, gate], forwarding.deployment)  # each fails alone


def test_small_rows_fit_whatever_an_entry_may_hold(forwarding: Home) -> None:
    forwarding.declare_writer("limited", writes_to=f"{forwarding.buffer_folder.as_uri()}?limit_bytes=4000")
    assert append(forwarding, 0, 500, "limited").rows == 500


def test_staged_batch_is_forwarded_by_its_next_append(forwarding: Home) -> None:
    forwarding.switch(Mode.READ_ONLY)
    append(forwarding, 0, 3)
    forwarding.switch(Mode.READ_WRITE)
    assert append(forwarding, 0, 3).outcome is Outcome.FORWARDED
    assert forwarding.branches() == set()
    assert forwarding.ingest().inserted == 3


def test_batch_that_was_staged_from_the_log_is_published_once(forwarding: Home) -> None:
    """The reader is read-only for a while; what it staged came from the log, and does not go there again."""
    forwarding.declare_reader("own", source={"table": "own"}, writes_to=forwarding.buffer_folder.as_uri())
    append(forwarding, 0, 3)
    append(forwarding, 0, 3, "own")
    forwarding.switch(Mode.READ_ONLY)
    for name in ("events", "own"):
        assert forwarding.ingest(name).outcome is Outcome.STAGED
        assert forwarding.ingest(name).outcome is Outcome.UNCHANGED
    forwarding.switch(Mode.READ_WRITE)
    flush_all(forwarding.shards, forwarding.deployment, [], clock=forwarding.clock)
    forwarding.ingest_all()
    assert (forwarding.ids(), forwarding.ids("own")) == ([0, 1, 2], [0, 1, 2])
    with open_batch_log(parse_connection(forwarding.buffer_folder.as_uri()), collection="own", table="own") as log:
        assert log.find("p", Range(0, 3)) == 3


def test_batch_that_is_discarded_where_it_was_staged_is_read_again(forwarding: Home) -> None:
    append(forwarding, 0, 3)
    forwarding.switch(Mode.READ_ONLY)
    forwarding.ingest()
    (staged,) = [each for each in list_batches(forwarding.shards, ["events"]) if each.name.producer == "gate.p"]
    forwarding.switch(Mode.READ_WRITE)
    selection = Selection(names=("events",), producer="gate.p")
    deployment, clock = forwarding.deployment, forwarding.clock
    assert discard(forwarding.shards, deployment, selection, who="tests", why="a test", clock=clock) == [staged]
    assert forwarding.ingest().inserted == 3
    flush_all(forwarding.shards, deployment, [], clock=clock)
    assert forwarding.ids() == [0, 1, 2]


def test_rows_of_long_lived_writers_come_once(forwarding: Home) -> None:
    appenders = Appenders(forwarding.shards, forwarding.deployment, forwarding.clock, producer="web")
    appenders.register("gate")
    for start in (0, 2):
        assert appenders.monotonic_appender("gate").append(rows(start, start + 2)).outcome is Outcome.FORWARDED
    assert forwarding.ingest().inserted == 4
    appenders.close()
    with pytest.raises(UsageError, match="statuses are compared"):
        appenders.register("gate", status=StatusHistory(key=("id",), column="name", time="at"))
    assert forwarding.ingest().outcome is Outcome.UNCHANGED
    assert forwarding.ids() == [0, 1, 2, 3]


def test_run_takes_whole_batches_up_to_its_limit(forwarding: Home) -> None:
    for start in (0, 2, 4):
        append(forwarding, start, start + 2)
    seen = []
    for _ in range(3):
        forwarding.ingest(max_entries=1)
        seen.append(forwarding.ids())
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_apply_asks_for_the_buffer_and_says_where_rows_go(forwarding: Home) -> None:
    missing = (forwarding.folder / "missing").as_uri()
    text = "version: 1\ncollections:\n  new: {kind: append-only, schema: 'id bigint', writes_to: '%s'}\n"
    with pytest.raises(BufferMissing, match="does not exist"):
        forwarding.declare(text % missing)
    assert "new" not in forwarding.shards.names()
    with pytest.raises(ConfigurationInvalid, match="'nowhere' is not set"):
        forwarding.declare(text % "nowhere")
    plan = forwarding.declare(text % forwarding.buffer_folder.as_uri())
    (step,) = [step for step in plan.steps if step.action == "register"]
    assert f"rows that are appended go to the buffer '{forwarding.buffer_folder.as_uri()}'" in str(step)


def test_reader_that_comes_later_gets_what_the_log_still_has(forwarding: Home) -> None:
    """The log of batches is kept for ever, their rows are not."""
    append(forwarding, 0, 3)
    forwarding.ingest()
    append(forwarding, 3, 5)
    for log in forwarding.buffer.logs.values():
        log.expire(log.bounds()[1])
    append(forwarding, 5, 7)
    forwarding.declare_reader("late", source={"table": "gate"})
    assert forwarding.ingest("late").inserted == 2
    assert forwarding.ids("late") == [5, 6]
    error = forwarding.ingest("events").error
    assert error is not None, "entries that it never saw went"
    assert error.kind == "NoLongerExists"
    forwarding.declare_reader(source={"table": "gate", "on_expired": "earliest"})
    report = forwarding.ingest("events")
    assert (report.inserted, forwarding.ids("events")) == (2, [0, 1, 2, 5, 6])


GATE = "version: 1\ncollections:\n  gate: {kind: append-only, schema: 'id bigint, name string'%s}\n"


def registered(plan: ApplyPlan) -> str:
    """What the plan says of the one declaration that it registers."""
    (step,) = [step for step in plan.steps if step.action == "register"]
    return str(step)


@pytest.mark.parametrize(
    "more", ["", ", writes_to: '{other}'", ", writes_to: '{other}', source: {{buffer: '{other}'}}"]
)
def test_apply_refuses_to_leave_batches_in_a_buffer_that_their_collection_reads(forwarding: Home, more: str) -> None:
    address, other = forwarding.buffer_folder.as_uri(), (forwarding.folder / "other").as_uri()
    open_reader(parse_connection(other), create=True).close()
    reading = GATE % f", writes_to: '{address}', source: {{buffer: '{address}', table: gate}}"
    leaving = GATE % more.format(other=other)
    forwarding.declare(reading)
    append(forwarding, 0, 3)
    append(forwarding, 3, 4)
    with pytest.raises(
        IncompatibleChange, match=r"2 appended batches wait .* `tidemark buffer ingest gate`"
    ) as refused:
        forwarding.declare(leaving)
    assert refused.value.exit_code is ExitCode.NOT_POSSIBLE
    assert forwarding.registry.get("gate").writes_to == address
    forwarding.ingest("gate")
    assert "writes_to" in registered(forwarding.declare(leaving))
    assert forwarding.ids("gate") == [0, 1, 2, 3]


def test_apply_refuses_to_leave_batches_that_another_collection_appended(forwarding: Home) -> None:
    append(forwarding, 0, 3)
    text = "version: 1\ncollections:\n  events: {kind: append-only, schema: 'id bigint, name string'%s}\n"
    with pytest.raises(IncompatibleChange, match=r"'events': 1 appended batch waits"):
        forwarding.declare(text % "")
    with pytest.raises(IncompatibleChange, match=r"'events': 1 appended batch waits"):
        forwarding.declare(text % f", source: {{buffer: '{forwarding.buffer_folder.as_uri()}', table: other}}")
    forwarding.declare(text % f", source: {{buffer: '{forwarding.buffer_folder.as_uri()}?limit_bytes=9000'}}")
    assert forwarding.ingest().inserted == 3


def test_apply_says_what_becomes_of_batches_that_others_read(forwarding: Home) -> None:
    append(forwarding, 0, 3)
    assert "1 appended batch waits in the buffer" in (said := registered(forwarding.declare(GATE % "")))
    assert said.endswith("for 'events': `tidemark buffer ingest events`")
    assert forwarding.ingest().inserted == 3


def test_apply_says_nothing_of_a_buffer_in_which_nothing_waits(forwarding: Home) -> None:
    append(forwarding, 0, 3)
    forwarding.ingest()
    assert registered(forwarding.declare(GATE % "")) == "change writes_to"


def test_apply_says_that_nobody_here_reads_what_was_appended(forwarding: Home) -> None:
    address = forwarding.buffer_folder.as_uri()
    forwarding.declare_writer("alone")
    append(forwarding, 0, 3, "alone")
    plan = forwarding.declare(
        "version: 1\ncollections:\n  alone: {kind: append-only, schema: 'id bigint, name string'}\n"
    )
    assert registered(plan).endswith(f"stays in the buffer '{address}', which no collection here reads")


@pytest.mark.parametrize("how", ["cut", "gone", "damaged"])
def test_apply_refuses_to_leave_a_buffer_whose_batches_cannot_be_counted(forwarding: Home, how: str) -> None:
    append(forwarding, 0, 3)
    forwarding.ingest()
    append(forwarding, 3, 6)
    lose_names(forwarding, how)
    with pytest.raises(IncompatibleChange, match=r"'events': what waits .* cannot be counted: .* remove the buffer"):
        forwarding.declare(
            "version: 1\ncollections:\n  events: {kind: append-only, schema: 'id bigint, name string'}\n"
        )
    assert forwarding.registry.get("events").source is not None


def test_buffer_that_does_not_answer_keeps_nobody_from_writing_elsewhere(
    forwarding: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = forwarding.buffer_folder.as_uri()
    reading = f"{GATE % f', writes_to: {address!r}'}  other: {{kind: append-only, schema: 'id bigint, name string', "
    reading += f"source: {{buffer: '{address}', table: gate}}}}\n"
    forwarding.declare(reading)
    monkeypatch.setattr("tidemark.ingest.progress.open_reader", fail_to_open)
    applied = forwarding.declare(reading.replace(f", writes_to: {address!r}", ""))
    assert "cannot be counted: nobody answers" in registered(applied)
    assert forwarding.registry.get("gate").writes_to is None


def fail_to_open(_connection: object) -> NoReturn:
    raise BufferUnreachable("nobody answers")


def test_buffer_that_is_gone_keeps_no_collection(forwarding: Home) -> None:
    append(forwarding, 0, 3)
    shutil.rmtree(forwarding.buffer_folder)
    forwarding.declare("version: 1\ncollections:\n  events: {kind: append-only, schema: 'id bigint, name string'}\n")
    assert forwarding.registry.get("events").source is None
