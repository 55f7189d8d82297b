"""Declarations and sources that tests make up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.source import Source

if TYPE_CHECKING:
    from tidemark.collections.sources.opened_source import OpenedSource, Opening

HEAD = "version: 1\ncollections:\n"
EVENTS = """  events:
    kind: differential
    key: [day, id]
    source: {format: csv, path: events.csv, options: {header: true}, schema: "day date, id int, value string"}
    scope: {column: day, every: day}
"""
PLANES = """  planes:
    kind: differential
    key: [tailnum]
    source: {format: csv, path: planes.csv, options: {header: true}, schema: "tailnum string, seats int"}
"""


def csv_declaration(name: str, **more: object) -> Declaration:
    """Return the declaration of a differential collection over a CSV file that is not there."""
    source = {"format": "csv", "path": f"/nowhere/{name}.csv", "options": {"header": True}, "schema": "k int, v string"}
    return Declaration.model_validate({"name": name, "kind": "differential", "key": ["k"], "source": source} | more)


class Watched(Source):
    """A source; ``opened`` sees, and may replace, what it gives each time that it is opened."""

    source: Any
    opened: Any = Field(exclude=True)  # not part of what is declared

    @property
    def needs_interval(self) -> bool:
        return bool(self.source.needs_interval)

    def open(self, opening: Opening, where: str) -> OpenedSource:
        found: OpenedSource = self.opened(self.source.open(opening, where))
        return found
