"""Sinks as the catalog has them, without the command that applies declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.kinds import SINK, NamedKey, SinkValue
from tidemark.catalog.opening.catalog import Catalog
from tidemark.clock import SystemClock
from tidemark.collections.declarations.sink import SinkDeclaration

if TYPE_CHECKING:
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.settings import Settings


def declare_sink(settings: Settings, name: str, collection: str, *, warn_after: str = "2d") -> None:
    """Store a sink that carries the changes of ``collection`` into a table."""
    sink = SinkDeclaration.model_validate(
        {
            "name": name,
            "from": collection,
            "to": {"connection": "pg", "table": name},
            "mode": "changes",
            "warn_after": warn_after,
        }
    )

    def change(transaction: Transaction) -> None:
        value = SinkValue(id=transaction.allocate(SINK.name), collection=collection, definition=sink.to_json())
        transaction.put(SINK, NamedKey(name=name), value)

    with Catalog.of(settings, clock=SystemClock(), who="tests").join() as handle:
        handle.transact(change)
