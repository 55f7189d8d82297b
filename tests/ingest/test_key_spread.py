"""Rows that lie in another sequencer than their key chooses are reported, and ingested all the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tidemark.ingest.parts import ingesting as module
from tidemark.report import Outcome
from tidemark.write_buffer.address import parse_connection
from tidemark.write_buffer.errors import BufferUnreachable
from tidemark.write_buffer.formats.entry import Row
from tidemark.write_buffer.keys import keep_keys, sequencer_of

if TYPE_CHECKING:
    from tests.support.homes import Home

KEYS = {"t": ("id",)}


def keep(home: Home) -> None:
    keep_keys(parse_connection(home.buffer_folder.as_uri()), KEYS, clock=home.clock)


def test_keys_that_spread_over_sequencers_are_reported(ingesting: Home) -> None:
    ingesting.declare_reader(source={"table": "t"})
    ingesting.send(0, b'{"_table":"t","id":1}')
    assert "key_spread" not in ingesting.ingest().details, "nobody named a key yet"
    keep(ingesting)
    for sequencer in (0, 1):
        own = [id_ for id_ in range(20) if sequencer_of(Row("t", {"id": id_}), KEYS, (0, 1)) == sequencer]
        lines = [json.dumps({"_table": "t", "id": id_}) for id_ in own]
        ingesting.send(sequencer, "\n".join([*lines, '{"_table":"u","id":1}']).encode())
    spread = ingesting.ingest().details["key_spread"]
    assert spread == {"checked": 20, "rows": 0, "example": ""}
    for sequencer in (0, 1):
        ingesting.send(sequencer, b'{"_table":"t","id":1000}')
    spread = ingesting.ingest().details["key_spread"]
    assert (spread["checked"], spread["rows"]) == (2, 1)
    assert "a row of 't' in sequencer" in spread["example"]
    assert ingesting.ids()[-2:] == [1000, 1000], "it is said, and nothing is lost"


def test_sample_is_looked_at_unless_every_key_is_wanted(ingesting: Home) -> None:
    keep(ingesting)
    for start in range(0, 2_000, 100):
        rows = [json.dumps({"_table": "t", "id": id_}) for id_ in range(start, start + 100)]
        ingesting.send(0, "\n".join(rows).encode())
    for name, every_row in (("some", False), ("all", True)):
        ingesting.declare_reader(name, source={"table": "t", "check_keys": every_row})
        checked = ingesting.ingest(name).details["key_spread"]["checked"]
        assert checked == 2_000 if every_row else 0 < checked < 2_000


def test_keys_that_cannot_be_read_stop_only_who_wants_them_checked(
    ingesting: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_connection: object) -> None:
        raise BufferUnreachable("not for this login")

    monkeypatch.setattr(module, "read_keys", refuse)
    ingesting.send(0, b'{"_table":"t","id":1}')
    ingesting.declare_reader("some", source={"table": "t"})
    assert ingesting.ingest("some").outcome is Outcome.APPENDED
    ingesting.declare_reader("all", source={"table": "t", "check_keys": True})
    error = ingesting.ingest("all").error
    assert error is not None
    assert error.kind == "BufferUnreachable"
