"""What one run reads: from what the collection has to the watermark, shared by backlog; nothing lost without a word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.buffers import entry
from tests.support.clock import SteppedClock
from tidemark.collections.sources.formats.buffer import BufferSource, OnLost
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.buffer_log import Bounds, BufferLog, look_at
from tidemark.ingest.plan import LogRecreated, PlannedRange, SequencerGone, plan_ingest, share_fairly
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.errors import AfterWatermark, NoLongerExists
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter

LOG = BufferLog("weather", "0a1b2c3d", "the topic")
OTHER = BufferLog("weather", "ffffffff")
FAIL = BufferSource(buffer="weather")
LENIENT = BufferSource(buffer="weather", on_expired=OnLost.EARLIEST, on_recreated=OnLost.EARLIEST)


def plan(
    bounds: dict[int, tuple[int, int]],
    published: dict[int, str] | None = None,
    staged: dict[int, list[tuple[int, int]]] | None = None,
    *,
    starts: dict[int, int] | None = None,
    source: BufferSource = FAIL,
    limit: int | None = None,
) -> list[tuple[int, int, int, int]]:
    """Plan over ``bounds``; return sequencer, start, end and the count of what is lost of each range."""
    planned = plan_ingest(
        LOG,
        {each: Bounds(*found) for each, found in bounds.items()},
        {LOG.producer(each): Ledger.parse(text) for each, text in (published or {}).items()},
        {LOG.producer(each): [Range(*found) for found in ranges] for each, ranges in (staged or {}).items()},
        starts={LOG.producer(each): start for each, start in (starts or {}).items()},
        source=source,
        limit=limit,
    )
    return [(each.sequencer_id, each.start, each.end, each.lost) for each in planned]


def test_what_is_published_or_staged_is_not_read_again() -> None:
    assert plan({0: (0, 10), 1: (0, 5), 2: (0, 4)}, {0: "0:7", 1: "0:5"}, {2: [(0, 2)]}) == [
        (0, 7, 10, 0),
        (2, 2, 4, 0),
    ]


def test_a_collection_that_is_added_later_and_a_new_partition_start_from_the_earliest() -> None:
    assert plan({0: (3, 10)}) == [(0, 3, 10, 0)]
    assert plan({0: (0, 7), 1: (2, 9)}, {0: "0:7"}) == [(1, 2, 9, 0)]


def test_what_was_left_out_in_between_is_read_first() -> None:
    assert plan({0: (0, 20)}, {0: "0:5,10:15"}) == [(0, 5, 10, 0)]
    assert plan({0: (0, 20)}, {0: "0:5"}, {0: [(5, 12)]}) == [(0, 12, 20, 0)]
    assert plan({0: (0, 20)}, {0: "0:5"}, {0: [(3, 12)]}) == [(0, 5, 20, 0)], "a staged range that overlaps is no use"


def test_what_was_left_out_before_the_first_range_is_read_first() -> None:
    assert plan({0: (0, 9)}, {0: "3:9"}) == [(0, 0, 3, 0)]
    assert plan({0: (0, 9)}, {0: "3:6"}, {0: [(6, 9)]}, starts={0: 0}) == [(0, 0, 3, 0)]
    assert plan({0: (2, 9)}, {0: "3:9"}) == [(0, 2, 3, 0)], "the earliest number only grows: 2 was there at the start"
    assert plan({0: (3, 9)}, {0: "3:9"}) == [], "the collection was declared when the log began with 3"
    assert plan({0: (5, 9)}, {0: "3:9"}) == [], "what retention takes after it was ingested is not missing"


def test_what_expired_before_the_first_range_is_lost_if_it_was_there_at_the_start() -> None:
    with pytest.raises(NoLongerExists):
        plan({0: (2, 9)}, {0: "3:9"}, starts={0: 0})
    assert plan({0: (2, 9)}, {0: "3:9"}, starts={0: 0}, source=LENIENT) == [(0, 0, 3, 2)]
    assert plan({0: (5, 9)}, {0: "3:9"}, starts={0: 0}, source=LENIENT) == [(0, 0, 3, 3)]
    assert plan({0: (5, 9)}, starts={0: 0}, source=LENIENT) == [(0, 0, 9, 5)]
    assert plan({0: (5, 9)}, {0: "0:9"}, starts={0: 0}) == []


def test_nothing_waits_in_an_empty_log() -> None:
    assert plan({0: (0, 0), 1: (7, 7)}) == []


def test_expired_numbers_fail_unless_they_are_declared_away() -> None:
    with pytest.raises(NoLongerExists) as caught:
        plan({0: (8, 10)}, {0: "0:5"})
    assert caught.value.lost == 3
    assert plan({0: (8, 10)}, {0: "0:5"}, source=LENIENT) == [(0, 5, 10, 3)]
    assert plan({0: (10, 10)}, {0: "0:5"}, source=LENIENT) == [(0, 5, 10, 5)], "the ledger goes on over what is lost"
    assert plan({0: (12, 20)}, {0: "0:5,10:15"}, source=LENIENT) == [(0, 5, 10, 5)]


def test_logs_that_are_not_the_one_that_was_ingested_are_noticed() -> None:
    with pytest.raises(AfterWatermark):
        plan({0: (0, 4)}, {0: "0:5"})
    with pytest.raises(AfterWatermark):
        plan({0: (0, 4)}, starts={0: 5})
    with pytest.raises(SequencerGone, match="sequencers 1"):
        plan({0: (0, 4)}, {0: "0:4", 1: "0:2"})
    present = {0: Bounds(0, 100)}
    with pytest.raises(LogRecreated):
        plan_ingest(LOG, present, {OTHER.producer(0): Ledger.parse("0:5")}, {}, starts={}, source=FAIL)
    planned = plan_ingest(LOG, present, {OTHER.producer(0): Ledger.parse("0:5")}, {}, starts={}, source=LENIENT)
    assert planned == [PlannedRange(0, 0, 100, 0, 100)], "the numbers of another log say nothing about this one"


def test_producers_of_others_say_nothing() -> None:
    present = {0: Bounds(0, 3)}
    others = {"source": Ledger.parse("0:9"), "weather.0": Ledger.parse("0:9"), "rain.0a1b2c3d.7": Ledger.parse("0:9")}
    assert plan_ingest(LOG, present, others, {}, starts={}, source=FAIL) == [PlannedRange(0, 0, 3, 0, 3)]


def test_a_limit_cuts_ranges_and_leaves_a_lag() -> None:
    present = {0: Bounds(0, 90), 1: Bounds(0, 10)}
    planned = plan_ingest(LOG, present, {}, {}, starts={}, source=FAIL, limit=10)
    assert [(each.start, each.end, each.lag) for each in planned] == [(0, 9, 81), (0, 1, 9)]


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 1_000), max_size=8), st.integers(0, 2_000))
def test_shares_are_fair(backlogs: dict[int, int], limit: int) -> None:
    shares = share_fairly(backlogs, limit)
    total = sum(backlogs.values())
    assert shares.keys() == backlogs.keys()
    assert sum(shares.values()) == min(limit, total)
    assert all(0 <= shares[each] <= backlogs[each] for each in backlogs)
    waiting = [each for each in backlogs if backlogs[each]]
    if limit >= len(waiting):
        assert all(shares[each] for each in waiting), "none starves"
    assert all(
        shares[one] <= shares[other] + 1 for one in waiting for other in waiting if backlogs[one] <= backlogs[other]
    )
    assert share_fairly(backlogs, None) == backlogs


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("kafka://host:9092/weather", "weather"),
        ("kafka://other:9093/weather", "weather"),
        ("kafka://host:9092/_we%20ather", "weather"),
        ("file:///srv/weather", "file"),
    ],
)
def test_a_log_is_named_by_itself_and_not_by_where_it_is(address: str, name: str) -> None:
    log = BufferLog.of(parse_connection(address), identity="one")
    assert log.name == name
    assert log.sequencer_of(log.producer(12)) == 12
    again = BufferLog.of(parse_connection(address), identity="two")
    assert again.sequencer_of(log.producer(12)) is None
    assert again.is_other_log(log.producer(12))
    assert not log.is_other_log(log.producer(12))


def test_a_log_is_looked_at_once() -> None:
    state = MemoryState(2)
    MemoryWriter(state, clock=SteppedClock()).store_entries([entry("a"), entry("b")], 1)
    state.expire(1, 1)
    assert look_at(MemoryReader(state)) == {0: Bounds(0, 0), 1: Bounds(1, 2)}
