"""What other processes, and the network, do to a commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from collections.abc import Callable

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
