"""The board: small levels that storage workers show each other, such as who lives, and how far somebody came.

A level replaces the one before it at its place, and may be lost: nothing durable hangs on it. The board is a table
beside Iceberg's own in the catalog's database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tidemark.errors import Unreachable
from tidemark.iceberg.leases.statements import CatalogStatements
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

_TABLE = """
CREATE TABLE IF NOT EXISTS tidemark_storage (
    place VARCHAR(200) PRIMARY KEY, life BIGINT NOT NULL, number BIGINT NOT NULL, value TEXT NOT NULL,
    written_ms BIGINT NOT NULL
)
"""
_COLUMNS = "place, life, number, value, written_ms"
_PUT = (
    f"INSERT INTO tidemark_storage ({_COLUMNS}) VALUES ({{0}}, {{0}}, {{0}}, {{0}}, {{now}}) "  # noqa: S608 - our own text
    "ON CONFLICT (place) DO UPDATE SET life = excluded.life, number = excluded.number, value = excluded.value, "
    "written_ms = excluded.written_ms "
    "WHERE (excluded.life, excluded.number) > (tidemark_storage.life, tidemark_storage.number)"
)
_BEGINS = "substr(place, 1, {0}) = {0}"  # not LIKE, which has patterns, and takes `A` for `a` in SQLite
# The values that were written before the last look are known as a rule, and are not sent again.
_READ = (
    "SELECT {now}, place, life, number, CASE WHEN written_ms > {0} THEN value END, written_ms "  # noqa: S608
    f"FROM (SELECT 1) AS one LEFT JOIN tidemark_storage ON {_BEGINS}"
)
_REMOVE = f"DELETE FROM tidemark_storage WHERE {_BEGINS}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands at a place of the board."""

    place: str
    life: int
    number: int
    value: Mapping[str, Any]
    written_ms: int  # of the clock of the database


class Board:
    """The board, as one thread reads it, and many may write it.

    Every method raises ``Unreachable`` if the database is away, busy, or cannot be written.
    """

    def __init__(self, settings: Settings) -> None:
        self._statements = CatalogStatements(settings, table=_TABLE, application="tidemark-storage")
        self.close = self._statements.close
        self._known: dict[str, Entry] = {}  # of the last look

    def put(self, place: str, value: Mapping[str, Any], *, life: int = 0, number: int = 0) -> bool:
        """Store ``value``, unless the same or a later ``(life, number)`` stands there; return whether it was stored.

        The database compares and sets in one step: of several writers of one number, the first wins.
        """
        return self._write(_PUT, place, life, number, json.dumps(dict(value))) > 0

    def read(self, prefix: str = "") -> tuple[list[Entry], int]:
        """Return what stands at the places that begin with ``prefix``, sorted by place, and the database's time in ms.

        A store in which nobody has put anything yet has no entries, and the time 0. An entry that has not changed since
        the last look is the same object.
        """
        newest_ms = max((entry.written_ms for entry in self._known.values()), default=-1)
        found = self._look(newest_ms, prefix)
        if found is None:  # it became visible after one that was written later
            found = self._look(-1, prefix)
        entries, now_ms = found or ([], 0)
        others = {place: entry for place, entry in self._known.items() if not place.startswith(prefix)}
        self._known = others | {entry.place: entry for entry in entries}
        return sorted(entries, key=lambda entry: entry.place), now_ms

    def _look(self, newest_ms: int, prefix: str) -> tuple[list[Entry], int] | None:
        """Return the entries and the time; None if a value is missing that was not written after ``newest_ms``."""
        rows, entries = self._statements.query(_READ, newest_ms, len(prefix), prefix), []
        for _, place, life, number, value, written_ms in rows:
            if place is None:
                continue
            known = self._known.get(place)
            if known is not None and (known.life, known.number, known.written_ms) == (life, number, written_ms):
                entries.append(known)
            elif value is None:
                return None
            else:
                entries.append(Entry(place, life, number, json.loads(value), written_ms))
        return entries, rows[0][0] if rows else 0

    def remove(self, prefix: str) -> None:
        """Remove what stands at the places that begin with ``prefix``."""
        self._write(_REMOVE, len(prefix), prefix)

    def _write(self, statement: str, *values: object) -> int:
        try:
            return self._statements.execute(statement, *values)
        except self._statements.failures as error:
            raise Unreachable(
                f"the board of the storage workers cannot be written: {first_line(error)}",
                hint="check TIDEMARK_CATALOG_URI, and whether its user may make tables",
            ) from error


def look_once(settings: Settings, prefix: str) -> tuple[list[Entry], int]:
    """Return what ``Board.read`` returns, over a connection that does not stay open. Raises as that."""
    with closing(Board(settings)) as board:
        return board.read(prefix)
