"""One process's place behind the leader of the catalog: what it reads and changes, it does under one epoch.

Nothing is held open in between, because a run of hours would hold a connection for two looks. What is held is the epoch
that was seen first: the catalog at any other one fences the process, as a handle that it had kept open would.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from tidemark.catalog.back_end import OpenMode
from tidemark.catalog.items.data_versions import check_generation
from tidemark.catalog.opening.truth import find_truth
from tidemark.errors import Fenced, NotLed
from tidemark.iceberg.shard.token import Token

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.catalog import Catalog
    from tidemark.catalog.opening.truth import TruthHead

R = TypeVar("R")


class Membership:
    """Follows the leader; leads only if asked to, or where nobody ever did."""

    def __init__(self, catalog: Catalog) -> None:
        """Remember which catalog; nothing is read before it is asked for."""
        self._catalog = catalog
        self._epoch: int | None = None  # that this process works under; None: nothing was seen yet

    @property
    def generation(self) -> int:
        return self._catalog.ends.generation

    def truth(self) -> TruthHead | None:
        """Return the head of the truth, under whose leader this process works; None if the catalog never had one.

        Without a leader nothing was ever committed but the open itself, so then there is nothing to know.

        Raises:
            FencedByGeneration: If a newer deployment opened it.
            FencedByEpoch: If it was opened since this process looked first.
            NotLed: If an open is under way, or died.
            Others as ``find_truth``.
        """
        truth = find_truth(self._catalog.ends)
        if truth is None or not truth.was_led:
            return None
        check_generation(truth.head.config, self.generation, where=f"the catalog's {truth.name}")
        if self._epoch is not None:
            self._check(truth.epoch or 0)
        if not truth.is_led:
            raise NotLed.at(truth.epoch, truth.name)
        self._epoch = truth.epoch
        return truth

    def read(self, look: Callable[[Transaction], R]) -> R | None:
        """Return what ``look`` makes of the items of the truth; None if there never was a leader.

        Commits nothing, and so is open to a newer deployment than the leader's, too.

        Raises:
            As ``truth``, and ``BackEnd.open``.
        """
        truth = self.truth()
        if truth is None:
            return None
        ends = self._catalog.ends
        end = ends.persist if truth.tombstone else ends.stash
        with end.open(OpenMode.READ_ONLY, generation=truth.deployment_generation, clock=ends.clock) as handle:
            self._check(handle.epoch)  # at this epoch it was led, and so it is the truth until it is fenced
            return handle.transact(look)

    def change(self, change: Callable[[Transaction], R]) -> R:
        """Commit what ``change`` makes pending on the items of the truth; opens a catalog that never had a leader.

        Raises:
            As ``truth``, ``Catalog.join`` and ``Handle.transact``.
        """
        if self.truth() is None:
            return self._lead(change)
        with self._catalog.join() as handle:
            self._check(handle.epoch)
            return handle.transact(change)

    def lead(self) -> None:
        """Open the catalog, as `tidemark catalog open` does, and go on under the epoch that this makes.

        Raises:
            As ``Catalog.open``.
        """
        self._lead(lambda _: None)

    def _lead(self, change: Callable[[Transaction], R]) -> R:
        with closing(self._catalog.open()) as opening:
            self._epoch = opening.truth.epoch
            return opening.truth.transact(change)

    def _check(self, epoch: int) -> None:
        if self._epoch is not None and epoch != self._epoch:
            raise Fenced.by(
                mine=Token(self.generation, self._epoch),
                theirs=Token(self.generation, epoch),
                where="the catalog",
            )
