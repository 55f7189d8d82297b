"""The system's own catalog: migrating and rolling back many items, transactions on persist, and a sensor's look.

On a PostgreSQL of the benchmark's own, against what one would do without Tidemark: Spark reads the same table through
JDBC in the same partitions and writes it to Iceberg plainly; `COPY` of the same rows into a table with such indexes.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from bench.figures import Figure
from tests.support.postgres_server import running_postgres
from tidemark.catalog.items.kinds import SETTING, STORAGE_USAGE, NamedKey, NumberedKey, SettingValue, StorageUsageValue
from tidemark.catalog.migration.copy import copy
from tidemark.catalog.migration.plan import present_digest
from tidemark.catalog.migration.stash_rows import stash_rows
from tidemark.catalog.migration.steps import announce, fence, flip, verify
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.opening import Direction
from tidemark.catalog.persist.records import SHARD
from tidemark.catalog.stash.collections import AppendBatch
from tidemark.catalog.stash.handle import StashHandle
from tidemark.catalog.stash.stash import Stash
from tidemark.clock import SystemClock
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.orchestration.sensors.tombstone_reader import see_tombstone
from tidemark.secrets.database_uri import DatabaseUri
from tidemark.spark.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tidemark.catalog.opening.resume import Fences
    from tidemark.catalog.stash.collections import StashCollections
    from tidemark.settings import Settings

ITEMS, SMALL = 1_000_000, 100_000
LOOKS, TRANSACTIONS = 50, 50
BATCH = 50_000
CLOCK = SystemClock()
MIGRATE, ROLLBACK = Direction.MIGRATE, Direction.ROLLBACK
INDEXED = """
CREATE TABLE plain (collection_id bigint NOT NULL, key text NOT NULL, value text NOT NULL, time bigint NOT NULL,
                    diff bigint NOT NULL);
CREATE INDEX ON plain (collection_id, key);
CREATE INDEX ON plain (collection_id) WHERE diff < 0;
"""


@contextmanager
def on_postgres(settings: Settings) -> Iterator[Settings]:
    """Settings whose stash is on a server of their own."""
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
        Path(folder).chmod(0o755)  # the server runs as another user
        with running_postgres(Path(folder) / "data") as server:
            uri = DatabaseUri.parse(server.create_database("stash"), variable="the server")
            yield replace(settings, stash_uri=uri)


def fill(settings: Settings, items: int) -> Catalog:
    """Open a new catalog on the stash, with ``items`` items of the kind of which there are most."""
    catalog = Catalog.of(settings, clock=CLOCK, who="bench")
    catalog.open(ROLLBACK).close()
    handle = catalog.ends.stash.join(generation=settings.generation, clock=CLOCK)
    assert isinstance(handle, StashHandle)
    kind = STORAGE_USAGE

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, items, BATCH):
            numbers = range(start, min(start + BATCH, items))
            keys = [kind.key_text(NumberedKey(id=number)) for number in numbers]
            values = [
                kind.value_text(
                    StorageUsageValue(collection=f"collection_{each % 97}", size_bytes=each, collected_at_ms=each)
                )
                for each in numbers
            ]
            columns = {"kind": [kind.name] * len(keys), "key": keys, "value": values, "diff": [1] * len(keys)}
            yield pa.RecordBatch.from_pydict(columns)

    def operation(collections: StashCollections) -> None:
        at = CLOCK.now_ms()
        lower = collections.stored()[kind.name].upper
        assert isinstance(lower, int)
        collections.update_many(batches(), at)
        collections.append([AppendBatch.at(kind.name, at, lower=lower)])

    handle.run(operation)
    handle.close()
    return catalog


def measure_migrating(settings: Settings, *, items: int, runs: int) -> Iterator[Figure]:
    """Yield what a migration and a rollback of ``items`` items take, on a JVM of this process."""
    with on_postgres(settings) as placed, spark_session(placed, app_name="tidemark-bench", master="local[2]") as spark:
        catalog = fill(placed, items)
        lines = export(placed)
        there_and_back(catalog, placed, spark, lines)  # to warm up
        rounds = [there_and_back(catalog, placed, spark, lines) for _ in range(runs)]
        taken = {name: [each[name] for each in rounds] for name in rounds[0]}
        size = f"{items:,} items"
        yield Figure.ratio(
            f"migration of {size} / plain JDBC read and Iceberg write",
            numerator=("copy and flip", taken["migrate"]),
            denominator=("plain", taken["plain"]),
            at_most=3,
        )
        yield Figure.ratio(
            f"rollback of {size} / plain COPY",
            numerator=("copy and flip", taken["roll back"]),
            denominator=("plain COPY", taken["plain COPY"]),
            at_most=3,
        )
        yield Figure(f"comparison of {size}, without Spark", "s", tuple(taken["verify"]))


def there_and_back(catalog: Catalog, settings: Settings, spark: SparkSession, lines: bytes) -> dict[str, float]:
    """Migrate into an empty persist catalog and roll back into an empty stash; seconds, also of the plain ways."""
    seconds = {"plain": timed(lambda: plain_copy(spark, settings))}
    forget_persist(catalog, settings)
    fences, approved = fenced(catalog, MIGRATE)

    seconds["migrate"] = timed(lambda: copy_with(spark, catalog, settings, MIGRATE, fences))
    seconds["verify"] = timed(lambda: verify(catalog, MIGRATE, fences, approved=approved))
    seconds["migrate"] += timed(lambda: flip(catalog, fences, verified=fences))
    announce(catalog, MIGRATE, fences, copied=True)
    forget_stash(settings)
    seconds["plain COPY"] = timed(lambda: plain_copy_in(settings, lines))
    back, _ = fenced(catalog, ROLLBACK)
    seconds["roll back"] = timed(lambda: copy_with(spark, catalog, settings, ROLLBACK, back))
    announce(catalog, ROLLBACK, back, copied=True)
    return seconds


def measure_persist(settings: Settings, *, items: int = SMALL) -> Iterator[Figure]:
    """Yield what a persist catalog of ``items`` takes to open and to change, and a sensor to look at the stash."""
    with on_postgres(settings) as placed:
        catalog = fill(placed, items)
        catalog.open(MIGRATE).close()
        opened = [timed(lambda: catalog.open(MIGRATE).close()) for _ in range(5)]
        with catalog.join() as handle:
            taken = []
            for number in range(TRANSACTIONS):
                key, value = NamedKey(name=f"setting {number % 7}"), SettingValue(value=str(number))
                change = timed(lambda key=key, value=value: handle.transact(lambda t: t.put(SETTING, key, value)))
                taken.append(1000 * change)
        far, far_first = measure_looks(placed)
    embedded = Catalog.of(settings, clock=CLOCK, who="bench")
    embedded.open(ROLLBACK).close()
    near, near_first = measure_looks(settings)
    yield Figure(f"open of the persist catalog with {items:,} items", "s", tuple(opened), at_most=3)
    yield Figure(f"transaction on persist with {items:,} items", "ms", tuple(taken), at_most=100)
    for place, looks, first in (("PostgreSQL", far, far_first), ("SQLite", near, near_first)):
        yield Figure(f"look of the waiting tombstone sensor, {place}", "ms", looks, at_most=10)
        yield Figure(f"first look of the tombstone sensor, {place}", "ms", first)


def measure_looks(settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ms of looks in one wait, and of looks that connect first."""

    def look_once() -> None:
        see_tombstone(Stash.of(settings).head(), settings.generation)

    with closing(Stash.of(settings).watch()) as watch:
        watch.head()
        waiting = tuple(1000 * timed(lambda: see_tombstone(watch.head(), settings.generation)) for _ in range(LOOKS))
    return waiting, tuple(1000 * timed(look_once) for _ in range(LOOKS))


