"""Commits that leave main and updates where they are: staging branches made or removed, snapshots expired."""

from __future__ import annotations

import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pyiceberg.exceptions import CommitFailedException
from sqlalchemy.exc import SQLAlchemyError

from tidemark.errors import ConflictsUnsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyiceberg.table import Table
    from pyiceberg.table.update import TableUpdate, ValidatableTableRequirement

    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard

    Change = tuple[tuple[ValidatableTableRequirement, ...], tuple[TableUpdate, ...]]

log = logging.getLogger(__name__)

ATTEMPTS = 12
_BACKOFF_S = 0.02


def commit_beside(
    shard: Shard,
    decide: Callable[[ShardHead, int], Change | None],
    *,
    what: str,
    written: list[str] | None = None,
) -> None:
    """Commit what ``decide`` says about a fresh head; on a conflict load and ask again, a bounded number of times.

    An unknown outcome is treated like a conflict: what is decided from the head that is then found does nothing twice.

    Args:
        shard: The shard whose table is changed.
        decide: Gets the fresh head and the number of the attempt; returns requirements and updates, or None when
            there is nothing to do (any more).
        what: For the error message.
        written: A list to which ``decide`` adds files that only its last proposal needs; deleted when that one lost.

    Raises:
        ConflictsUnsettled: If other commits kept winning.
        Unreachable: If the catalog does not answer.
    """
    failure: Exception | None = None
    for attempt in range(1, ATTEMPTS + 1):
        head = shard.load()
        change = decide(head, attempt)
        if change is None:
            return
        try:
            shard.iceberg.commit_table(head.table, *change)  # type: ignore[arg-type]  # our own requirements too
        except CommitFailedException as error:
            failure = error
            delete_files(head.table, written or [])
        except SQLAlchemyError as error:
            failure = error
            log.warning("the outcome of a commit to %s is unknown: %s", shard.name, type(error).__name__)
        else:
            return
        if written is not None:
            written.clear()
        time.sleep(random.uniform(0.5, 1.5) * _BACKOFF_S * 2 ** min(attempt, 6))  # noqa: S311  # jitter, no secret
    raise ConflictsUnsettled(f"{what} of {shard.name!r} kept losing to other commits", hint="run it again") from failure


def delete_files(table: Table, paths: Iterable[str]) -> int:
    """Delete files that nothing refers to, and return how many; what cannot go now is left to orphan removal."""
    deleted = 0
    for path in paths:
        with suppress(OSError):
            table.io.delete(path)
            deleted += 1
    return deleted
