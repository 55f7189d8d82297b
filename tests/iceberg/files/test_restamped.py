"""Staged rows written with another time: everything else stays as it was, whatever was NULL, in pieces of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.iceberg.files.test_arrow_projection import COLUMNS, NAMES, values
from tidemark.collections.schema.convert import to_iceberg
from tidemark.errors import DamagedBatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files import restamped
from tidemark.iceberg.files.data_files import arrow_schema, write_rows
from tidemark.iceberg.files.restamped import restamp
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

ROWS = 12


@pytest.fixture
def shard(home: Settings) -> Shard:
    return Shards.connect(home).create("s", schema=to_iceberg(COLUMNS))


def written(shard: Shard, time: int) -> tuple[DataFile, ...]:
    table = shard.load().table
    schema = arrow_schema(table)
    nested = {name: [*values(schema.field(name).type), *[None] * ROWS][:ROWS] for name in NAMES}
    system = {"_time": [time] * ROWS, "_diff": [1] * ROWS}
    return write_rows(table, pa.table({**nested, **system}, schema=schema))


@pytest.mark.parametrize("piece_bytes", [1, restamped.PIECE_BYTES])
def test_rows_keep_everything_but_their_time(shard: Shard, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(restamped, "PIECE_BYTES", piece_bytes)
    old = [*written(shard, 3), *written(shard, 4)]
    files = restamp(shard.load().table, old, time=9)
    assert len(files) == (2 if piece_bytes == 1 else 1)
    Writer.join(shard, 1).publish(Batch(added=files), lower=0, new_upper=10)
    rows = read_arrow(shard, with_time=True)
    assert set(rows.column("_time").to_pylist()) == {9}
    for name in NAMES:
        expected = [*values(rows.schema.field(name).type), *[None] * ROWS][:ROWS] * 2
        assert sorted(map(repr, rows.column(name).to_pylist())) == sorted(map(repr, expected)), name


def test_no_rows_are_no_files(shard: Shard) -> None:
    assert restamp(shard.load().table, [], time=9) == ()


def test_rows_that_get_lost_on_the_way_are_noticed(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written(shard, 3)
    monkeypatch.setattr(restamped, "write_rows", lambda *_: ())
    with pytest.raises(DamagedBatch, match="hold 0 rows, not the 12"):
        restamp(shard.load().table, files, time=9)
