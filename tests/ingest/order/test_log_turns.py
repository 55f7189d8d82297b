"""Which log was read after which, and what the rows of each bear."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.ingest.event_rows import FIVE, MINUTE_MS, RULES, at
from tests.ingest.persist.test_persist import persist
from tests.ingest.replay.test_replay import delete, replayed
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.errors import InputsGone
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.order.entry_numbers import NUMBERS, as_entries, as_entry, numbers_of
from tidemark.ingest.order.log_turns import find_turn, read_turns, remember_turn
from tidemark.ingest.parts import steps
from tidemark.ingest.quarantine import retry
from tidemark.interval import time_text

if TYPE_CHECKING:
    from tests.support.homes import Home

ONE, TWO, THREE = (BufferLog("weather", f"0000000{digit}") for digit in "123")


def test_a_number_of_a_later_turn_is_greater_than_all_before() -> None:
    assert as_entry(17, 0) == 17
    assert as_entry(NUMBERS, 0) < as_entry(0, 1) < as_entry(NUMBERS, 1) < as_entry(0, 2)
    numbers = pa.chunked_array([[0, 17, NUMBERS, None]], pa.int64())
    for turn in (0, 1, 5):
        entries = as_entries(numbers, turn)
        assert entries.to_pylist() == [as_entry(number, turn) for number in (0, 17, NUMBERS)] + [None]
        assert numbers_of(entries) == numbers


def test_each_log_that_is_read_after_another_has_the_next_turn() -> None:
    known = {"hand", ONE.producer(0), ONE.producer(1), "weather.batches.0a1b2c3d.0"}
    properties: dict[str, str] = {}
    assert [find_turn(log, properties, []) for log in (ONE, TWO)] == [0, 0], "nothing was read before"
    assert find_turn(ONE, properties, known) == 0
    for log, turn in ((TWO, 1), (THREE, 2), (ONE, 3)):
        assert find_turn(log, properties, known) == turn
        properties |= remember_turn(log, turn, properties)
        known.add(log.producer(0))
        assert find_turn(log, properties, known) == turn, "as long as no other log is read"
        assert remember_turn(log, turn, properties) == {}
    assert read_turns(properties) == {TWO.id: 1, THREE.id: 2, ONE.id: 3}
    assert find_turn(BufferLog("rain", "00000001"), {}, known) == 1, "another topic is another log"


def test_two_logs_have_no_turn_together() -> None:
    properties = remember_turn(TWO, 1, {})
    with pytest.raises(InputsGone, match="another log"):
        remember_turn(THREE, 1, properties)
    assert remember_turn(TWO, 1, properties) == {}, "another run of the same log was faster"
    assert remember_turn(ONE, 0, properties) == {}, "a run of the log before ends after all"


def send(home: Home, id_: int, *, hour: int = 0) -> None:
    home.send(0, json.dumps({"id": id_, "at": time_text(FIVE + hour * 60 * MINUTE_MS)}).encode())


def entries(home: Home) -> dict[int, int]:
    return {row["id"]: row["_entry"] for row in read_arrow(home.shard(), with_time=True).to_pylist()}


@pytest.fixture
def second(ingesting: Home) -> Home:
    """A collection that has a row of a log that is gone, and nothing yet of the present one."""
    at(ingesting, 1)
    ingesting.declare_reader(
        schema="id int, at timestamp",
        event_time="at",
        partition="hour",
        key=["id"],
        lifecycle=RULES,
        source={"on_recreated": "earliest"},
    )
    send(ingesting, 10)
    ingesting.ingest()
    ingesting.make_buffer_anew()
    return ingesting


@pytest.mark.slow
def test_staged_rows_bear_the_turn_that_their_log_had(second: Home) -> None:
    second.switch(Mode.READ_ONLY)
    send(second, 20)
    second.ingest()
    second.make_buffer_anew()
    second.switch(Mode.READ_WRITE)
    send(second, 30)
    second.ingest()
    flush_all(second.shards, second.deployment, [], clock=second.clock)
    assert entries(second) == {10: 0, 20: as_entry(0, 1), 30: as_entry(0, 2)}


@pytest.mark.slow
def test_a_run_that_finds_another_log_begun_takes_the_next_turn(second: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deployments read two logs under one name, as while a topic moves."""
    send(second, 20)
    other = BufferLog("file", "00000002")

    def begin_another(_point: str) -> None:
        if other.id in read_turns(second.shard().load().table.properties):
            return
        with second.shards.iceberg.load_table(("collections", "events")).transaction() as transaction:
            transaction.set_properties(remember_turn(other, 1, {}))

    monkeypatch.setattr(steps, "fail_point", begin_another)
    assert second.ingest().inserted == 1
    assert entries(second) == {10: 0, 20: as_entry(0, 2)}


@pytest.mark.slow
def test_retried_and_replayed_rows_bear_the_turn_of_their_log(second: Home) -> None:
    send(second, 20)
    send(second, 30, hour=4)  # too far ahead
    send(second, 40)
    assert second.ingest().details["quarantined"] == 1
    at(second, 300)
    retry(second.shards, second.deployment, second.registry.get("events"), clock=second.clock)
    expected = {10: 0, 20: as_entry(0, 1), 30: as_entry(1, 1), 40: as_entry(2, 1)}
    assert entries(second) == expected
    persist(second, now=True)
    delete(second, "id = 40")
    assert entries(second).keys() == expected.keys() - {40}
    report = replayed(second, from_=("0:0",))
    assert (report.inserted, report.retracted) == (2, 1)
    assert entries(second) == expected
