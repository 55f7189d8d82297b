"""Manifests are read as pyiceberg alone reads them, and no schema is understood twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.avro import file as avro_file
from pyiceberg.avro import resolver
from pyiceberg.avro.file import AvroFileHeader
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from tests.support.rows import SCHEMA, correction
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files import avro_schemas
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


def correct(home: Settings, name: str, *, buckets: int) -> Shard:
    shard = Shards.connect(home).create(name, schema=SCHEMA, key=["id"], buckets=buckets)
    Writer.join(shard, 1).publish(correction(shard.load(), insert=[(1, "a")], time=0), lower=0, new_upper=1)
    return shard


def read_all(shard: Shard) -> list[object]:
    """Return what the manifest list and the manifests say."""
    head = shard.load()
    manifests = head.main.manifests(head.table.io)
    return [*manifests, *(entry for each in manifests for entry in each.fetch_manifest_entry(head.table.io))]


def test_kept_schemas_read_what_pyiceberg_reads(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [correct(home, name, buckets=buckets) for name, buckets in (("plain", 1), ("bucketed", 4))]
    kept = [read_all(shard) for shard in shards for _ in range(2)]
    monkeypatch.setattr(AvroFileHeader, "get_schema", avro_schemas.GET_SCHEMA)
    for module in (avro_file, resolver):
        monkeypatch.setattr(module, "resolve_reader", avro_schemas.RESOLVE_READER)
    assert kept == [read_all(shard) for shard in shards for _ in range(2)]


def test_no_schema_is_understood_twice(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (correct(home, name, buckets=1) for name in ("first", "second"))
    read_all(first)
    monkeypatch.setattr(AvroSchemaConversion, "avro_to_iceberg", pytest.fail)
    monkeypatch.setattr(avro_schemas, "RESOLVE_READER", pytest.fail)
    assert read_all(second)
