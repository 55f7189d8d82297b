"""Whatever happens to the files, the tables and the collection: after each run the collection is its source."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.exploration import draw_seed, is_soak
from tests.support.homes import Home
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE, reconcile_unchanged
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.maintenance.compaction import compact

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

STEPS = 400 if is_soak() else 12
GUARDS = {"max_delete_ratio": 1.0, "allow_empty": True}
COLLECTIONS = ("files", "table", "both", "total")


class Place:
    """A folder of Parquet files, an Iceberg table that others write, and four collections of them."""

    def __init__(self, home: Home, spark: SparkSession, chance: random.Random) -> None:
        self.home, self.spark, self.chance = home, spark, chance
        self.folder = home.folder / "data"
        self.folder.mkdir()
        spark.conf.set("spark.sql.catalog.folders", "org.apache.iceberg.spark.SparkCatalog")
        spark.conf.set("spark.sql.catalog.folders.type", "hadoop")
        spark.conf.set("spark.sql.catalog.folders.warehouse", str(home.folder))
        spark.sql("CREATE TABLE folders.a.lake (k bigint) USING iceberg")
        self.files: dict[str, list[int]] = {}
        self.table: list[int] = []
        self.number = 0
        self.add_file()
        self.insert()
        files = {"format": "parquet", "path": str(self.folder)}
        lake = {"format": "iceberg", "path": str(home.folder / "a" / "lake")}
        union = {
            "inputs": {"a": {"collection": "files"}, "b": lake},
            "sql": "SELECT * FROM a UNION ALL SELECT * FROM b",
        }
        total = {"inputs": {"a": {"collection": "both"}}, "sql": "SELECT count(*) AS k FROM a"}
        sources = dict(zip(COLLECTIONS, (files, lake, union, total), strict=True))
        home.apply(*(home.declaration(name, key=[], guards=GUARDS, source=each) for name, each in sources.items()))

    def wanted(self) -> dict[str, Counter[int]]:
        files, table = Counter(value for rows in self.files.values() for value in rows), Counter(self.table)
        return {"files": files, "table": table, "both": files + table, "total": Counter([(files + table).total()])}

    def write(self, name: str, rows: list[int]) -> None:
        pq.write_table(pa.table({"k": pa.array(rows, pa.int64())}), self.folder / name)
        self.files[name] = rows

    def any_file(self) -> str:
        return self.chance.choice(sorted(self.files))

    # -- what happens ------------------------------------------------------------------------------------------------

    def add_file(self) -> None:
        self.number += 1
        self.write(f"{self.number}.parquet", [self.chance.randrange(9) for _ in range(3)])

    def change_file(self) -> None:
        self.write(self.any_file(), [self.chance.randrange(9) for _ in range(3)])

    def change_file_in_place(self) -> None:
        """Of the same size, with its old time."""
        path = self.folder / self.any_file()
        seen = path.stat()
        self.write(path.name, [value + 1 for value in self.files[path.name]])
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))

    def rewrite_file(self) -> None:
        name = self.any_file()
        self.write(name, self.files[name])

    def move_rows(self) -> None:
        """Give all rows of one file to another one."""
        one, other = self.any_file(), self.any_file()
        if one != other:
            self.write(other, self.files[other] + self.files.pop(one))
            (self.folder / one).unlink()

    def touch(self) -> None:
        (self.folder / self.any_file()).touch()

    def remove_file(self) -> None:
        if len(self.files) > 1:
            name = self.any_file()
            (self.folder / name).unlink()
            del self.files[name]

    def copy_file(self) -> None:
        name = self.any_file()
        self.number += 1
        shutil.copy2(self.folder / name, self.folder / f"{self.number}.parquet")
        self.files[f"{self.number}.parquet"] = self.files[name]

    def insert(self) -> None:
        rows = [self.chance.randrange(9) for _ in range(2)]
        self.spark.sql(f"INSERT INTO folders.a.lake VALUES ({rows[0]}), ({rows[1]})")
        self.table += rows

    def overwrite_table(self) -> None:
        self.table = [self.chance.randrange(9)]
        self.spark.sql(f"INSERT OVERWRITE folders.a.lake VALUES ({self.table[0]})")

    def compact_table(self) -> None:
        options = "map('rewrite-all', 'true')"
        self.spark.sql(f"CALL folders.system.rewrite_data_files(table => 'a.lake', options => {options})")

    def write_foreign_rows(self) -> None:
        table = self.home.shards.iceberg.load_table(("collections", self.chance.choice(COLLECTIONS)))
        table.append(pa.Table.from_pylist([{"k": 77, "_time": 0, "_diff": 1}], schema=arrow_schema(table)))

    def compact(self) -> None:
        compact(Writer.join(self.home.shard(self.chance.choice(COLLECTIONS)), 1))

    def nothing(self) -> None:
        pass

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, str]:
        """Reconcile as the command line does; return how each collection was reconciled."""
        self.home.clock.step(10)
        deployment, declared = self.home.deployment, self.home.registry.read().declarations
        done, left = reconcile_unchanged(deployment, declared, clock=self.home.clock)
        reports = dict(done.collections)
        if left:
            reports |= reconcile_all(self.spark, deployment, left, clock=self.home.clock).collections
        assert [each.error for each in reports.values()] == [None] * len(COLLECTIONS)
        return {name: each.strategy for name, each in reports.items()}

    def stored(self) -> dict[str, Counter[int]]:
        return {name: Counter(row["k"] for row in self.home.user_rows(name)) for name in COLLECTIONS}


HAPPENINGS: tuple[Callable[[Place], None], ...] = (
    Place.add_file, Place.change_file, Place.change_file_in_place, Place.rewrite_file, Place.move_rows, Place.touch,
    Place.remove_file, Place.copy_file, Place.insert, Place.overwrite_table, Place.write_foreign_rows, Place.compact,
    Place.compact_table,
    Place.nothing, Place.nothing,
)  # fmt: skip


def test_after_each_run_every_collection_is_its_source(home: Settings, home_spark: SparkSession, tmp_path: Any) -> None:
    chance = random.Random(draw_seed())  # noqa: S311 - it only chooses what happens
    place = Place(Home(home, tmp_path, "k bigint"), home_spark, chance)
    place.run()
    seen: Counter[str] = Counter()
    for _ in range(STEPS):
        happening = chance.choice(HAPPENINGS)
        happening(place)
        strategies = place.run()
        seen.update(strategies.values())
        assert place.stored() == place.wanted(), happening.__name__
        assert set(place.run().values()) == {SAME_SOURCE}, f"nothing has happened since {happening.__name__}"
    assert seen[SAME_SOURCE] > STEPS / 2
