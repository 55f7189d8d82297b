"""What a collection must hold, kept as plain values, and what the target of a sink holds, as any client reads it."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.exceptions import NoSuchTableError

from tests.sinks.foreign_readers import files_of
from tests.sinks.kafka.conftest import Topic
from tidemark.collections.declarations.sink import SinkMode
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.data_files import write_position_deletes, write_rows
from tidemark.iceberg.files.row_positions import as_delete_rows
from tidemark.iceberg.files.stored_rows import StoredRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from tests.support.homes import Home
    from tidemark.collections.declarations.sink import SinkDeclaration
    from tidemark.iceberg.shard.head import ShardHead

# A broker says that a transaction is committed before it tells the readers of each partition; one that a death left
# open stays so.
_MARKED_WITHIN_S = 0.3
Row = tuple[Any, ...]  # the values in the order of the columns, without the NULLs at the end


class Change(NamedTuple):
    row: Row
    time: int
    diff: int


def as_row(values: Iterable[Any]) -> Row:
    """Return a row that stays the same when a column is added."""
    row = tuple(values)
    while row and row[-1] is None:
        row = row[:-1]
    return row


@dataclass
class Facts:
    """One life of a collection: its columns, its rows, and what was committed to it, by the upper of each commit."""

    names: list[str]
    rows: list[Row] = field(default_factory=list)
    commits: list[tuple[int, list[Change], list[Row]]] = field(default_factory=list)  # the last are the rows after it

    def commit(self, upper: int, changes: list[Change], rows: list[Row]) -> None:
        self.rows = rows
        self.commits.append((upper, changes, rows))

    def log(self, loaded: int, upper: int) -> list[Change]:
        """Return what a log holds whose first load was that of the upper ``loaded``, and that came up to ``upper``."""
        first = next(rows for left, _, rows in reversed(self.commits) if left <= loaded)
        later = [change for left, changes, _ in self.commits if loaded < left <= upper for change in changes]
        return [*(Change(row, loaded - 1, 1) for row in first), *later]


def write_correction(head: ShardHead, names: list[str], *, insert: list[Row], retract: list[Row], time: int) -> Batch:
    """Write the files of a correction of rows that an ``id`` tells apart, whatever their columns are called by now."""

    def updates(rows: list[Row], diff: int) -> pa.Table:
        columns = [pa.array([row[place] if place < len(row) else None for row in rows], _type(place))
                   for place in range(len(names))]  # fmt: skip
        own = [pa.repeat(pa.scalar(value, pa.int64()), len(rows)) for value in (time, diff)]
        return pa.table([*columns, *own], names=[*names, "_time", "_diff"])

    stored, gone = StoredRows.in_snapshot(head.table, head.contents), {row[0] for row in retract}
    positions = {
        file.file_path: [
            int(position)
            for placed in stored.scan(file, ["id"])
            for position, id_ in zip(placed.positions, placed.rows.column("id").to_pylist(), strict=True)
            if id_ in gone
        ]
        for file in stored.files
    }
    positions = {path: found for path, found in positions.items() if found}
    table = head.table
    rows = as_delete_rows({path: pa.array(found).to_numpy() for path, found in positions.items()})
    return Batch(
        added=write_rows(table, updates(insert, 1)) if insert else (),
        retracted=write_rows(table, updates(retract, -1)) if retract else (),
        deletes=write_position_deletes(table, rows, stored.by_path) if positions else (),
        pinned_snapshot_id=head.contents.snapshot_id,
        deleted_from=frozenset(positions),
        schema_id=table.schema().schema_id,
    )


def _type(place: int) -> pa.DataType:
    return pa.string() if place else pa.int64()


@dataclass(frozen=True)
class Seen:
    """A target as a client sees it that knows nothing of Tidemark."""

    names: frozenset[str] | None  # of its columns; None where each message has names of its own
    changes: tuple[Change, ...]  # of a mirror: at no time

    @property
    def rows(self) -> Counter[Row]:
        """The contents, or what the changes add up to."""
        found: Counter[Row] = Counter()
        for change in self.changes:
            found[change.row] += change.diff
        return +found


@dataclass
class Reader:
    """Reads targets; one connection to the database serves a whole machine."""

    home: Home
    connection: psycopg.Connection[Any]

    def read(self, sink: SinkDeclaration) -> Seen | None:
        """Return what the target holds; None if nothing is there."""
        to: Any = sink.to
        if to.form == "buffer":
            return self._topic(to, is_mirror=sink.mode is SinkMode.MIRROR)
        table = {"connection": self._database, "path": self._files, "catalog": self._iceberg}[to.form](to)
        if table is None:
            return None
        names = [name for name in table.column_names if name not in {"_time", "_diff"}]
        rows = [as_row(values) for values in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
        if "_diff" not in table.column_names:
            return Seen(frozenset(names), tuple(Change(row, 0, 1) for row in rows))
        times, diffs = table.column("_time").to_pylist(), table.column("_diff").to_pylist()
        return Seen(frozenset(names), tuple(map(Change, rows, times, diffs)))

    def _topic(self, to: Any, *, is_mirror: bool) -> Seen | None:
        parts = urlsplit(to.buffer)
        topic = Topic(parts.netloc, parts.path.removeprefix("/"))
        if not topic.exists():
            return None
        until = time.monotonic() + _MARKED_WITHIN_S
        while not topic.has_nothing_open() and time.monotonic() < until:
            time.sleep(0.01)
        changes = []
        for value in topic.last_values() if is_mirror else [dict(message.value) for message in topic.messages()]:
            at, diff = value.pop("_time", 0), value.pop("_diff", 1)
            changes.append(Change(as_row(value.values()), at, diff))
        return Seen(None, tuple(sorted(changes, key=repr)))

    def _database(self, to: Any) -> pa.Table | None:
        found = self.connection.execute("SELECT to_regclass(%s)", [to.table]).fetchone()
        if found == (None,):
            return None
        cursor = self.connection.execute(f"SELECT * FROM {to.table}")  # type: ignore[arg-type]  # a name of the test
        rows = cursor.fetchall()
        names = [column.name for column in cursor.description or ()]
        return pa.table({name: pa.array([row[place] for row in rows]) for place, name in enumerate(names)})

    def _files(self, to: Any) -> pa.Table | None:
        manifests = sorted(Path(to.path, "_tidemark").glob("manifest-*.json"))
        if not manifests:
            return None
        # Not `manifest.json`, which is one state behind where a run died between the two.
        files = files_of(to.path, json.loads(manifests[-1].read_text(encoding="utf-8")))
        return ds.dataset(files, format="parquet").to_table() if files else None

    def _iceberg(self, to: Any) -> pa.Table | None:
        try:
            return self.home.shards.iceberg.load_table(tuple(to.table.split("."))).scan().to_arrow()
        except NoSuchTableError:
            return None
