"""One process's place behind the leader of the catalog: the process reads and changes the catalog under one epoch.

No handle stays open between two calls: a run of hours would hold a connection for two reads. The process only remembers
the first epoch that it saw. At any other epoch the process is fenced, as an open handle would be.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from tidemark.catalog.back_end import open_to_read
from tidemark.catalog.items.data_versions import check_generation
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.opening.truth import TruthHead, find_truth
from tidemark.errors import Fenced, NotLed
from tidemark.iceberg.shard.token import Token

R = TypeVar("R")


class Membership:
    """Follows the leader; leads only on request, or if the catalog never had a leader."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._epoch: int | None = None  # under which this process works; None before the first look

    @property
    def generation(self) -> int:
        return self._catalog.ends.generation

    def look(self) -> TruthHead | None:
        """Return the head of the truth, led or not; None if the catalog never had a leader.

        Raises:
            FencedByGeneration: If a newer deployment opened it.
            FencedByEpoch: If somebody opened the catalog since the first look of this process.
            Others as ``find_truth``.
        """
        truth = find_truth(self._catalog.ends)
        if truth is None or not truth.was_led:
            return None
        check_generation(truth.head.config, self.generation, where=f"the catalog's {truth.name}")
        if self._epoch is not None:
            self._check(truth.epoch or 0)
        return truth

    def truth(self) -> TruthHead | None:
        """Return the head of the truth, whose leader this process follows; None if the catalog never had a leader.

        Without a leader only the open itself was ever committed, so there is nothing to read.

        Raises ``NotLed`` if an open is under way, or died; otherwise as ``look``.
        """
        truth = self.look()
        if truth is None:
            return None
        if not truth.is_led:
            raise NotLed.at(truth.epoch, truth.name)
        self._epoch = truth.epoch
        return truth

    def read(self, look: Callable[[Transaction], R]) -> R | None:
        """Return the result of ``look`` on the items of the truth; None if the catalog never had a leader.

        Commits nothing, so a deployment newer than the leader's may read, also with a program that has a newer data
        version. Raises as ``truth`` and ``BackEnd.open``.
        """
        truth = self.truth()
        if truth is None:
            return None
        ends = self._catalog.ends
        end = ends.truth(tombstone=truth.tombstone)
        with open_to_read(end, generation=truth.deployment_generation, clock=ends.clock) as handle:
            # Same epoch as when we saw the leader: nobody opened the catalog since, so this side is still the truth.
            self._check(handle.epoch)
            return handle.transact(look)

    def change(self, change: Callable[[Transaction], R]) -> R:
        """Commit the changes of ``change`` to the items of the truth; open a catalog that never had a leader.

        Raises as ``truth``, ``Catalog.join`` and ``Handle.transact``.
        """
        if self.truth() is None:
            return self._lead(change)
        with self._catalog.join() as handle:
            self._check(handle.epoch)
            return handle.transact(change)

    def lead(self) -> None:
        """Open the catalog, as `tidemark catalog open` does, and continue under the new epoch."""
        self._lead(lambda _: None)

    def _lead(self, change: Callable[[Transaction], R]) -> R:
        with closing(self._catalog.open()) as opening:
            self._epoch = opening.truth.epoch
            return opening.truth.transact(change)

    def _check(self, epoch: int) -> None:
        if self._epoch is not None and epoch != self._epoch:
            mine, theirs = Token(self.generation, self._epoch), Token(self.generation, epoch)
            raise Fenced.by(mine=mine, theirs=theirs, where="the catalog")
