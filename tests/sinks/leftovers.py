"""Columns that a collection dropped stay in a target; a sink that is declared again refuses them, with a way out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.sinks.changes import change, drop_sink
from tidemark.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home


def take_the_way_out(
    home: Home, to: dict[str, Any], *, drop_column: Callable[[], None], drop_table: Callable[[], None]
) -> None:
    """Leave a column in a target, declare the sink again, and do what the refusals say; the target is then right."""

    def declare(columns: str, *, sinks: bool = False) -> None:
        source = f"source: {{buffer: '{home.buffer_folder.as_uri()}'}}"
        text = f"version: 1\ncollections:\n  events: {{kind: latest, key: [id], schema: '{columns}', {source}}}\n"
        sink = {"from": "events", "mode": "mirror", "to": {**to, "existing": "replace"}}
        home.declare(text + (f"sinks:\n  copies: {json.dumps(sink)}\n" if sinks else ""))

    def refused(columns: str) -> str:
        with pytest.raises(SchemaMismatch, match="'name'") as caught:
            declare(columns, sinks=True)
        return f"{caught.value}; {caught.value.hint}"

    declare("id bigint, name string", sinks=True)
    change(home, put={0: "a", 1: "b"})
    assert home.run_sink().error is None
    declare("id bigint")
    assert home.run_sink().error is None
    drop_sink(home.settings)
    assert "has besides 'name'" in refused("id bigint")
    drop_column()
    declare("id bigint", sinks=True)
    assert home.run_sink().error is None

    declare("id bigint, name string")
    assert home.run_sink().error is None
    declare("id bigint")
    declare("id bigint, name bigint")
    in_the_way = home.run_sink().error
    assert in_the_way is not None
    assert in_the_way.hint == "rename or drop the old column there"
    drop_sink(home.settings)
    assert "or drop it, or name another one" in refused("id bigint, name bigint")
    drop_table()
    declare("id bigint, name bigint", sinks=True)
    assert home.run_sink().error is None
