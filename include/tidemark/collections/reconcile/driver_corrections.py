"""Corrections that fit into the driver: held as Arrow, counted there, and written without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile

from tidemark.collections.digest.digest import Digest
from tidemark.collections.digest.row_layout import NEW, OLD, RowShape
from tidemark.collections.reconcile.strategy import FINEST
from tidemark.errors import InputsGone
from tidemark.iceberg.commit.batch import Batch
from tidemark.iceberg.files.arrow_values import to_rows, with_constants
from tidemark.iceberg.files.data_files import arrow_schema, write_position_deletes, write_rows
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead

if TYPE_CHECKING:
    from tidemark.collections.reconcile.pinned_snapshot import Pinned
    from tidemark.iceberg.commit.writer import Writer


@dataclass(frozen=True)
class SmallCorrections:
    """Rows to insert (``new``) and rows to retract (``old``).

    Both have columns numbered from ``"0"``, ``hash`` and ``position`` (see ``RowShape``); ``old`` also has ``file``
    (the hash of the path) and ``pos``.
    """

    new: pa.Table
    old: pa.Table
    shape: RowShape
    inserts_one_key_twice: bool = False  # whether two source rows share a key, or, far less likely, the hash of a key

    @classmethod
    def of_changes(cls, changes: pa.Table, shape: RowShape) -> SmallCorrections:
        """Split changes with hashes (see ``spark_diff``) into both sides."""
        new = _side(changes.filter(changes.column("inserts")), shape, NEW)
        old = _side(changes.filter(pc.is_valid(changes.column("file"))), shape, OLD, "file", "pos")
        return cls(new=new, old=old, shape=shape, inserts_one_key_twice=_repeats(_longs(new, "position")))

    @property
    def inserted(self) -> int:
        return int(self.new.num_rows)

    @property
    def retracted(self) -> int:
        return int(self.old.num_rows)

    @property
    def updated(self) -> int:
        """The number of keys whose row changed; 0 for a multiset."""
        return int(self._updated_old.sum())

    def digest(self, bucket_count: int) -> Digest:
        """Return the digest to add to the digest of the stored rows: of what is wanted, which is what is written.

        ``iceberg/files/arrow_projection.py`` compares every value on its way into a file.
        """
        added, removed = (
            Digest.of_hashes(_longs(rows, "position"), _longs(rows, "hash"), bucket_count, diff=diff)
            for rows, diff in ((self.new, 1), (self.old, -1))
        )
        return added + removed

    def count_values(self) -> tuple[list[int], list[int]]:
        """Return how many inserted, and how many retracted, rows have a value in each column."""
        came, went = (
            [rows.num_rows - rows.column(str(n)).null_count for n in range(self.shape.width)]
            for rows in (self.new, self.old)
        )
        return came, went

    def samples(self, limit: int) -> dict[str, list[dict[str, object]]]:
        """Return up to ``limit`` inserted, retracted and updated rows (both sides of a changed key)."""
        updated = self.old.filter(pa.array(self._updated_old)).slice(0, limit)
        partners = pc.index_in(updated.column("position"), value_set=self.new.column("position").combine_chunks())
        pairs = zip(to_rows(self._rows(updated)), to_rows(self._rows(self.new.take(partners))), strict=True)
        return {
            "inserted": to_rows(self._rows(self.new.filter(pa.array(~self._updated_new)).slice(0, limit))),
            "retracted": to_rows(self._rows(self.old.filter(pa.array(~self._updated_old)).slice(0, limit))),
            "updated": [{"before": before, "after": after} for before, after in pairs],
        }

    def write(
        self,
        writer: Writer,  # noqa: ARG002  the signature of LargeCorrections
        pinned: Pinned,
        time: int,
        *,
        cluster_by: Sequence[str] = (),
    ) -> Batch:
        """Write the files of a batch at ``time``, inserted rows sorted by ``cluster_by``; nothing becomes visible."""
        head = pinned.head
        deletes: tuple[DataFile, ...] = ()
        deleted_from = frozenset[str]()
        if self.retracted:
            positions = self._positions(pinned)
            deletes = write_position_deletes(head.table, positions, pinned.data_files)
            deleted_from = frozenset(positions.column("file_path").unique().to_pylist())
        return Batch(
            added=write_rows(head.table, self._updates(head, self.new, time, 1), cluster_by=cluster_by),
            retracted=write_rows(head.table, self._updates(head, self.old, time, -1)),
            deletes=deletes,
            pinned_snapshot_id=head.contents.snapshot_id,
            deleted_from=deleted_from,
            schema_id=head.table.schema().schema_id,
        )

    @cached_property
    def _updated_old(self) -> NDArray[np.bool_]:
        """Whether a new row has the key of an old row; one value per old row."""
        return self._shared_keys(self.old, self.new)

    @cached_property
    def _updated_new(self) -> NDArray[np.bool_]:
        return self._shared_keys(self.new, self.old)

    def _shared_keys(self, side: pa.Table, other: pa.Table) -> NDArray[np.bool_]:
        if not self.shape.is_keyed:
            return np.zeros(side.num_rows, dtype=bool)
        return np.isin(_longs(side, "position"), _longs(other, "position"))

    def _positions(self, pinned: Pinned) -> pa.Table:
        """Return the places of the retracted rows: ``file_path`` and ``pos``."""
        names = pinned.file_names()
        indexes = pc.index_in(self.old.column("file").combine_chunks(), value_set=names.column("file").combine_chunks())
        if indexes.null_count:
            raise InputsGone("a row to be retracted lies in a file that the pinned snapshot does not have")
        return pa.table({"file_path": names.column("_file").take(indexes), "pos": self.old.column("pos")})

    def _rows(self, side: pa.Table) -> pa.Table:
        names = self.shape.schema.names
        return side.select([str(n) for n in range(len(names))]).rename_columns(names)

    def _updates(self, head: ShardHead, side: pa.Table, time: int, diff: int) -> pa.Table:
        rows = with_constants(self._rows(side), ((TIME, time), (DIFF, diff)))
        return rows.select(arrow_schema(head.table).names)


def compare_candidates(candidates: pa.Table, shape: RowShape) -> SmallCorrections:
    """Return the net difference between both sides of ``candidates`` (see ``spark_diff.candidates``).

    Two independent 64-bit hashes identify a row (of a keyed row: hashes of the key and of the whole row), so the result
    is right for keyed rows and for multisets. Of equal stored copies the youngest are retracted.
    """
    was_old = np.asarray(pc.is_valid(candidates.column("file")))
    doubtful = unsettled(_longs(candidates, "position"), _longs(candidates, "hash"), was_old)
    candidates = candidates.filter(pa.array(doubtful))
    is_old = np.asarray(pc.is_valid(candidates.column("file")))
    positions, hashes = _longs(candidates, "position"), _longs(candidates, "hash")
    times = np.asarray(candidates.column("time").fill_null(0).to_numpy(), dtype=np.int64)
    order = np.lexsort((times, is_old, hashes, positions))  # equal rows together: new ones, then old ones by age
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (np.diff(positions[order]) != 0) | (np.diff(hashes[order]) != 0)
    group = np.cumsum(starts) - 1
    olds = np.bincount(group, weights=is_old[order]).astype(np.int64) if len(order) else np.zeros(0, np.int64)
    sizes = np.bincount(group)
    first = np.flatnonzero(starts)
    rank = np.arange(len(order)) - first[group]  # among the equal rows, new ones first
    news = (sizes - olds)[group]
    sorted_old = is_old[order]
    kept = np.where(sorted_old, rank - news >= news, rank >= olds[group])
    changed = order[kept]
    columns = [str(n) for n in range(shape.width)]
    new = candidates.select([*columns, "hash", "position"]).take(pa.array(changed[~is_old[changed]]))
    old = candidates.select([*columns, "hash", "position", "file", "pos"]).take(pa.array(changed[is_old[changed]]))
    return SmallCorrections(
        new=new, old=old, shape=shape, inserts_one_key_twice=shape.is_keyed and _repeats(positions[~is_old])
    )


def unsettled(positions: NDArray[np.int64], hashes: NDArray[np.int64], is_old: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows lie in a bucket where both sides differ, of a digest with more buckets than rows.

    Most candidates are equal on both sides, and sorting them all would take longer than to hash them. The bits that
    choose the bucket are others than those that made the rows candidates.
    """
    buckets = (positions >> (FINEST.bit_length() - 1)) & ((1 << len(positions).bit_length()) - 1)
    net = np.zeros(1 << len(positions).bit_length(), dtype=np.int64)
    np.add.at(net, buckets, np.where(is_old, -hashes, hashes))
    differs: NDArray[np.bool_] = net[buckets] != 0
    return differs


def _side(changes: pa.Table, shape: RowShape, prefix: str, *places: str) -> pa.Table:
    columns = [f"{prefix}{n}" for n in range(shape.width)]
    hashes = [f"{prefix}hash", f"{prefix}position"]
    names = [*(str(n) for n in range(shape.width)), "hash", "position", *places]
    return changes.select([*columns, *hashes, *places]).rename_columns(names)


def _repeats(values: NDArray[np.int64]) -> bool:
    return len(np.unique(values)) < len(values)


def _longs(table: pa.Table, name: str) -> NDArray[np.int64]:
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)
