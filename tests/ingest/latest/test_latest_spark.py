"""Spark reads the latest rows, their past and their changes, and SQL over them is a source like any other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.homes import Home
from tidemark.iceberg.reading import spark as reading
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.report import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

YAML = """
version: 1
collections:
  orders:
    kind: latest
    key: [id]
    schema: "id bigint, name string"
    source: {{buffer: "{buffer}"}}
    delete_when: {{op: d}}
  names:
    kind: differential
    key: [name]
    schema: "name string, orders bigint"
    source:
      inputs: {{o: {{collection: orders}}}}
      sql: "SELECT name, count(*) AS orders FROM o GROUP BY name"
    guards: {{max_delete_ratio: 1.0}}
"""


def test_spark_reads_what_changes_left(home_spark: SparkSession, home: Settings, tmp_path: Path) -> None:
    opened = Home(home, tmp_path, now_ms=1_000_000, spark=home_spark)
    opened.send(0, *(json.dumps({"id": id_, "name": "ab"[id_ % 2]}).encode() for id_ in range(4)))
    opened.declare(YAML.format(buffer=opened.buffer_folder.as_uri()))
    opened.ingest("orders")
    names = opened.registry.get("names")
    assert opened.reconcile(home_spark, names).inserted == 2
    between = opened.upper("orders") - 1
    opened.clock.step(1_000)
    opened.send(0, b'{"id": 0, "op": "d"}', b'{"id": 2, "name": "c"}', b'{"id": 9, "name": "b"}')
    opened.ingest("orders")
    shard = opened.shard("orders")
    assert sorted(map(tuple, reading.read(home_spark, shard).collect())) == [(1, "b"), (2, "c"), (3, "b"), (9, "b")]
    past = reading.read(home_spark, shard, between)
    assert sorted(map(tuple, past.collect())) == [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    found = reading.changes(home_spark, shard, between + 1).select("id", "name", "_diff").collect()
    assert sorted(map(tuple, found)) == [(0, "a", -1), (2, "a", -1), (2, "c", 1), (9, "b", 1)]
    assert check_invariant(shard, spark=home_spark).holds
    report = opened.reconcile(home_spark, names)
    assert (report.outcome, report.inserted, report.retracted) == (Outcome.CORRECTED, 2, 2)
    assert opened.tuples("names") == [("b", 3), ("c", 1)]
