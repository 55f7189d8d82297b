"""One fresh look at a shard: its table, its refs and its state, all from the same metadata."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tidemark.errors import CorruptState
from tidemark.iceberg.shard.branch_names import STAGED
from tidemark.iceberg.shard.foreign_commits import ForeignCommits, count_rows, find_foreign_commits
from tidemark.iceberg.shard.state import ShardKind, ShardState
from tidemark.iceberg.shard.state_reader import COLLECTIONS

MAIN = "main"
UPDATES = "updates"
# Every own commit moves these tags to its snapshots, so that no foreign expiry can take our last state away.
OWN_MAIN = "tidemark-main"
OWN_UPDATES = "tidemark-updates"
# The tag of the rows that are accepted and not persisted, of a collection that shows persisted ones alone.
OPEN = "tidemark-open"
OPEN_ID = "tidemark.open"  # the table property with the id of that snapshot, which tells when the tag is lost
HOLD_TAG = "hold-"  # and the reader's name: what a hold needs outlives a foreign expiry too


def _snapshot(table: Table, ref: str, shard: str) -> Snapshot:
    snapshot = table.metadata.snapshot_by_name(ref)
    if snapshot is None:
        raise CorruptState(
            f"shard {shard!r} lacks its ref {ref!r}: it was removed by hand",
            hint=f"run `tidemark repair {shard}`, which says what it would put back"
            if table.name()[0] == COLLECTIONS
            else f"set {ref!r} back to the snapshot with the largest tidemark.upper",
        )
    return snapshot


@dataclass(frozen=True, slots=True)
class ShardHead:
    """A shard at one instant. Reads and corrections start from ``contents``; commits require ``main`` unmoved.

    ``updates`` is the change log without foreign commits; None but for differential shards.
    """

    table: Table
    state: ShardState
    main: Snapshot
    own: Snapshot
    updates: Snapshot | None
    foreign: ForeignCommits | None
    foreign_updates: ForeignCommits | None

    @classmethod
    def of(cls, table: Table, *, shard: str) -> ShardHead:
        """Return the head in loaded metadata. Raises ``CorruptState`` if a ref is missing that all our commits set."""
        metadata = table.metadata
        state = ShardState.parse(metadata.properties, shard=shard)
        main, own = _snapshot(table, MAIN, shard), _snapshot(table, OWN_MAIN, shard)
        updates = foreign_updates = None
        if state.layout is ShardKind.DIFFERENTIAL:
            updates, own_updates = _snapshot(table, UPDATES, shard), _snapshot(table, OWN_UPDATES, shard)
            foreign_updates = find_foreign_commits(table.io, metadata, updates, own_updates)
            updates = own_updates if foreign_updates else updates
        if OPEN_ID in metadata.properties:
            _snapshot(table, OPEN, shard)
        return cls(
            table=table,
            state=state,
            main=main,
            own=own,
            updates=updates,
            foreign=find_foreign_commits(table.io, metadata, main, own),
            foreign_updates=foreign_updates,
        )

    @property
    def contents(self) -> Snapshot:
        """The snapshot with exactly our rows: main, or, on a differential shard, our last one below foreign commits.

        On an append-only shard and a log foreign appends are valid, so the contents are always main.
        """
        return self.own if self.foreign and self.state.layout is ShardKind.DIFFERENTIAL else self.main

    @property
    def is_of_last_commit(self) -> bool:
        """Whether our last snapshot is that of our last commit; not if a repair found another one in its place."""
        return self.own.summary is not None and self.own.summary["tidemark.commit-id"] == self.state.commit_id

    @property
    def open(self) -> Snapshot | None:
        """The snapshot with the accepted rows that main does not show yet; None if there never were such."""
        return self.table.metadata.snapshot_by_name(OPEN)

    @property
    def open_rows(self) -> int:
        """The rows that wait on the tag, by the summary."""
        return 0 if self.open is None else count_rows(self.open)

    @property
    def row_count(self) -> int:
        """The rows by the summary: too few where a rewrite by another tool left delete files that delete nothing."""
        return max(0, count_rows(self.contents))

    @property
    def file_count(self) -> int:
        """The number of the files of the contents, by the summary."""
        summary = self.contents.summary
        names = ("total-data-files", "total-delete-files")
        return 0 if summary is None else sum(int(summary[name] or 0) for name in names)

    @property
    def size_bytes(self) -> int:
        """The bytes of the files of the contents, by the summary."""
        summary = self.contents.summary
        return 0 if summary is None else int(summary["total-files-size"] or 0)

    @property
    def oldest_ms(self) -> int:
        """When the oldest snapshot that is kept was made, in ms since the Unix epoch."""
        return min(snapshot.timestamp_ms for snapshot in self.table.metadata.snapshots)

    @property
    def is_empty(self) -> bool:
        """Whether no data file holds a row, deleted or not; unlike ``row_count`` it does not depend on delete files."""
        summary = self.contents.summary
        return summary is not None and summary["total-records"] == "0"

    @property
    def staged_branches(self) -> dict[str, int]:
        """Staging branches and the snapshot each points at."""
        return {name: ref.snapshot_id for name, ref in self.table.metadata.refs.items() if name.startswith(STAGED)}

    def own_commit(self, commit_id: str) -> Snapshot | None:
        """Return the snapshot of main of the commit ``commit_id``; None if the commit has not landed."""
        for snapshot in self.table.metadata.snapshots:  # in order of addition: main comes before updates
            if snapshot.summary is not None and snapshot.summary["tidemark.commit-id"] == commit_id:
                return snapshot
        return None
