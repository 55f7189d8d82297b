"""Stashes for tests, in SQLite and in PostgreSQL, with a way around their own code to look at what is stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.clock import SteppedClock
from tidemark.catalog.back_end import OpenMode
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
        if self.settings.stash_uri.startswith("sqlite:"):
            path = self.settings.stash_uri.removeprefix("sqlite:///")
            with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.settings.stash_uri, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def drop(self) -> None:
        """Drop every table, as somebody who starts from nothing would."""
        for table in ("fence", "collections", "data", "sinces", "uppers"):
            self.sql(f"DROP TABLE {table}")
