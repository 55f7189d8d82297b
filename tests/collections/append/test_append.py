"""One batch, once: what an append answers, and what a reader then sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.events import append_numbers, create_events, numbers, switch, visible
from tests.support.rows import SCHEMA
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.batches import BatchName, list_batches, parse_range
from tidemark.errors import FencedByGeneration, RangeOverlap, ReadOnly, Sealed, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


@pytest.fixture
def events(home: Settings) -> Shard:
    return create_events(home)


def test_batch_is_visible_with_its_producer_and_range(events: Shard, home: Settings) -> None:
    done = append_numbers(events, home, 0, 2)
    head = events.load()
    assert (done.outcome, done.rows, done.upper) == (Outcome.APPENDED, 2, head.state.upper)
    rows = head.table.scan().to_arrow().to_pylist()
    assert {(row["_producer"], row["_batch"]) for row in rows} == {("p", 0)}
    assert visible(events) == Counter(numbers(0, 2))
    assert head.state.ledgers == {"p": Ledger((Range(0, 2),))}


def test_same_range_again_is_skipped_and_leaves_no_trace(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 0, 4)
    before = events.load()
    for start, end in ((0, 4), (1, 3)):
        assert append_numbers(events, home, start, end).outcome is Outcome.SKIPPED
    assert events.load().table.metadata_location == before.table.metadata_location


def test_ranges_may_come_in_any_order_and_holes_are_filled(events: Shard, home: Settings) -> None:
    for start, end in ((6, 8), (0, 2), (2, 6)):
        append_numbers(events, home, start, end)
    assert visible(events) == Counter(numbers(0, 8))
    assert events.load().state.ledgers == {"p": Ledger((Range(0, 8),))}


def test_producers_have_ledgers_of_their_own(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 0, 2)
    append_numbers(events, home, 0, 2, producer="q")
    assert visible(events) == Counter([*numbers(0, 2), *numbers(0, 2, "q")])


@pytest.mark.parametrize("mode", Mode)
def test_partial_overlap_is_refused_naming_both_ranges(events: Shard, home: Settings, mode: Mode) -> None:
    switch(home, mode)
    append_numbers(events, home, 10, 20)
    with pytest.raises(RangeOverlap, match=r"range \[5, 15\) of producer 'p' overlaps \[10, 20\)") as caught:
        append_numbers(events, home, 5, 15)
    assert caught.value.exit_code == ExitCode.REFUSED
    assert visible(events) == Counter(numbers(10, 20) if mode is Mode.READ_WRITE else ())


@pytest.mark.parametrize("text", ["5:5", "6:5"])
def test_empty_or_reversed_range_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="empty or reversed"):
        BatchName("p", parse_range(text))


@pytest.mark.parametrize("text", ["", "5", "a:b", "1:2:3", " 1:2", "1:99999999999999999999"])
def test_text_that_is_no_range_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="is no range"):
        parse_range(text)


@pytest.mark.parametrize("producer", ["", "a/b", "a b", "`", "-p", "é"])
def test_producer_that_cannot_name_a_branch_is_a_usage_error(producer: str) -> None:
    with pytest.raises(UsageError, match="cannot name a producer"):
        BatchName(producer, Range(0, 1))


@pytest.mark.parametrize("producer", ["p.forwarded", "forwarded"])
def test_producer_with_the_name_of_forwarded_batches_is_refused(events: Shard, home: Settings, producer: str) -> None:
    with pytest.raises(UsageError, match="marks what was forwarded"):
        append_numbers(events, home, 0, 2, producer=producer)
    assert events.load().state.ledgers == {}


def test_ranges_before_the_epoch_are_ranges_too(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    assert BatchName("p", parse_range("-5:-2")).range == Range(-5, -2)
    assert append_numbers(events, home, -5, -2).outcome is Outcome.STAGED
    [queued] = list_batches(Shards.connect(home), [])
    assert queued.name.range == Range(-5, -2)


def test_differential_collection_is_not_appended_to(home: Settings) -> None:
    planes = Shards.connect(home).create("planes", schema=SCHEMA)
    with pytest.raises(UsageError, match="'planes' is a differential collection"):
        append_numbers(planes, home, 0, 1)


def test_sealed_collection_is_not_appended_to(events: Shard, home: Settings) -> None:
    Writer.join(events, 1).seal(now_ms=0)
    with pytest.raises(Sealed):
        append_numbers(events, home, 0, 1)


# -- read-only -----------------------------------------------------------------------------------------------------


def test_read_only_deployment_stages_and_says_so(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    before = events.load()
    done = append_numbers(events, home, 0, 3)
    head = events.load()
    assert (done.outcome, done.rows) == (Outcome.STAGED, 3)
    assert (head.main, head.state) == (before.main, before.state)
    assert visible(events) == Counter()
    [queued] = list_batches(Shards.connect(home), ["events"])
    shown = queued.to_json()
    assert shown.pop("bytes") > 0
    assert shown.pop("staged_at") > 0
    assert shown == {"collection": "events", "producer": "p", "range": [0, 3], "generation": 1, "rows": 3}


def test_batch_that_is_staged_is_not_staged_again(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    append_numbers(events, home, 0, 3)
    before = events.load()
    again = append_numbers(events, home, 0, 3)
    assert (again.outcome, again.rows) == (Outcome.STAGED, 3)
    assert append_numbers(events, home, 1, 2).outcome is Outcome.STAGED
    assert events.load().table.metadata_location == before.table.metadata_location


def test_published_batch_is_skipped_in_read_only_mode_too(events: Shard, home: Settings) -> None:
    append_numbers(events, home, 0, 3)
    switch(home, Mode.READ_ONLY)
    assert append_numbers(events, home, 0, 3).outcome is Outcome.SKIPPED
    assert list_batches(Shards.connect(home), []) == []


def test_rejecting_collection_says_read_only_before_it_looks_at_the_rows(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    with pytest.raises(ReadOnly, match="rejects batches") as caught:
        append_numbers(events, home, 0, 3, stage=False)
    assert caught.value.exit_code == ExitCode.FENCED
    assert list_batches(Shards.connect(home), []) == []


def test_damaged_branch_is_staged_again(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    append_numbers(events, home, 0, 3)
    table = events.load().table
    [branch] = events.load().staged_branches
    table.append(table.scan(snapshot_id=events.load().staged_branches[branch]).to_arrow(), branch=branch)
    assert append_numbers(events, home, 0, 3).outcome is Outcome.STAGED
    [queued] = list_batches(Shards.connect(home), [])
    assert queued.rows == 3


def test_staged_batch_appended_again_in_read_write_mode_is_published_once(events: Shard, home: Settings) -> None:
    switch(home, Mode.READ_ONLY)
    append_numbers(events, home, 0, 3)
    switch(home, Mode.READ_WRITE)
    assert append_numbers(events, home, 0, 3).outcome is Outcome.APPENDED
    assert append_numbers(events, home, 0, 3).outcome is Outcome.SKIPPED
    assert visible(events) == Counter(numbers(0, 3))
    assert events.load().staged_branches == {}


def test_deployment_that_a_newer_one_replaced_appends_nothing(events: Shard, home: Settings) -> None:
    switch(replace(home, generation=2), Mode.READ_WRITE)
    with pytest.raises(FencedByGeneration):
        append_numbers(events, home, 0, 3)
    assert visible(events) == Counter()


def test_newer_deployment_stages_beside_the_leader_until_it_leads(events: Shard, home: Settings) -> None:
    newer = replace(home, generation=2)
    switch(home, Mode.READ_WRITE)
    assert append_numbers(events, newer, 0, 3).outcome is Outcome.STAGED
    assert append_numbers(events, home, 0, 3).outcome is Outcome.APPENDED, "the leader goes on meanwhile"
    switch(newer, Mode.READ_WRITE)
    assert append_numbers(events, newer, 0, 3).outcome is Outcome.SKIPPED
    assert visible(events) == Counter(numbers(0, 3))
