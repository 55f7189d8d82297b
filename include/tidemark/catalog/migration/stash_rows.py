"""Reads every stored update of the stash's items with Spark, through JDBC, in partitions.

All rows of one key are in one partition, so one statement reads them as of one instant. This matters because no fence
stops consolidation: it may move rows to another time while Spark reads, and Spark must see the rows exactly once.
Nothing else changes, because the process that copies holds the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from tidemark.catalog.items.kinds import KINDS
from tidemark.catalog.persist.records import SHOWN
from tidemark.catalog.stash.sqlite import SqliteConnection
from tidemark.catalog.stash.transactions import StashTransactions
from tidemark.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COPIED: Final = tuple(name for name in KINDS if name not in SHOWN)  # the driver reads and replaces the other kinds
_FETCH_ROWS = 10_000  # without a limit, PostgreSQL's driver keeps the whole result in memory
_SAMPLED_KEYS = 1_000  # they give the bounds of the partitions of an SQLite file
_READ_ONLY_SQLITE = "1"  # SQLITE_OPEN_READONLY
SCHEMA: Final = "kind STRING, key STRING, value STRING, diff BIGINT"
_ITEMS = """
(SELECT c.name AS kind, d.key AS key, d.value AS value, d.diff AS diff
 FROM collections c JOIN uppers u ON u.collection_id = c.collection_id
 JOIN data d ON d.collection_id = c.collection_id AND (u.upper IS NULL OR d.time < u.upper)
 WHERE c.name IN ({kinds})) items
""".format(kinds=", ".join(f"'{name}'" for name in COPIED))  # noqa: S608 - our own names


def stash_rows(spark: SparkSession, settings: Settings) -> DataFrame:
    """Return ``kind``, ``key``, ``value``, ``diff`` of all kinds in ``COPIED``, not consolidated."""
    partitions = 2 * spark.sparkContext.defaultParallelism
    if (path := settings.stash_uri.path) is not None:
        options = {"driver": "org.sqlite.JDBC", "open_mode": _READ_ONLY_SQLITE}
        url, parts = f"jdbc:sqlite:{path}", key_ranges(_sample_keys(path), partitions)
    else:
        url = settings.stash_uri.jdbc_url
        # User and password are options, because Spark neither plans nor logs options.
        options = settings.stash_uri.jdbc_secrets | {
            "driver": "org.postgresql.Driver",
            "connectTimeout": str(max(1, int(settings.connect_timeout_s))),
            "ApplicationName": "tidemark-copy",
        }
        parts = [f"mod(abs(hashtext(key)::bigint), {partitions}) = {number}" for number in range(partitions)]
    options |= {"fetchsize": str(_FETCH_ROWS), "customSchema": SCHEMA}
    return spark.read.jdbc(url, _ITEMS, predicates=parts, properties=options)


def key_ranges(keys: Sequence[str], partitions: int) -> list[str]:
    """Return conditions for at most ``partitions`` ranges of keys, about equal in size; a key meets exactly one.

    ``keys`` are a sample in any order; an empty sample gives a single range.
    """
    ordered = sorted(keys, key=str.encode)  # as SQLite compares
    bounds = sorted({ordered[len(ordered) * place // partitions] for place in range(1, partitions)} if ordered else ())
    quoted = ["'" + bound.replace("'", "''") + "'" for bound in bounds]
    lower = [f"key >= {bound}" for bound in quoted]
    upper = [f"key < {bound}" for bound in quoted]
    return [" AND ".join(filter(None, pair)) or "1 = 1" for pair in zip(["", *lower], [*upper, ""], strict=True)]


def _sample_keys(path: Path) -> list[str]:
    connection = SqliteConnection(path)

    def read() -> list[str]:
        last = connection.query("SELECT COALESCE(MAX(rowid), 0) FROM data")[0][0]
        step = max(1, last // _SAMPLED_KEYS)
        return [row[0] for row in connection.query("SELECT key FROM data WHERE rowid % ? = 0", [step])]

    with closing(connection):
        return StashTransactions(connection).run(read, write=False)
