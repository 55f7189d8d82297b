"""One connection to the database of a stash: what PostgreSQL and SQLite have in common, tables and errors included.

Statements are written once for both, with ``?`` for parameters. Not with SQLAlchemy Core, whose import takes 0.2 s:
sensors look at the stash each second, and the command line at each start. The exceptions of this module tell the owner
of the connection what to try again; none of them leaves the stash.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
_TABLES = """
CREATE TABLE IF NOT EXISTS fence (epoch BIGINT PRIMARY KEY, nonce {binary} NOT NULL);
CREATE TABLE IF NOT EXISTS collections (collection_id {numbered} PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS data (
    collection_id BIGINT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, time BIGINT NOT NULL, diff BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS data_by_key ON data (collection_id, key);
CREATE INDEX IF NOT EXISTS data_retracted ON data (collection_id) WHERE diff < 0;
CREATE TABLE IF NOT EXISTS sinces (collection_id BIGINT PRIMARY KEY, since BIGINT);
CREATE TABLE IF NOT EXISTS uppers (collection_id BIGINT PRIMARY KEY, upper BIGINT)
"""


def table_statements(*, binary: str, numbered: str) -> list[str]:
    """Return the statements that create the tables, with the database's types for bytes and for generated numbers."""
    return _TABLES.format(binary=binary, numbered=numbered).split(";")


class LostConnection(Exception):
    """The server, or the file, went away: connect again and run the whole transaction once more."""


class LostCommit(LostConnection):
    """The connection was lost while committing: ask for the fate of ``transaction_id`` before anything else."""

    def __init__(self, transaction_id: str) -> None:
        super().__init__(transaction_id)
        self.transaction_id = transaction_id


class Conflict(Exception):
    """Another transaction was in the way and this one was not committed: run it once more."""


class MissingTable(Exception):
    """A table of the stash, or the whole stash, does not exist."""


class StashConnection(Protocol):
    """A connection that is made by ``begin`` when there is none. Used by one thread at a time.

    Every method may raise the signals above, ``Unreachable`` when a new connection cannot be made for a reason that
    will not pass (a wrong password, no such database), and ``NotPossible`` when the database forbids it.
    """

    where: str  # for messages: without the password
    row_lock: str  # what a SELECT ends with to keep a row from changing until the transaction ends
    order: str  # what a text in ORDER BY is followed by to be sorted by code point

    def create_database(self) -> None:
        """Make the file if there is none; a server's database has to be there."""

    def begin(self, *, write: bool) -> None:
        """Start a serializable transaction; without ``write`` the database itself refuses changes.

        Raises ``LostConnection`` if the database does not answer for now, and ``MissingTable`` if there is no file.
        """

    def create_tables(self) -> None:
        """Create the tables that are missing, in the present transaction."""

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a SELECT."""

    def stream(self, statement: str, parameters: Sequence[object] = ()) -> Generator[Row, None, None]:
        """Yield the rows of a SELECT without holding them all; used up, or closed, before the transaction ends."""

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> None:
        """Run a statement without a result."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert any number of rows of any size, split so that no statement grows with them."""

    def insert_batches(self, table: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Insert a great many rows, of integers and texts without NULLs; the batches have the table's columns."""

    def consolidate(self, collection_id: int, since: int) -> None:
        """Replace the rows of the keys that have a retraction at ``time <= since`` by their sums at ``since``.

        Leaves the sums of all rows as they are, whatever runs beside it. In a transaction of its own making.
        """

    def commit(self) -> None:
        """End the transaction: its changes are durable; raise ``LostCommit`` if nobody can tell whether they are."""

    def rollback(self) -> None:
        """End the transaction, if there is one, without its changes; never raises."""

    def was_committed(self, transaction_id: str) -> bool | None:
        """Return whether a transaction whose commit was lost is committed; None if the database cannot tell any more.

        Raises ``LostConnection`` if the database does not answer for now, or the transaction still runs there.
        """

    def close(self) -> None:
        """Close the connection; may be called again."""
