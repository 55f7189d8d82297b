"""Rows whose statistics pyiceberg cannot make are written without these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat

from tests.iceberg.staging.test_files import event_rows
from tests.support.rows import SCHEMA, local_path
from tidemark.iceberg.files.arrow_values import holds_text
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings


@pytest.mark.parametrize("text", ["a" * 15 + "\ud7fftail", "\ud7ff" * 17, "a" * 15 + "\U0010ffff tail"])
def test_texts_whose_cut_cannot_be_counted_up_are_written(home: Settings, text: str) -> None:
    table = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY).load().table
    name_id = table.schema().find_field("name").field_id
    [file] = write_rows(table, event_rows([(1, text), (2, "b")]))
    assert file.record_count == 2
    assert name_id not in (file.upper_bounds or {}) or "\ud7ff" not in text


def test_rows_are_parquet_whatever_another_tool_has_set(home: Settings) -> None:
    table = Shards.connect(home).create("events", schema=SCHEMA, layout=ShardKind.APPEND_ONLY).load().table
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "avro"})
    [file] = write_rows(table, event_rows([(1, "a")]))
    assert (file.file_format, pq.read_table(local_path(file.file_path)).num_rows) == (FileFormat.PARQUET, 1)


def test_a_nested_text_counts() -> None:
    texts = pa.chunked_array([pa.array([[{"x": "b"}], [{"x": "a\ud7ff"}]])])
    assert holds_text(texts, "\ud7ff")
    assert not holds_text(texts.slice(0, 1), "\ud7ff")
