"""Sinks as the catalog has them, of collections that nobody declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.declarations.sink import SinkDeclaration

if TYPE_CHECKING:
    from tidemark.settings import Settings


def declare_sink(settings: Settings, name: str, collection: str, *, warn_after: str = "2d") -> None:
    """Store a sink that carries the changes of ``collection`` into a table."""
    to = {"connection": "pg", "table": name}
    fields = {"name": name, "from": collection, "to": to, "mode": "changes", "key": (), "warn_after": warn_after}
    registry = deployment_of(settings).registry
    registry.replace([], seen=registry.read(), sinks=[SinkDeclaration.model_validate(fields)])