def timed(what: Any) -> float:
    started = time.perf_counter()
    what()
    return time.perf_counter() - started


def fenced(catalog: Catalog, direction: Direction) -> tuple[Fences, str]:
    approved = present_digest(catalog, direction)
    return fence(catalog, direction, approved=approved), approved


def copy_with(spark: SparkSession, catalog: Catalog, settings: Settings, direction: Direction, fences: Fences) -> None:
    @contextmanager
    def running() -> Iterator[SparkSession]:
        yield spark

    done = copy(catalog.ends, settings, direction, fences, open_spark=running, large_above=0)
    assert done.engine == "spark"
    assert done.replaced is not None


def plain_copy(spark: SparkSession, settings: Settings) -> None:
    """Read what the migration reads, and write it as it is."""
    stash_rows(spark, settings).writeTo("tidemark.collections.plain_catalog").createOrReplace()


def forget_persist(catalog: Catalog, settings: Settings) -> None:
    """Drop the persist catalog, so that each migration writes everything."""
    Shards.connect(settings).drop(SHARD, SYSTEM)
    catalog.open(ROLLBACK).close()


def forget_stash(settings: Settings) -> None:
    """Empty what the stash holds of the many items, so that each rollback writes everything."""
    with psycopg.connect(settings.stash_uri.reveal(), autocommit=True) as connection:
        many = "(SELECT collection_id FROM collections WHERE name = 'storage_usage')"
        connection.execute(f"DELETE FROM data WHERE collection_id = {many}")  # noqa: S608 - our own text
        connection.execute("VACUUM data")


def export(settings: Settings) -> bytes:
    """Return all updates of the stash as `COPY` sends them."""
    with (
        psycopg.connect(settings.stash_uri.reveal()) as connection,
        connection.cursor() as cursor,
        cursor.copy("COPY data TO STDOUT") as out,
    ):
        return b"".join(bytes(block) for block in out)


def plain_copy_in(settings: Settings, lines: bytes) -> None:
    with psycopg.connect(settings.stash_uri.reveal()) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS plain")
        cursor.execute(INDEXED)
        with cursor.copy("COPY plain FROM STDIN") as into:
            for start in range(0, len(lines), 1 << 20):
                into.write(lines[start : start + (1 << 20)])
