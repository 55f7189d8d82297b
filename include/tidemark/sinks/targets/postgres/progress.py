"""The table ``tidemark_sinks`` beside the targets of a schema: one row for each target, locked by who writes it."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg import sql

from tidemark.sinks.progress import Progress

NAME = "tidemark_sinks"
_FIELDS = ("sink", "sink_id", "collection", "table_uuid", "mode", "epoch", "generation", "time", "snapshot", "columns")
_CREATE = sql.SQL("""
CREATE TABLE IF NOT EXISTS {} (
    target text PRIMARY KEY, sink text NOT NULL, sink_id bigint NOT NULL, collection text NOT NULL,
    table_uuid text NOT NULL, mode text NOT NULL, epoch bigint NOT NULL, generation bigint NOT NULL,
    "time" bigint, snapshot bigint NOT NULL, columns jsonb NOT NULL, updated_at timestamptz NOT NULL DEFAULT now()
)
""")


class ProgressTable:
    """The progress of one target, on one connection at a time."""

    def __init__(self, schema: str, target: str) -> None:
        self._name = sql.Identifier(schema, NAME)
        self._text = f"{_quoted(schema)}.{_quoted(NAME)}"
        self._target = target

    def exists(self, connection: psycopg.Connection[Any]) -> bool:
        found = connection.execute("SELECT to_regclass(%s)", [self._text]).fetchone()
        return found is not None and found[0] is not None

    def create(self, connection: psycopg.Connection[Any]) -> None:
        """Make the table if it is missing; two processes that make it at once would fail each other."""
        if not self.exists(connection):
            _lock(connection, self._text)
            connection.execute(_CREATE.format(self._name))

    def lock(self, connection: psycopg.Connection[Any]) -> None:
        """Let nobody else claim the target until the transaction ends: a row that is not there has no lock."""
        _lock(connection, f"{self._text} {self._target}")

    def read(self, connection: psycopg.Connection[Any], *, title: str, locks: bool = False) -> Progress | None:
        """Return the progress; None if no sink ever wrote. ``locks``: nobody else writes until the transaction ends."""
        if not self.exists(connection):
            return None
        query = sql.SQL("SELECT {} FROM {} WHERE target = %s {}").format(
            sql.SQL(", ").join(map(sql.Identifier, _FIELDS)), self._name, sql.SQL("FOR UPDATE" if locks else "")
        )
        row = connection.execute(query, [self._target]).fetchone()
        return None if row is None else Progress.parse(dict(zip(_FIELDS, row, strict=True)), where=title)

    def write(self, connection: psycopg.Connection[Any], progress: Progress) -> None:
        """Store the progress in the transaction under way."""
        values = progress.to_json() | {"columns": json.dumps(progress.to_json()["columns"])}
        assigned = sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in (*_FIELDS, "updated_at")
        )
        statement = sql.SQL("INSERT INTO {} (target, {}) VALUES (%s, {}) ON CONFLICT (target) DO UPDATE SET {}").format(
            self._name,
            sql.SQL(", ").join(map(sql.Identifier, _FIELDS)),
            sql.SQL(", ").join([sql.Placeholder()] * len(_FIELDS)),
            assigned,
        )
        connection.execute(statement, [self._target, *(values[name] for name in _FIELDS)])

    def delete(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("DELETE FROM {} WHERE target = %s").format(self._name), [self._target])


def _lock(connection: psycopg.Connection[Any], text: str) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [text])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
