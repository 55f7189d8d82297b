"""Renames by which an old name is used again, one that goes along a chain, and a swap: a target follows them all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dying import Crash, dying_at
from tidemark.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home

STEPS = [  # the columns, the key, the renames, and rows
    ("id bigint, name string, note string", "id", "", [{"id": 1, "name": "a", "note": "x"}, {"id": 2, "name": "b"}]),
    (
        "number bigint, title string, name string, id bigint",
        "number",
        "name: title, id: number, note: name",
        [{"number": 2, "title": "B", "name": "y", "id": 7}, {"number": 3, "title": "c"}],
    ),
    (
        "number bigint, title string, name string, id bigint",
        "id",
        "id: number, title: name, name: title, number: id",
        [{"id": 3, "name": "C", "title": "z", "number": 8}],
    ),
]


def carry_renames(home: Home, to: dict[str, Any], read: Callable[[], list[dict[str, Any]]], *, dies: bool) -> None:
    """Make the steps, with a mirror ``to`` a target that ``read`` reads; ``dies``: each apply, before it registers."""
    assert home.buffer.logs
    sinks = f"sinks:\n  copies: {json.dumps({'from': 'events', 'mode': 'mirror', 'to': to})}\n"
    for columns, key, renames, rows in STEPS:
        text = (
            f"version: 1\ncollections:\n  events: {{kind: latest, key: [{key}], schema: '{columns}', "
            f"source: {{buffer: '{home.buffer_folder.as_uri()}'}}, renames: {{{renames}}}}}\n"
        ) + (sinks if not renames else "")
        if dies and renames:
            with pytest.raises(Crash), dying_at("apply.columns-changed"):
                home.declare(text)
            assert home.run_sink().exit_code == ExitCode.TRANSIENT, "the key is another column"
            home.send(0, json.dumps(rows[0]).encode())
            home.clock.step(1_000)
            assert home.ingest().exit_code == ExitCode.TRANSIENT
        home.declare(text)
        assert home.declare(text).steps == ()
        for row in rows:
            home.send(0, json.dumps(row).encode())
        home.clock.step(1_000)
        assert home.ingest().error is None
        carried = home.run_sink()
        assert carried.error is None, carried.error
        assert in_order(read()) == in_order(home.user_rows("events")), renames
    assert in_order(read()) == [
        {"id": 1, "name": "a", "number": None, "title": "x"},
        {"id": 2, "name": "B", "number": 7, "title": "y"},
        {"id": 3, "name": "C", "number": 8, "title": "z"},
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(sorted(row.items())) for row in rows), key=repr)
