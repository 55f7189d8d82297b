"""Everything durable in a stash, table by table: as lines to compare, and as a copy that nobody else sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

from tidemark.catalog.back_end import closed_on_error
from tidemark.catalog.stash.collections import DATA_COLUMNS
from tidemark.catalog.stash.connection import StashConnection
from tidemark.catalog.stash.sqlite import SqliteConnection

_COLUMNS = {
    "fence": ("epoch", "nonce"),
    "collections": ("collection_id", "name"),
    "sinces": ("collection_id", "since"),
    "uppers": ("collection_id", "upper"),
    "data": DATA_COLUMNS,
}
_TEXTS = {"name", "key", "value"}


def dump_tables(connection: StashConnection) -> Iterator[str]:
    """Yield each row as one line of JSON, in a fixed order, in the transaction that is open."""
    for table, columns in _COLUMNS.items():
        order = ", ".join(f"{column}{connection.order if column in _TEXTS else ''}" for column in columns)
        for row in connection.stream(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}"):  # noqa: S608 - our own names
            shown = {"table": table, **dict(zip(columns, row, strict=True))}
            if "nonce" in shown:
                shown["nonce"] = bytes(shown["nonce"]).hex()
            yield json.dumps(shown)


def private_copy(connection: StashConnection) -> SqliteConnection:
    """Return a private database with all rows that the open transaction sees; closing deletes it.

    A dry run works on this copy. A transaction that is never committed would see its own changes too, but its locks, in
    PostgreSQL as in SQLite, would stop the leader for as long as it lasts.
    """
    copy = SqliteConnection(None)
    with closed_on_error(copy):
        copy.begin(write=True)
        copy.create_tables()
        for table, columns in _COLUMNS.items():
            with closing(connection.stream(f"SELECT {', '.join(columns)} FROM {table}")) as rows:  # noqa: S608
                copy.insert(table, columns, rows)
        copy.commit()
    return copy
