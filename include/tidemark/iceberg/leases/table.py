"""The table of leases, beside Iceberg's own tables in the catalog's database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.leases.statements import CatalogStatements
from tidemark.settings import Settings

_KEPT_MS: Final = 30 * 24 * 3600 * 1000  # of leases that ran out, and that nobody has removed
_TABLE = """
CREATE TABLE IF NOT EXISTS tidemark_leases (
    id VARCHAR(36) PRIMARY KEY, operation TEXT NOT NULL, collections TEXT NOT NULL, generation BIGINT NOT NULL,
    writer TEXT NOT NULL, length_s DOUBLE PRECISION NOT NULL, began_ms BIGINT NOT NULL, beat BIGINT NOT NULL,
    renewed_ms BIGINT NOT NULL
)
"""
_COLUMNS = "id, operation, collections, generation, writer, length_s, began_ms, beat, renewed_ms"
_ENTER = (
    f"INSERT INTO tidemark_leases ({_COLUMNS}) VALUES ({{0}}, {{0}}, {{0}}, {{0}}, {{0}}, {{0}}, {{now}}, 0, {{now}}) "  # noqa: S608 - our own text
    "ON CONFLICT (id) DO UPDATE SET beat = tidemark_leases.beat + 1"  # the answer to an earlier try was lost
)
_RENEW = "UPDATE tidemark_leases SET beat = beat + 1, renewed_ms = {now} WHERE id = {0}"
_END = "DELETE FROM tidemark_leases WHERE id = {0}"
_END_LAPSED = "DELETE FROM tidemark_leases WHERE id = {0} AND beat = {0}"
_END_FORGOTTEN = "DELETE FROM tidemark_leases WHERE renewed_ms < {now} - {0}"
_READ = f"SELECT {_COLUMNS}, {{now}} FROM tidemark_leases ORDER BY began_ms, id"  # noqa: S608 - our own text


def read_leases(settings: Settings) -> tuple[list[Lease], int]:
    """Return all leases, the oldest first, whether live or not, and the time of the database in ms (0 without leases).

    Raises ``Unreachable`` if the database does not answer.
    """
    with closing(_statements(settings)) as statements:
        rows = statements.query(_READ)
    leases = [
        Lease(
            id=row[0],
            operation=row[1],
            collections=tuple(json.loads(row[2])),
            generation=row[3],
            writer=row[4],
            length_s=row[5],
            began_ms=row[6],
            beat=row[7],
            renewed_ms=row[8],
        )
        for row in rows
    ]
    return leases, rows[0][9] if rows else 0


class LeaseTable:
    """Writes leases, on one connection; used by one thread.

    Every method may raise one of ``failures``: the database is away, busy, or cannot be written.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._statements = settings, _statements(settings)
        self.failures, self.close = self._statements.failures, self._statements.close

    def enter(self, id_: str, *, operation: str, collections: Sequence[str], writer: str) -> None:
        """Begin a lease; in a store without the table, make the table."""
        settings, on = self._settings, json.dumps(list(collections))
        self._statements.execute(_ENTER, id_, operation, on, settings.generation, writer, settings.lease_s)

    def renew(self, id_: str) -> bool:
        """Renew the lease; return whether it was still there."""
        return self._statements.execute(_RENEW, id_) > 0

    def end(self, id_: str) -> None:
        self._statements.execute(_END, id_)

    def end_lapsed(self, lease: Lease) -> bool:
        """End a lease of another process that ran out; return False if its process has renewed it since."""
        return self._statements.execute(_END_LAPSED, lease.id, lease.beat) > 0

    def end_forgotten(self) -> None:
        """End leases that ran out a month ago, by the clock of the database; a live one comes back by itself."""
        self._statements.execute(_END_FORGOTTEN, _KEPT_MS)


def _statements(settings: Settings) -> CatalogStatements:
    return CatalogStatements(settings, table=_TABLE, application="tidemark-lease")
