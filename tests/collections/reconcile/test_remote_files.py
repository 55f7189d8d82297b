"""Files in an object store: a run that finds them unchanged starts no Spark, and one that changed is noticed.

Spark reads a local folder under the name of the bucket, since its client of S3 is not among our jars; Python asks a
store through a real client. Both tell of the same objects.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tests.support.object_store import ObjectStore, reachable_store
from tidemark.collections.reconcile.choosing.same_source import SAME_SOURCE, reconcile_unchanged
from tidemark.collections.reconcile.choosing.size import is_small
from tidemark.collections.reconcile.run import reconcile_all
from tidemark.interval import DAY_MS
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.report import CollectionReport
    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

NEW_YEAR_MS = 1_767_225_600_000  # 2026
_MOUNTS = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
_LOCAL = "org.apache.hadoop.fs.LocalFileSystem"


class Bucket:
    """Objects below ``in/`` of the bucket ``lake``, as Spark and as Python see them."""

    def __init__(self, home: Home, store: ObjectStore, folder: Path) -> None:
        self.home, self.store, self.folder = home, store, folder

    def put(self, name: str, text: str, *, second: int = 0) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, (NEW_YEAR_MS / 1000 + second,) * 2)
        self.store.put("lake", f"in/{name}", len(text), second=second)

    def look(self) -> tuple[dict[str, CollectionReport], list[str]]:
        """Do what a run does before it starts Spark."""
        declared = self.home.registry.read().declarations
        report, left = reconcile_unchanged(self.home.deployment, declared, clock=self.home.clock)
        return report.collections, left


@pytest.fixture
def bucket(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    conf = home_spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.s3a.impl", _MOUNTS)
    conf.set("fs.viewfs.overload.scheme.target.file.impl", _LOCAL)
    conf.set("fs.viewfs.mounttable.lake.link./in", (tmp_path / "in").as_uri())
    conf.set("fs.s3a.impl.disable.cache", "true")
    with reachable_store(monkeypatch) as store:
        installation = Home(home, tmp_path, now_ms=NEW_YEAR_MS + 10 * DAY_MS)
        made = Bucket(installation, store, tmp_path / "in")
        made.put("day one/a.csv", "k,v\n1,one\n")
        made.put("b.csv", "k,v\n2,two\n")
        made.put("_started", "")
        source = {"format": "csv", "path": "s3a://lake/in", "options": {"header": True}, "schema": installation.schema}
        installation.apply(installation.declaration("planes", source=source))
        yield made


def test_unchanged_objects_need_no_spark_and_a_rewritten_one_is_noticed(
    bucket: Bucket, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = bucket.home
    assert bucket.look() == ({}, ["planes"])
    whole = reconcile_all(home_spark, home.deployment, [], clock=home.clock).collections["planes"]
    assert (whole.outcome, whole.inserted, whole.error) == (Outcome.CORRECTED, 2, None)
    done, left = bucket.look()
    assert not left
    assert (done["planes"].outcome, done["planes"].strategy) == (Outcome.UNCHANGED, SAME_SOURCE)
    assert is_small(home.shards, home.settings, home.registry.read().declarations.values())

    bucket.put("b.csv", "k,v\n2,owt\n", second=1)
    assert bucket.look() == ({}, ["planes"])
    changed = reconcile_all(home_spark, home.deployment, [], clock=home.clock).collections["planes"]
    assert (changed.inserted, changed.retracted, changed.error) == (1, 1, None)
    assert home.tuples("planes") == [(1, "one"), (2, "owt")]
    assert bucket.look()[1] == []

    bucket.store.answers = False
    assert bucket.look() == ({}, ["planes"]), "Spark may have another login"
    assert not is_small(home.shards, home.settings, home.registry.read().declarations.values())
    same = reconcile_all(home_spark, home.deployment, [], clock=home.clock).collections["planes"]
    assert same.strategy == SAME_SOURCE
