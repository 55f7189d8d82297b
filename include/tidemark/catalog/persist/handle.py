"""An open persist catalog: transactions under its token, on the log as far as this process has read it.

Source: reference/collections_catalog_storage.md, sections 7.1 to 7.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from tidemark.catalog.back_end import Closable, OpenMode, Replaced
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import DataMigration, opening_changes
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import LEADER_EPOCH
from tidemark.catalog.items.replace_all import check_not_led
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.persist.log import CatalogLog
from tidemark.catalog.persist.records import NAME, WHERE, check_not_fenced
from tidemark.catalog.persist.stored_items import StoredItems
from tidemark.clock import Clock
from tidemark.errors import (
    CatalogOutOfSync,
    CorruptState,
    Fenced,
    FencedByEpoch,
    FencedByGeneration,
    NotWritable,
    TidemarkError,
    UpperMismatch,
)
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.maintenance.log_consolidation import consolidate_log
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.token import Token

R = TypeVar("R")
log = logging.getLogger(__name__)

COMPACT_ABOVE: Final = 100  # data files: an open then reads them in a few tenths of a second
KEPT_MS: Final = 10 * 60_000  # superseded snapshots stay this long for their readers
_ATTEMPTS = 20  # a commit takes tens of ms, so several writers in a loop take turns within these


class PersistHandle(Closable):
    """Implements ``Handle`` in the modes ``WRITABLE`` and ``READ_ONLY``; once fenced, it stays so."""

    name = NAME

    def __init__(self, log: CatalogLog, *, mode: OpenMode, generation: int, epoch: int, clock: Clock) -> None:
        self.mode, self.generation, self.epoch = mode, generation, epoch
        self._log, self._clock = log, clock
        self._fenced: Fenced | None = None

    @property
    def fence_mark(self) -> str:
        return str(self._log.table_uuid)

    @property
    def fence_damage(self) -> CorruptState | None:
        return self._log.token_damage

    def snapshot(self) -> Contents:
        self._sync()
        return self._log.held.contents.copy()

    def stored_items(self) -> Sequence[Change]:
        self._sync()
        return self._log.held.stored()

    def transact(self, change: Callable[[Transaction], R]) -> R:
        def decide() -> tuple[R, Sequence[Change]]:
            transaction = Transaction(self._log.held.contents, now_ms=max(self._clock.now_ms(), self._log.upper))
            return change(transaction), transaction.pending()

        return self._commit(decide)

    def replace_all(self, contents: Contents, *, tombstone: bool | None = None) -> Replaced:
        if tombstone is not None:
            raise ValueError("the tombstone is in the stash alone")

        def decide() -> tuple[Replaced, Sequence[Change]]:
            check_not_led(self._log.config.get(LEADER_EPOCH), epoch=self.epoch, where=WHERE)
            changes = self._log.held.replacement(contents, generation=self.generation)
            return Replaced.by(changes), changes

        return self._commit(decide, replaces=True)

    def initialise(self, migrations: Sequence[DataMigration]) -> None:
        """Add the config of an initialised catalog and migrate to this program's data version; after the fence."""

        def decide() -> tuple[None, Sequence[Change]]:
            return None, opening_changes(
                self._log.config,
                lambda: self._log.held.contents,
                generation=self.generation,
                where=WHERE,
                migrations=migrations,
            )

        self._commit(decide)

    def confirm_leadership(self) -> None:
        self._sync()

    def _commit(self, decide: Callable[[], tuple[R, Sequence[Change]]], *, replaces: bool = False) -> R:
        """Commit the changes that ``decide`` returns for the present contents.

        If only the upper moved, the same changes are tried again; if others changed the contents, ``decide`` runs anew.
        A replacement is committed even without changes if the table's head differs from the items.
        """
        self._sync()
        result, changes = decide()
        for _ in range(_ATTEMPTS):
            if not changes and not (replaces and self._log.held.is_damaged):
                return result
            if self.mode is OpenMode.READ_ONLY:
                raise NotWritable.in_mode(self.mode.value, what="a change", where=WHERE)
            try:
                self._log.append(changes, now_ms=self._clock.now_ms(), generation=self.generation)
            except FencedByGeneration as fenced:  # a newer deployment leads, whatever it does with the catalog
                self._fenced = fenced
                raise
            except (UpperMismatch, FencedByEpoch):  # of the shard; the log tells whether the catalog's epoch moved
                if self._sync():
                    result, changes = decide()
            else:
                self._compact()
                return result
        raise CatalogOutOfSync(
            f"others kept changing {WHERE} while a change was made, {_ATTEMPTS} times", hint="run it again"
        )

    def _compact(self) -> None:
        """Compact a log that has grown; only log a failure: the change is committed, and the next commit retries."""
        if self._log.file_count <= COMPACT_ABOVE:
            return
        try:
            if compact_catalog(self._log.shard, generation=self.generation, now_ms=self._clock.now_ms()):
                self._log.file_count = 1
        except TidemarkError as error:
            log.warning("the catalog was not compacted, which the next commit tries again: %s", error)

    def _sync(self) -> int:
        if self._fenced is not None:
            raise self._fenced
        try:
            return self._log.sync(partial(check_not_fenced, Token(self.generation, self.epoch)))
        except Fenced as fenced:
            self._fenced = fenced
            raise


class PersistSavepoint(Closable):
    """Implements ``Handle`` in the mode ``SAVEPOINT`` on ``held``, items as of ``upper - 1`` in memory of its own."""

    name = NAME
    mode = OpenMode.SAVEPOINT
    fence_mark = ""  # nobody takes a dry run over
    fence_damage = None  # nobody joins a dry run

    def __init__(self, held: StoredItems, *, generation: int, epoch: int, upper: int, clock: Clock) -> None:
        self.generation, self.epoch = generation, epoch
        self._held, self._upper, self._clock = held, upper, clock

    def snapshot(self) -> Contents:
        return self._held.contents.copy()

    def stored_items(self) -> Sequence[Change]:
        return self._held.stored()

    def transact(self, change: Callable[[Transaction], R]) -> R:
        self._upper = max(self._clock.now_ms(), self._upper) + 1
        transaction = Transaction(self._held.contents, now_ms=self._upper - 1)
        result = change(transaction)
        self._held.apply(transaction.pending())
        return result

    def replace_all(self, contents: Contents, *, tombstone: bool | None = None) -> Replaced:
        if tombstone is not None:
            raise ValueError("the tombstone is in the stash alone")
        changes = self._held.replacement(contents, generation=self.generation)
        self._held.apply(changes)
        return Replaced.by(changes)

    def confirm_leadership(self) -> None:
        """A savepoint does not read later commits, so nobody fences it."""


def compact_catalog(shard: Shard, *, generation: int, now_ms: int) -> bool:
    """Consolidate the log and expire its snapshots; return whether the log was rewritten.

    Each commit adds a file and a snapshot, and every reader reads all of them. Contents, epoch and upper stay the same.

    Raises:
        FencedByGeneration: If a newer deployment owns the shard.
        Others as ``consolidate_log`` and ``expire``.
    """
    writer = Writer.join(shard, generation)
    was_rewritten = consolidate_log(writer, now_ms=now_ms)
    expire(writer, older_than_ms=now_ms - KEPT_MS)
    return was_rewritten
