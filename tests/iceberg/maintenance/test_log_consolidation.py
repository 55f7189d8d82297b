"""Consolidating a log keeps what it says, at every time that is still to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.stored import read_log
from tidemark.errors import AsOfBeforeSince, FencedByEpoch
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LOG_SCHEMA, LogUpdate, append_to_log, read_all, read_changes
from tidemark.iceberg.maintenance.log_consolidation import consolidate_log
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings


@pytest.fixture
def writer(home: Settings) -> Writer:
    """A log with 5 commits at the times 0 to 4: each replaces the one before."""
    shard = Shards.connect(home).create("journal", schema=LOG_SCHEMA, layout=ShardKind.LOG, namespace=SYSTEM)
    writer = Writer.raise_token(shard, 1)
    for time in range(5):
        retract = [LogUpdate("k", "a", str(time - 1), -1)] if time else []
        append_to_log(writer, [*retract, LogUpdate("k", "a", str(time), 1)], lower=time, time=time)
    return writer


def test_only_what_is_there_is_left_and_the_rest_cannot_be_told_any_more(writer: Writer) -> None:
    before = writer.shard.load()
    assert consolidate_log(writer, now_ms=0)
    head = writer.shard.load()
    assert read_all(head) == [("k", "a", "4", 4, 1)]
    assert read_log(head) == read_log(before)
    assert (head.state.upper, head.state.since, head.state.token) == (5, 4, before.state.token)
    with pytest.raises(AsOfBeforeSince):
        read_log(head, as_of=3)
    assert not consolidate_log(writer, now_ms=0), "one file is as good as it gets"


def test_a_hold_keeps_its_history(writer: Writer) -> None:
    hold(writer.shard, "reader", since=2, expires_at_ms=1_000)
    before = {time: read_log(writer.shard.load(), as_of=time) for time in range(2, 5)}
    assert consolidate_log(writer, now_ms=0)
    assert {time: read_log(writer.shard.load(), as_of=time) for time in range(2, 5)} == before


def test_who_was_fenced_does_not_rewrite(writer: Writer) -> None:
    Writer.raise_token(writer.shard, 1)
    with pytest.raises(FencedByEpoch):
        consolidate_log(writer, now_ms=0)


def test_reading_on_sees_only_what_is_new_and_looks_at_no_manifest_twice(writer: Writer) -> None:
    known: set[str] = set()
    updates = read_changes(writer.shard.load(), from_=3, known=known)
    assert [(update.value, update.time, update.diff) for update in updates] == [
        ("2", 3, -1), ("3", 3, 1), ("3", 4, -1), ("4", 4, 1),
    ]  # fmt: skip
    seen = set(known)
    assert read_changes(writer.shard.load(), from_=5, known=known) == []
    append_to_log(writer, [LogUpdate("k", "b", "new", 1)], lower=5, time=9)
    assert [update.value for update in read_changes(writer.shard.load(), from_=5, known=known)] == ["new"]
    assert len(known - seen) == 1
