"""Stashes for tests, in SQLite and in PostgreSQL, with a way around their own code to look at what is stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.clock import SteppedClock
from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.stash.collections import Entry
from tidemark.catalog.stash.stash import Stash

if TYPE_CHECKING:
    from tests.support.postgres_server import PostgresServer
    from tidemark.catalog.stash.handle import StashHandle
    from tidemark.settings import Settings


@dataclass(frozen=True)
class StashPlace:
    """An empty place for a stash."""

    settings: Settings
    server: PostgresServer | None = None

    @property
    def stash(self) -> Stash:
        return Stash.of(self.settings)

    def join(self, *, generation: int = 1) -> StashHandle:
        return self.stash.join(generation=generation, clock=SteppedClock())

    def open(self, mode: OpenMode = OpenMode.WRITABLE, *, generation: int = 1, **more: int) -> StashHandle:
        return self.stash.open(mode, generation=generation, clock=SteppedClock(), **more)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement beside the stash's own code, committed at once."""
        if (path := self.settings.stash_uri.path) is not None:
            with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.settings.stash_uri.reveal(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def updates(self, name: str) -> list[tuple[Entry, int]]:
        """The stored updates with their times, advanced to the since and consolidated, in order of time, key, value."""
        rows = self.sql(
            "SELECT key, value, SUM(diff), CASE WHEN time < since THEN since ELSE time END AS advanced "
            f"FROM collections JOIN data USING (collection_id) JOIN sinces USING (collection_id) WHERE name = '{name}' "
            "GROUP BY key, value, advanced HAVING SUM(diff) <> 0 ORDER BY advanced, key, value"
        )
        return [(Entry(key, value, int(diff)), time) for key, value, diff, time in rows]

    def drop(self) -> None:
        """Drop every table, as somebody who starts from nothing would."""
        for table in ("fence", "collections", "data", "sinces", "uppers"):
            self.sql(f"DROP TABLE {table}")
