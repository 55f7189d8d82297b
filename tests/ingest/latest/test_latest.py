"""The latest row of each key comes out of a buffer, with its corrections and its numbers in one commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.report import Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def send(home: Home, sequencer: int, *rows: dict[str, Any]) -> None:
    home.send(sequencer, *(json.dumps(row).encode() for row in rows))


def test_the_last_change_of_a_key_wins(ingesting: Home) -> None:
    ingesting.declare_latest(delete_when={"op": "d"})
    send(ingesting, 0, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"})
    send(ingesting, 1, {"id": 3, "name": "d"}, {"id": 4, "op": "d"})
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.retracted, report.rows_source) == (Outcome.CORRECTED, 3, 0, 5)
    assert ingesting.tuples("events") == [(1, "c"), (2, "b"), (3, "d")]
    assert ingesting.ledgers() == {"0": "0:3", "1": "0:2"}
    send(ingesting, 0, {"id": 1, "name": "e"}, {"id": 2, "op": "d"}, {"id": 5, "name": None})
    send(ingesting, 1, {"id": 3, "name": "d"})
    report = ingesting.ingest()
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 2, 2)
    assert ingesting.tuples("events") == [(1, "e"), (3, "d"), (5, None)]
    assert ingesting.ingest().outcome is Outcome.UNCHANGED
    assert check_invariant(ingesting.shard()).holds
