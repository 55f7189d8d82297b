"""The latest row of each key: an ingest of changes against MERGE INTO of the same changes.

Both tables hold the same rows in as many files, and both sides write merge-on-read. From decoded changes on: Tidemark
has them in memory, MERGE INTO reads them from Parquet. With decoding: Tidemark reads JSON rows from a file buffer, in
entries as `tidemark buffer write` makes them, MERGE INTO the same rows from a text file.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyspark.sql import functions as F

from bench.declared import register
from bench.figures import Figure
from bench.spark_part import run_part
from bench.tables import FILE_FORM, KEY, write_sources
from bench.timing import alternate
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import SystemClock
from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.schema.convert import from_spark, to_iceberg
from tidemark.collections.schema.types import columns_text
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.arrow_values import with_constants
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.column_names import DIFF, PRODUCER, TIME
from tidemark.iceberg.shard.layout import TABLE_PROPERTIES
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.latest.commit import Attempt, commit_portion
from tidemark.ingest.latest.decoding import ChangeDecoder
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.latest.portion import ChangeReading, Portion, read_portion
from tidemark.ingest.messages import decoded_columns
from tidemark.ingest.plan import plan_ingest
from tidemark.ingest.publish import Target
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.formats.entry import Entry
from tidemark.write_buffer.registry import open_reader, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.manifest import DataFile
    from pyspark.sql import DataFrame, Row, SparkSession

ROWS, CHANGES = 5_000_000, 50_000
SEQUENCERS, ENTRY_ROWS, GONE = 4, 1_000, "gone"
CLOCK = SystemClock()
OURS, MERGED = "tidemark.collections.latest", "tidemark.collections.merged"


@dataclass(frozen=True)
class _Latest:
    """A collection, a table that MERGE INTO keeps, and changes that wait: 1 of 20 new, 1 of 20 deletes a key."""

    spark: SparkSession
    settings: Settings
    folder: Path
    rows: int
    changes: int

    @property
    def shards(self) -> Shards:
        return Shards.connect(self.settings)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def decoded(self) -> Path:
        return self.folder / "changes"

    @property
    def messages(self) -> Path:
        return self.folder / "messages.ndjson"

    @property
    def buffer(self) -> str:
        return (self.settings.home / "buffer").as_uri()

    @property
    def declaration(self) -> Declaration:
        schema = self.spark.read.parquet(str(self.base)).schema
        return Declaration.model_validate(
            {
                "name": "latest",
                "kind": "latest",
                "key": [KEY],
                "schema": columns_text(from_spark(schema, where="base")),
                "source": {"buffer": self.buffer},
                "delete_when": {GONE: True},
            }
        )

    def fill(self) -> None:
        """Load both tables from the same files, and write the changes into the buffer, into Parquet and as text."""
        write_sources(self.spark, self.folder, self.rows, {})
        open_folder(self.settings.home / "buffer", sequencers=SEQUENCERS)
        schema = self.spark.read.parquet(str(self.base)).schema
        shard = self.shards.create(
            "latest", schema=to_iceberg(from_spark(schema, where="base")), key=(KEY,), of_buffer=True
        )
        register(self.settings, self.declaration)
        table = shard.load().table
        files: list[DataFile] = []
        for path in sorted(self.base.glob("*.parquet")):
            rows = with_constants(pq.read_table(path), ((TIME, 0), (DIFF, 1), (PRODUCER, "load")))
            files += write_rows(table, rows)
        Writer.join(shard, 1).publish(Batch(added=tuple(files)), lower=0, new_upper=1)
        listed = ", ".join(f"'{name}' = '{TABLE_PROPERTIES[name]}'" for name in (*FILE_FORM, "write.merge.mode"))
        columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in schema)
        self.spark.sql(f"CREATE TABLE {MERGED} ({columns}) USING iceberg TBLPROPERTIES ({listed})")
        self.spark.read.parquet(str(self.base)).writeTo(MERGED).append()
        self._write_changes()

    def _write_changes(self) -> None:
        step = self.rows // self.changes
        drawn = self.spark.read.parquet(str(self.base)).where(F.pmod(F.xxhash64(KEY), F.lit(step)) == 0)
        kind = F.pmod(F.xxhash64(F.lit("kind"), KEY), F.lit(20))
        changed = drawn.withColumn(GONE, kind == 0).withColumn("category", F.col("category") + 1)
        moved = changed.withColumn(KEY, F.when(kind == 1, F.col(KEY) + self.rows).otherwise(F.col(KEY)))
        moved.coalesce(2).write.parquet(str(self.decoded))
        found = self.spark.read.parquet(str(self.decoded)).withColumn("at", F.col("at").cast("string")).toArrow()
        lines = [json.dumps(row).encode() for row in found.to_pylist()]
        self.messages.write_bytes(b"\n".join(lines))
        keys = found.column(KEY).to_pylist()
        with open_writer(find_connection(self.buffer, {}), clock=CLOCK) as writer:
            for sequencer_id in range(SEQUENCERS):
                mine = [line for key, line in zip(keys, lines, strict=True) if key % SEQUENCERS == sequencer_id]
                for start in range(0, len(mine), ENTRY_ROWS):
                    writer.store_entry(Entry(b"\n".join(mine[start : start + ENTRY_ROWS])), sequencer_id)

    # -- the sides ----------------------------------------------------------------------------------------------------

    def ingest(self) -> None:
        deployment = deployment_of(self.settings)
        report = ingest_latest(self.shards, self.declaration, deployment=deployment, clock=CLOCK)
        assert report.error is None, report
        assert report.inserted > self.changes // 2, report

    def attempt(self, portion: Portion | None = None) -> Attempt:
        """Return what is to be committed; without ``portion`` the messages are read and decoded."""
        declaration, deployment = self.declaration, deployment_of(self.settings)
        source = check_buffer_source(declaration)
        connection = find_connection(source.buffer, {})
        shard = self.shards.open("latest")
        with open_reader(connection) as reader:
            log = BufferLog.of(connection, identity=reader.identity)
            writer, head = Writer.join(shard, 1), shard.load()
            decoder = ChangeDecoder.of(declaration, source, decoded_columns(head.table))
            reading = ChangeReading(connection, reader, log, decoder)
            if portion is None:
                planned = plan_ingest(log, look_at(reader), head.state.ledgers, {}, starts={}, source=source)
                portion = read_portion(reading, planned)
        target = Target(shards=self.shards, shard=shard, log=log, deployment=deployment, clock=CLOCK)
        return Attempt(target, declaration, writer, head, reading, portion)

    def merge(self, changes: DataFrame) -> None:
        changes.createOrReplaceTempView("changes")
        columns = [name for name in changes.columns if name != GONE]
        inserted = f"({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
        updated = ", ".join(f"{name} = s.{name}" for name in columns)
        self.spark.sql(
            f"MERGE INTO {MERGED} t USING changes s ON t.{KEY} = s.{KEY} WHEN MATCHED AND s.{GONE} THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {updated} WHEN NOT MATCHED AND NOT s.{GONE} THEN INSERT {inserted}"
        )

    def decoded_changes(self) -> DataFrame:
        return self.spark.read.parquet(str(self.decoded))

    def messages_as_changes(self) -> DataFrame:
        schema = self.decoded_changes().schema
        return self.spark.read.schema(schema).json(str(self.messages))

    # -- before and after ---------------------------------------------------------------------------------------------

    def save(self) -> dict[str, str]:
        """Return where both tables are: metadata and data files are never changed, only pointed at."""
        with closing(sqlite3.connect(self.settings.catalog_path)) as database:
            return dict(database.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall())

    def restore(self, saved: dict[str, str]) -> None:
        with closing(sqlite3.connect(self.settings.catalog_path)) as database, database:
            for name in ("latest", "merged"):
                found = (saved[name], name)
                database.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", found)
        self.spark.catalog.refreshTable(MERGED)
        self.spark.catalog.refreshTable(OURS)

    def fingerprint(self, table: str) -> Row:
        rows = self.spark.table(table).drop(TIME, DIFF, PRODUCER).select(F.xxhash64("*").alias("hash"))
        return rows.agg(F.count("hash"), F.sum(F.col("hash").cast("decimal(38,0)"))).collect()[0]


def measure_latest(
    spark: SparkSession, settings: Settings, folder: Path, *, rows: int, changes: int, runs: int
) -> Iterator[Figure]:
    """Yield how long changes take, from decoded ones on and with decoding, against MERGE INTO of the same changes."""
    bench = _Latest(spark, settings, folder, rows, changes)
    bench.fill()
    saved = bench.save()
    portion = bench.attempt().portion
    sides = {
        "tidemark": bench.ingest,
        "tidemark, decoded": lambda: commit_portion(bench.attempt(portion)),
        "merge": lambda: bench.merge(bench.messages_as_changes()),
        "merge, decoded": lambda: bench.merge(bench.decoded_changes()),
    }
    found: dict[str, Row] = {}

    def check(side: str) -> None:
        found[side] = bench.fingerprint(OURS if side.startswith("tidemark") else MERGED)

    times = alternate(sides, runs, before=lambda: bench.restore(saved), check=check)
    assert len(set(found.values())) == 1, f"the sides left other rows: {found}"
    of = f"{changes} changes of {rows / 1_000_000:g} M keys"
    for suffix, what in ((", decoded", "decoded"), ("", "with decoding")):
        ours, theirs = (f"{side}{suffix}" for side in ("tidemark", "merge"))
        yield Figure(f"{of}, {what}: tidemark", "s", tuple(times[ours]))
        yield Figure(f"{of}, {what}: merge", "s", tuple(times[theirs]))
        one, other = (theirs, times[theirs]), (ours, times[ours])
        yield Figure.ratio(f"{of}, {what}: merge / tidemark", numerator=one, denominator=other, at_least=2)


if __name__ == "__main__":
    sys.exit(run_part("bench.latest", __doc__, measure_latest, rows=ROWS, changes=CHANGES))
