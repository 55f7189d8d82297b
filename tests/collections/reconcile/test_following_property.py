"""Whatever happens to an Iceberg source: what a run finds in the changed files is what a full run finds in all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tests.support.lakes import SCHEMA, Lake
from tests.support.twins import compact_collections, die, write_elsewhere
from tidemark.collections.reconcile.strategy import Method
from tidemark.collections.sources.followed import iceberg_changes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

KEYS = st.integers(0, 11)
MODES = (
    ("copy-on-write", 2, ""),
    ("merge-on-read", 2, ""),
    ("merge-on-read", 3, ""),
    ("merge-on-read", 2, "PARTITIONED BY (bucket(2, k))"),
)
LEAST_SHARE = 0.4  # of the runs that find the changes in the files
CONDITIONS = ("true", "k % 3 <> 1", "v <> 'b'")


def insert(lake: Lake, data: st.DataObject) -> None:
    present = {row[0] for row in lake.wanted()} if lake.declared["key"] else set()
    keys = data.draw(st.lists(KEYS, min_size=1, max_size=4, unique=bool(lake.declared["key"])), label="keys")
    if rows := [(key, data.draw(st.sampled_from("abc"))) for key in keys if key not in present]:
        lake.insert(*rows)


def insert_copies(lake: Lake, data: st.DataObject) -> None:
    """Duplicate keys, if there is a key."""
    lake.sql(f"INSERT INTO LAKE (k, v) SELECT k, v FROM LAKE WHERE k = {data.draw(KEYS)}")


def update(lake: Lake, data: st.DataObject) -> None:
    lake.sql(f"UPDATE LAKE SET v = '{data.draw(st.sampled_from('abc'))}' WHERE k >= {data.draw(KEYS)}")


def swap(lake: Lake, data: st.DataObject) -> None:
    """Move rows to other keys."""
    lake.sql(f"UPDATE LAKE SET k = 11 - k WHERE k IN ({data.draw(KEYS)}, 11 - {data.draw(KEYS)})")


def rewrite_rows(lake: Lake, data: st.DataObject) -> None:
    lake.sql(f"UPDATE LAKE SET v = v WHERE k < {data.draw(KEYS)}")


def delete(lake: Lake, data: st.DataObject) -> None:
    lake.sql(f"DELETE FROM LAKE WHERE k % 4 = {data.draw(st.integers(0, 3))}")


def delete_equal(lake: Lake, data: st.DataObject) -> None:
    if not lake.is_partitioned:
        lake.delete_equal(data.draw(KEYS), data.draw(KEYS))


def overwrite(lake: Lake, data: st.DataObject) -> None:
    lake.sql(f"INSERT OVERWRITE LAKE (k, v) VALUES ({data.draw(KEYS)}, 'a')")


def rewrite_deletes(lake: Lake, data: st.DataObject) -> None:
    lake.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")


def rewrite_manifests(lake: Lake, data: st.DataObject) -> None:
    lake.call("rewrite_manifests")


def compact(lake: Lake, data: st.DataObject) -> None:
    lake.compact()


def expire(lake: Lake, data: st.DataObject) -> None:
    lake.expire()


def say_more(lake: Lake, data: st.DataObject) -> None:
    lake.sql(f"ALTER TABLE LAKE ALTER COLUMN v COMMENT '{len(lake.snapshots())}'")


def add_column(lake: Lake, data: st.DataObject) -> None:
    """Both collections leave the column out if they declare theirs, and else refuse the table."""
    lake.sql("ALTER TABLE LAKE ADD COLUMN w int FIRST")
    commit(lake, data)
    lake.compare("there is one more column")
    lake.sql("ALTER TABLE LAKE DROP COLUMN w")
    commit(lake, data)


def rename_column(lake: Lake, data: st.DataObject) -> None:
    lake.sql("ALTER TABLE LAKE RENAME COLUMN v TO u")
    lake.commit()
    lake.compare("a column is gone")
    lake.sql("ALTER TABLE LAKE RENAME COLUMN u TO v")
    commit(lake, data)


def lose_values(lake: Lake, data: st.DataObject) -> None:
    """Put another column in the place of one: all rows change, and no file does."""
    lake.sql("ALTER TABLE LAKE DROP COLUMN v", "ALTER TABLE LAKE ADD COLUMN v string")
    commit(lake, data)


def move_column(lake: Lake, data: st.DataObject) -> None:
    lake.sql("ALTER TABLE LAKE ALTER COLUMN v FIRST")
    commit(lake, data)


def widen_column(lake: Lake, data: st.DataObject) -> None:
    lake.sql("ALTER TABLE LAKE ALTER COLUMN k TYPE bigint")
    commit(lake, data)


def commit(lake: Lake, data: st.DataObject) -> None:
    """Let other columns count at once, or with what happens next."""
    if data.draw(st.booleans(), label="commits"):
        lake.commit()


def go_anywhere(lake: Lake, data: st.DataObject) -> None:
    """Roll back, or to a snapshot that is no ancestor."""
    lake.set_snapshot(data.draw(st.sampled_from(lake.snapshots())))


HAPPENINGS: tuple[Callable[[Lake, st.DataObject], None], ...] = (
    insert, update, die, delete, compact, swap, delete_equal, rewrite_rows, lose_values, insert_copies, overwrite, die,
    go_anywhere, write_elsewhere, rewrite_deletes, rewrite_manifests, expire, say_more, add_column, rename_column,
    move_column, widen_column, compact_collections, insert, update, go_anywhere,
)  # fmt: skip


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
def test_the_changed_files_tell_what_all_rows_tell(
    home: Settings, home_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: list[str]
) -> None:
    monkeypatch.setattr(iceberg_changes, "MOST_SHARE", 100.0)  # of tables that small, most of the bytes change
    strategies = Counter[str]()

    @explore(6)
    @given(data=st.data())
    def live(data: st.DataObject) -> None:
        mode, version, partitioned = data.draw(st.sampled_from(MODES), label="table")
        source = {"where": data.draw(st.sampled_from(CONDITIONS), label="where")}
        declared = {"schema": SCHEMA} if data.draw(st.booleans(), label="declares columns") else {}
        lake = Lake(
            home,
            home_spark,
            tmp_path,
            mode=mode,
            version=version,
            partitioned=partitioned,
            columns=data.draw(st.sampled_from(["k bigint, v string", "k int, v string"]), label="columns"),
            stored=SCHEMA,
            key=key,
            source=source,
            **declared,
        )
        lake.insert(*((number, "a") for number in range(0, 12, 2)))
        lake.insert(*((number, "b") for number in range(1, 6, 2)))
        lake.compare("the beginning")
        strategies.update(lake.live_through(data, HAPPENINGS, rounds=6))

    live()
    assert strategies[Method.CHANGED_FILES] > strategies.total() * LEAST_SHARE, strategies
