"""The decision tables of the collection manager: what each call answers, whatever state it meets."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.support.events import CLOCK, create_events, numbers, rows_table, switch, visible
from tests.support.rows import SCHEMA
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.append.row_writers import Appenders
from tidemark.collections.declarations.append_only import Expectations
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import (
    Dropped,
    ExpectationFailed,
    FencedByGeneration,
    ReadOnly,
    SchemaMismatch,
    Sealed,
    UnknownCollection,
    Unregistered,
    UsageError,
)
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.slow  # stores that are really written, again and again

ROWS = rows_table(numbers(0, 2))
NONE = rows_table([])


@pytest.fixture
def events(home: Settings) -> Shard:
    switch(home, Mode.READ_WRITE)
    return create_events(home)


@pytest.fixture
def appenders(events: Shard, home: Settings) -> Iterator[Appenders]:
    made = Appenders(Shards.connect(home), deployment_of(home), CLOCK, producer="web")
    yield made
    made.close()


def blind_write(appenders: Appenders, rows: pa.Table) -> object:
    appenders.blind_write("events", rows)
    appenders.unregister("nobody")
    return None


def monotonic_append(appenders: Appenders, rows: pa.Table) -> object:
    return appenders.monotonic_appender("events").append(rows).outcome


STAGE, REJECT = OnReadOnly.STAGE, OnReadOnly.REJECT


@pytest.mark.parametrize(
    ("operation", "registered", "mode", "rows", "expected"),
    [
        # operation, registered with, mode, rows, answer
        (blind_write, None, Mode.READ_WRITE, ROWS, UnknownCollection),
        (blind_write, None, Mode.READ_ONLY, ROWS, UnknownCollection),
        (blind_write, STAGE, Mode.READ_WRITE, ROWS, None),
        (blind_write, STAGE, Mode.READ_WRITE, NONE, None),
        (blind_write, STAGE, Mode.READ_ONLY, ROWS, ReadOnly),
        (blind_write, STAGE, Mode.READ_ONLY, NONE, ReadOnly),  # before it looks at the rows
        (blind_write, REJECT, Mode.READ_ONLY, ROWS, ReadOnly),
        (monotonic_append, None, Mode.READ_WRITE, ROWS, UnknownCollection),
        (monotonic_append, STAGE, Mode.READ_WRITE, ROWS, Outcome.APPENDED),
        (monotonic_append, STAGE, Mode.READ_WRITE, NONE, Outcome.APPENDED),
        (monotonic_append, STAGE, Mode.READ_ONLY, ROWS, Outcome.STAGED),
        (monotonic_append, STAGE, Mode.READ_ONLY, NONE, Outcome.APPENDED),
        (monotonic_append, REJECT, Mode.READ_ONLY, ROWS, ReadOnly),
        (monotonic_append, REJECT, Mode.READ_WRITE, ROWS, Outcome.APPENDED),
    ],
)
def test_decisions(
    appenders: Appenders,
    home: Settings,
    events: Shard,
    *,
    operation: Callable[[Appenders, pa.Table], object],
    registered: OnReadOnly | None,
    mode: Mode,
    rows: pa.Table,
    expected: object,
) -> None:
    if registered is not None:
        appenders.register("events", on_read_only=registered)
    switch(home, mode)
    if isinstance(expected, type):
        with pytest.raises(expected):
            operation(appenders, rows)
    else:
        assert operation(appenders, rows) is expected
    staged = [each.rows for each in list_batches(Shards.connect(home), [])]
    assert staged == ([2] if expected is Outcome.STAGED else [])
    if expected is Outcome.APPENDED:
        assert visible(events) == (Counter(numbers(0, 2)) if rows is ROWS else Counter())


def test_appender_that_was_got_in_read_only_mode_follows_the_mode(
    appenders: Appenders, home: Settings, events: Shard
) -> None:
    switch(home, Mode.READ_ONLY)
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    assert appender.append(ROWS).outcome is Outcome.STAGED
    switch(home, Mode.READ_WRITE)
    assert appender.append(ROWS).outcome is Outcome.APPENDED
    flush_all(Shards.connect(home), deployment_of(home), [], clock=CLOCK)
    assert visible(events) == Counter(numbers(0, 2) * 2)


def test_blind_writes_arrive_in_the_end(appenders: Appenders, events: Shard) -> None:
    appenders.register("events")
    appenders.blind_write("events", ROWS)
    appenders.monotonic_appender("events").append(ROWS)  # behind it in the queue
    assert visible(events) == Counter(numbers(0, 2) * 2)


def test_registering_twice_changes_nothing(appenders: Appenders, home: Settings) -> None:
    appenders.register("events", on_read_only=REJECT)
    appenders.register("events", on_read_only=STAGE)
    switch(home, Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        appenders.monotonic_appender("events").append(ROWS)


def test_a_collection_that_was_made_anew_is_registered_again(appenders: Appenders, home: Settings) -> None:
    appenders.register("events")
    assert monotonic_append(appenders, ROWS) is Outcome.APPENDED
    shards = Shards.connect(home)
    shards.iceberg.drop_table(("collections", "events"))
    anew = create_events(home)
    with pytest.raises(Dropped):
        monotonic_append(appenders, ROWS)
    appenders.register("events")
    assert monotonic_append(appenders, ROWS) is Outcome.APPENDED
    assert visible(anew) == Counter(numbers(0, 2))


def test_only_append_only_collections_that_exist_are_registered(appenders: Appenders, home: Settings) -> None:
    Shards.connect(home).create("planes", schema=SCHEMA)
    with pytest.raises(UsageError, match="differential"):
        appenders.register("planes")
    with pytest.raises(UnknownCollection):
        appenders.register("evens")


def test_unregistering_what_nobody_registered_does_nothing(appenders: Appenders) -> None:
    appenders.unregister("events")


def test_queued_callers_get_the_name_of_the_collection_that_was_unregistered(
    appenders: Appenders, events: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import Event

    from tidemark.collections.append import row_writers as module

    started, go_on = Event(), Event()
    append_blindly = module.append_blindly

    def slow(*args: object, **more: object) -> object:
        started.set()
        assert go_on.wait(30)
        return append_blindly(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "append_blindly", slow)
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    with ThreadPoolExecutor(5) as pool:
        under_way = pool.submit(appender.append, ROWS)
        assert started.wait(30)
        queued = [pool.submit(appender.append, ROWS) for _ in range(3)]
        while appender.task._queue.qsize() < 3:
            pass
        ending = pool.submit(appenders.unregister, "events")
        while not appender.task._ended:
            pass
        go_on.set()
        ending.result(30)
        assert under_way.result(30).outcome is Outcome.APPENDED
        for each in queued:
            with pytest.raises(Unregistered) as caught:
                each.result(30)
            assert caught.value.collection == "events"
    with pytest.raises(Unregistered):
        appender.append(ROWS)
    assert visible(events) == Counter(numbers(0, 2)), "what is refused is not written"
    appenders.register("events")
    assert appenders.monotonic_appender("events").append(ROWS).outcome is Outcome.APPENDED


def test_caller_who_comes_between_the_last_look_and_the_end_is_answered_too(
    appenders: Appenders, events: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import Event, Thread

    from tidemark.collections.append.row_writers import _Task

    drained, go_on = Event(), Event()
    drain = _Task._drain

    def slow(task: _Task) -> object:
        writes = drain(task)
        drained.set()
        assert go_on.wait(30)
        return writes

    monkeypatch.setattr(_Task, "_drain", slow)
    appenders.register("events")
    task = appenders.monotonic_appender("events").task
    first = task.put(ROWS)
    assert drained.wait(30)
    second = task.put(ROWS)
    ending = Thread(target=appenders.unregister, args=("events",))
    ending.start()
    while not task._ended:
        pass
    go_on.set()
    ending.join(30)
    assert not ending.is_alive()
    for answer in (first, second):
        with pytest.raises(Unregistered) as caught:
            answer.result(0)
        assert caught.value.collection == "events"
    assert visible(events) == Counter()


def test_callers_at_once_share_commits_and_lose_nothing(appenders: Appenders, events: Shard) -> None:
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda n: appender.append(rows_table(numbers(n, n + 1))), range(40)))
    assert {each.outcome for each in done} == {Outcome.APPENDED}
    assert visible(events) == Counter(numbers(0, 40))
    assert len(events.load().table.metadata.snapshots) < 30


@pytest.mark.parametrize("mode", Mode)
def test_processes_may_share_a_producer(events: Shard, home: Settings, mode: Mode) -> None:
    switch(home, mode)
    processes = [Appenders(Shards.connect(home), deployment_of(home), CLOCK, producer="web") for _ in range(2)]
    for each in processes:
        each.register("events")
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(
                lambda n: processes[n % 2].monotonic_appender("events").append(rows_table(numbers(n, n + 1))), range(8)
            )
        )
    for each in processes:
        each.close()
    assert {each.outcome for each in done} == {Outcome.APPENDED if mode is Mode.READ_WRITE else Outcome.STAGED}
    switch(home, Mode.READ_WRITE)
    flush_all(Shards.connect(home), deployment_of(home), [], clock=CLOCK)
    assert visible(events) == Counter(numbers(0, 8))
    ledger = events.load().state.ledgers["web.g1"]
    assert [tuple(each) for each in ledger.ranges] == [(0, 8)]


def test_rows_that_do_not_fit_are_their_callers_trouble_alone(appenders: Appenders, events: Shard) -> None:
    appenders.register("events")
    appender = appenders.monotonic_appender("events")
    with pytest.raises(SchemaMismatch):
        appender.append(pa.table({"id": [1]}))
    assert appender.append(ROWS).outcome is Outcome.APPENDED


def test_sealed_collection_answers_and_the_task_goes_on(appenders: Appenders, events: Shard) -> None:
    appenders.register("events")
    Writer.join(events, 1).seal(now_ms=0)
    for _ in range(2):
        with pytest.raises(Sealed):
            appenders.monotonic_appender("events").append(ROWS)


def test_replaced_deployment_appends_nothing(appenders: Appenders, home: Settings) -> None:
    appenders.register("events")
    switch(replace(home, generation=2), Mode.READ_WRITE)
    with pytest.raises(FencedByGeneration):
        appenders.monotonic_appender("events").append(ROWS)
    with pytest.raises(FencedByGeneration):
        appenders.blind_write("events", ROWS)


def test_rows_of_a_system_collection_are_never_staged(appenders: Appenders, home: Settings) -> None:
    audit = Shards.connect(home).create("audit", schema=SCHEMA, layout=ShardKind.APPEND_ONLY, namespace=SYSTEM)
    with pytest.raises(UsageError, match="neither listed nor flushed") as caught:
        appenders.register("audit", namespace=SYSTEM)
    assert "reject" in caught.value.hint
    appenders.register("audit", namespace=SYSTEM, on_read_only=REJECT)
    switch(home, Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        appenders.monotonic_appender("audit").append(ROWS)
    assert audit.load().staged_branches == {}
    switch(home, Mode.READ_WRITE)
    assert appenders.monotonic_appender("audit").append(ROWS).outcome is Outcome.APPENDED


def test_rows_that_fail_an_expectation_are_refused_to_their_caller_alone(appenders: Appenders, events: Shard) -> None:
    expect = Expectations.model_validate({"range": {"id": {"max": 1}}, "unique": ["id"]})
    appenders.register("events", expect=expect)
    appender = appenders.monotonic_appender("events")
    with ThreadPoolExecutor(3) as pool:
        good, large, twice = (
            pool.submit(appender.append, rows_table(rows))
            for rows in (numbers(0, 2), numbers(1, 3), [*numbers(0, 1), *numbers(0, 1)])
        )
    assert good.result().outcome is Outcome.APPENDED
    with pytest.raises(ExpectationFailed, match=r"`range: id` .* fails for 1 of its rows"):
        large.result()
    with pytest.raises(ExpectationFailed, match="`unique: id` fails for 1 of its rows"):
        twice.result()
    assert visible(events) == Counter(numbers(0, 2))
