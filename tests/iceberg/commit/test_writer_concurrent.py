"""Four processes, 160 compare-and-appends on one shard: none lost, none doubled, uppers strictly increase."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from tests.support.rows import SCHEMA, change_log, contents, updates_table
from tidemark.errors import UpperMismatch
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.iceberg.shard.shard import Shard

PROCESSES, APPENDS = 4, 40


def append_many(environ: dict[str, str], process: int) -> list[int]:
    """Append ``APPENDS`` rows, one commit each, taking the next upper after each mismatch; return the new uppers."""
    shard = Shards.connect(Settings.load(environ)).open("contended")
    writer = Writer.join(shard, 1)
    uppers = []
    for number in range(APPENDS):
        head = shard.load()
        upper = head.state.upper
        while True:
            assert isinstance(upper, int)
            row = (process * APPENDS + number, f"process {process}")
            batch = Batch(added=write_rows(head.table, updates_table([row], time=upper, diff=1)))
            try:
                writer.publish(batch, lower=upper, new_upper=upper + 1)
            except UpperMismatch as mismatch:
                upper = mismatch.actual
            else:
                uppers.append(upper + 1)
                break
    return uppers


def hammer(shard: Shard, environ: dict[str, str]) -> None:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        uppers = list(pool.map(append_many, [environ] * PROCESSES, range(PROCESSES)))
    head = shard.load()
    assert contents(head) == Counter((n, f"process {n // APPENDS}") for n in range(PROCESSES * APPENDS))
    assert sorted(upper for mine in uppers for upper in mine) == list(range(1, PROCESSES * APPENDS + 1))
    assert all(mine == sorted(mine) for mine in uppers)
    assert set(change_log(head).values()) == {1}
    assert head.state.upper == PROCESSES * APPENDS


def _environ(settings: Settings) -> dict[str, str]:
    return {
        "TIDEMARK_HOME": str(settings.home),
        "TIDEMARK_CATALOG_URI": settings.catalog_uri.reveal(),
        "TIDEMARK_WAREHOUSE": settings.warehouse,
    }


@pytest.mark.slow
def test_contended_appends_on_sqlite(home: Settings) -> None:
    shard = Shards.connect(home).create("contended", schema=SCHEMA)
    Writer.raise_token(shard, 1)
    hammer(shard, _environ(home))


@pytest.mark.postgres
def test_contended_appends_on_postgres(postgres_home: Settings) -> None:
    shard = Shards.connect(postgres_home).create("contended", schema=SCHEMA)
    Writer.raise_token(shard, 1)
    hammer(shard, _environ(postgres_home))
