"""Sinks as the catalog has them, of collections that nobody declared, and the columns of their targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.schema.ddl import parse_columns
from tidemark.sinks.progress import SinkColumn

if TYPE_CHECKING:
    from tidemark.settings import Settings


def declare_sink(settings: Settings, name: str, collection: str, *, warn_after: str = "2d") -> None:
    """Store a sink that carries the changes of ``collection`` into a table."""
    to = {"connection": "pg", "table": name}
    fields = {"name": name, "from": collection, "to": to, "mode": "changes", "key": (), "warn_after": warn_after}
    registry = deployment_of(settings).registry
    registry.replace([], seen=registry.read(), sinks=[SinkDeclaration.model_validate(fields)])


def sink_columns(**types: str) -> tuple[SinkColumn, ...]:
    """Columns as ``NAME_ID=type``."""
    return tuple(
        SinkColumn(int(name.split("_")[1]), name.split("_")[0], parse_columns(f"c {type_}")[0].type)
        for name, type_ in types.items()
    )
