"""Rows of a collection that writes to a buffer go into the log, as whole batches, and come by an ingest, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.support.homes import Home
from tidemark.collections.append.append import append_rows
from tidemark.collections.staged.batches import BatchName
from tidemark.errors import RangeOverlap
from tidemark.iceberg.shard.ledger import Range
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.collections.append.forward import Appended
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


def test_appended_rows_go_into_the_log_and_come_once(forwarding: Home) -> None:
    done = append(forwarding, 0, 3)
    assert (done.outcome, done.rows) == (Outcome.FORWARDED, 3)
    assert append(forwarding, 0, 3) == done, "the same range, the same answer"
    assert (forwarding.ids("gate"), forwarding.ids()) == ([], [])
    report = forwarding.ingest()
    assert (report.outcome, report.inserted) == (Outcome.APPENDED, 3)
    assert forwarding.ids() == [0, 1, 2]
    assert append(forwarding, 0, 3) == done
    assert forwarding.ingest().outcome is Outcome.UNCHANGED
    with pytest.raises(RangeOverlap, match=r"\[0, 3\)"):
        append(forwarding, 2, 5)
    assert append(forwarding, 3, 5).rows == 2
    assert forwarding.ingest().inserted == 2
    assert forwarding.ids() == list(range(5))
    assert forwarding.branches() == set()
