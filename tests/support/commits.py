"""What other processes, and the network, do to a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate
from sqlalchemy.exc import OperationalError

from tidemark.iceberg.commit.publisher import set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.files.data_files import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    import pytest

    from tidemark.iceberg.shard.shard import Shard


def act_before_commit(shard: Shard, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let another process ``act`` once: after the next commit was decided, and before it reaches the catalog."""
    real = shard.iceberg.commit_table

    def commit_table(*arguments: object) -> object:
        monkeypatch.setattr(shard.iceberg, "commit_table", real)
        act()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shard.iceberg, "commit_table", commit_table)


def lose_answer(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next commit land, and its connection break before the answer."""
    real = shard.iceberg.commit_table

    def commit_table(*arguments: object) -> object:
        monkeypatch.setattr(shard.iceberg, "commit_table", real)
        real(*arguments)  # type: ignore[arg-type]
        raise OperationalError("UPDATE", {}, ConnectionError("server closed the connection"))

    monkeypatch.setattr(shard.iceberg, "commit_table", commit_table)


def grow_from_main(shard: Shard, branch: str, rows: pa.Table, summary: dict[str, str] | None = None) -> None:
    """Commit to ``branch`` as Iceberg's Java library does for a Spark driver that still writes after its removal.

    Iceberg 1.12.0 makes the branch anew, on top of main's head. A branch that is there gets one more snapshot.
    """
    head = shard.load()
    parent = head.table.metadata.snapshot_by_name(branch) or head.main
    change = SnapshotChange(
        operation=Operation.APPEND, added=tuple(write_rows(head.table, rows)), summary=summary or {}
    )
    snapshot = SnapshotBuilder(head.table).build(parent, change)
    shard.iceberg.commit_table(head.table, (), (AddSnapshotUpdate(snapshot=snapshot), set_ref(branch, snapshot)))
