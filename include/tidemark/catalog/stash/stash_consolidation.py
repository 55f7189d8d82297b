"""Consolidates a stash beside the writer: idempotent and unfenced, because "not consolidated yet" is never wrong."""

from __future__ import annotations

import logging
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from tidemark.catalog.stash.connection import Conflict, LostConnection, MissingTable
from tidemark.errors import Unreachable
from tidemark.fail_points import fail_point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidemark.catalog.stash.connection import StashConnection

log = logging.getLogger(__name__)
FAIL_POINTS = ("stash.before-consolidation",)
CLOSING_S = 5.0  # what is not done by then is done by a later writer


def consolidate(connection: StashConnection, collection_id: int) -> None:
    """Sum up the updates that no reader can tell apart any more; drop all if the since is EMPTY.

    Raises:
        LostConnection, Conflict, MissingTable: As the connection says; nothing was changed then.
    """
    try:
        connection.begin(write=False)
        found = connection.query("SELECT since FROM sinces WHERE collection_id = ?", [collection_id])
        connection.commit()
        if not found:
            return
        fail_point("stash.before-consolidation")
        if found[0][0] is not None:
            # The since may have moved on meanwhile: what is at or below this one is still not told apart.
            connection.consolidate(collection_id, found[0][0])
            return
        connection.begin(write=True)
        connection.execute("DELETE FROM data WHERE collection_id = ?", [collection_id])
        connection.commit()
    finally:
        connection.rollback()


class Consolidator:
    """A thread with a connection of its own, started by the first request."""

    def __init__(self, connection: StashConnection) -> None:
        self._connection = connection
        self._requests: SimpleQueue[set[int] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def request(self, collection_ids: Iterable[int]) -> None:
        """Have these collections consolidated some time soon; returns at once."""
        wanted = set(collection_ids)
        if not wanted:
            return
        self._requests.put(wanted)
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._work, name="stash-consolidation", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Finish what was requested, but wait no longer than ``CLOSING_S`` for it."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSING_S)
            self._thread = None

    def _work(self) -> None:
        try:
            while (wanted := self._requests.get()) is not None:
                for collection_id in wanted:
                    self._consolidate(collection_id)
        finally:
            self._connection.close()

    def _consolidate(self, collection_id: int) -> None:
        try:
            consolidate(self._connection, collection_id)
        except (LostConnection, Conflict, MissingTable, Unreachable) as error:
            log.info("collection %s of %s is consolidated later: %s", collection_id, self._connection.where, error)
