"""Which batches of a buffer a collection lacks: of those that share a number the first, and each once."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.collections.staged.batches import BatchName
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.ingest.batches import BatchesSeen, PlannedBatches, plan_batches
from tidemark.ingest.buffer_log import Bounds
from tidemark.write_buffer.batches.names import LoggedBatch
from tidemark.write_buffer.errors import NoLongerExists
from tidemark.write_buffer.ranges import NumberRange

LOG = "t.batches.0a1b2c3d.0"
PRESENT = {0: Bounds(0, 100), 1: Bounds(0, 100)}


def logged(number: int, *range_: int, producer: str = "p", collection: str = "gate", **more: Any) -> LoggedBatch:
    name = BatchName(producer, Range(*range_)) if range_ else None
    places = more.pop("places", (NumberRange(0, number * 10, number * 10 + 4),))
    fields = {"table": "gate", "rows": 4, "log": "x", **more}
    return LoggedBatch(number=number, collection=collection, name=name, places=places, **fields)


def plan(*batches: LoggedBatch, ledgers: dict[str, str] | None = None, **more: Any) -> PlannedBatches:
    seen = BatchesSeen(producer=LOG, watermark=max((each.number for each in batches), default=-1) + 1, batches=batches)
    published = {producer: Ledger.parse(text) for producer, text in (ledgers or {}).items()}
    source = BufferSource(buffer="b", **more.pop("source", {}))
    arguments = {"collection": "events", "title": "b", "quarantined": {}, "begun": {}, **more}
    return plan_batches(
        seen, arguments.pop("present", PRESENT), published, arguments.pop("staged", {}), source=source, **arguments
    )


def names(planned: PlannedBatches) -> list[str]:
    return [str(batch.name) for batch in planned.batches]


def test_of_batches_that_share_a_number_the_first_one_comes() -> None:
    planned = plan(logged(0, 0, 4), logged(1, 0, 4), logged(2, 2, 6), logged(3, 4, 6), logged(4, 0, 4, producer="q"))
    assert names(planned) == ["gate.p 0:4", "gate.p 4:6", "gate.q 0:4"]
    assert planned.refused == ("gate.p 2:6 overlaps [0, 4)",)
    assert list(map(str, planned.looked_at)) == [f"{LOG} 0:5"]


def test_what_the_ledger_has_does_not_come_again() -> None:
    planned = plan(logged(0, 0, 4), logged(3, 4, 8), ledgers={"gate.p": "0:6", LOG: "1:3"})
    assert (names(planned), planned.refused) == ([], ("gate.p 4:8 overlaps [0, 6)",))
    assert list(map(str, planned.looked_at)) == [f"{LOG} 0:1", f"{LOG} 3:4"]


def test_names_are_those_of_the_collection_that_was_appended_to() -> None:
    batches = (logged(0, 0, 4, collection="events"), logged(1, 0, 4), logged(2), logged(3))
    assert names(plan(*batches)) == ["p 0:4", "gate.p 0:4", f"{LOG} 2:3", f"{LOG} 3:4"]
    assert [str(name) for name in plan(*batches).published_names] == [f"{LOG} 0:4", "p 0:4", "gate.p 0:4"]
    long = [
        plan(logged(0, 0, 4, collection="c" * 63, producer="p" * 99 + end)).batches[0].name.producer for end in "ab"
    ]
    assert [len(each) for each in long] == [100, 100]
    assert long[0] != long[1]


def test_batch_of_another_table_is_passed_over() -> None:
    planned = plan(logged(0, 0, 4), logged(1, 4, 8, table="other"), source={"table": "gate"})
    assert (names(planned), list(map(str, planned.looked_at))) == (["gate.p 0:4"], [f"{LOG} 0:2"])


def test_batch_that_is_staged_is_looked_at_again() -> None:
    """It may turn out to be damaged, or be discarded: then it is planned."""
    planned = plan(logged(0, 0, 4), logged(1, 4, 8), staged={"gate.p": [Range(0, 4)]})
    assert names(planned) == ["gate.p 4:8"]
    assert list(map(str, planned.looked_at)) == [f"{LOG} 1:2"]


def test_batch_that_shares_a_part_with_a_staged_one_waits_for_its_end() -> None:
    planned = plan(logged(0, 0, 4), logged(1, 4, 8), staged={"gate.p": [Range(2, 4)]})
    assert names(planned) == ["gate.p 4:8"]
    assert planned.refused == ("gate.p 0:4 overlaps [2, 4), which is staged: it comes once that is discarded",)
    assert list(map(str, planned.looked_at)) == [f"{LOG} 1:2"]
    assert names(plan(logged(0, 0, 4), ledgers={LOG: "1:2", "gate.p": "4:8"})) == ["gate.p 0:4"]


def test_limit_cuts_between_batches() -> None:
    planned = plan(logged(0, 0, 4), logged(1, 4, 8), logged(2, 8, 9), limit=5)
    assert (names(planned), list(map(str, planned.looked_at))) == (["gate.p 0:4"], [f"{LOG} 0:1"])


def test_rows_that_retention_took_are_said() -> None:
    batch = logged(1, 0, 4, places=(NumberRange(0, 10, 14), NumberRange(1, 5, 6)))
    present = {0: Bounds(12, 100), 1: Bounds(6, 100)}
    with pytest.raises(NoLongerExists, match="number 10 of sequencer 0"):
        plan(batch, present=present)
    (planned,) = plan(batch, present=present, source={"on_expired": "earliest"}).batches
    assert (planned.places, planned.lost, planned.entries) == ((NumberRange(0, 12, 14),), 3, 2)


def test_batch_from_before_the_collection_is_passed_over() -> None:
    batch = logged(1, 0, 4, places=(NumberRange(0, 10, 14), NumberRange(1, 5, 6)))
    present, begun = {0: Bounds(12, 100), 1: Bounds(0, 100)}, {0: 12, 1: 0}
    for ledgers in ({}, {LOG: "1:2"}):  # the name of a later batch may have been staged, and published first
        planned = plan(batch, logged(2), present=present, begun=begun, ledgers=ledgers)
        assert (names(planned), planned.looked_at[-1].range.end) == ([f"{LOG} 2:3"], 3)
    with pytest.raises(NoLongerExists):
        plan(logged(1, 0, 4, places=batch.places, collection="events"), present=present, begun=begun)


def test_bad_rows_that_the_quarantine_has_are_not_put_aside_again() -> None:
    (planned,) = plan(logged(0, 0, 4), quarantined={"gate.p": Ledger.parse("0:4")}).batches
    assert planned.has_quarantined
