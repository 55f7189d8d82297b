"""An open stash: transactions under its fence, and the catalog's items on top of its collections."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from tidemark.catalog.back_end import Closable, OpenMode, Replaced
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import DataMigration, opening_changes
from tidemark.catalog.items.item import Change, Item
from tidemark.catalog.items.kinds import KINDS, LEADER_EPOCH, ItemKind, config_item
from tidemark.catalog.items.replace_all import check_not_led, replacement_changes, replacement_of_damaged
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.stash.collections import AppendBatch, Entry, StashCollections
from tidemark.catalog.stash.connection import Conflict, LostConnection, MissingTable, StashConnection
from tidemark.catalog.stash.fence import StashFence, check_fence, dropped, read_config
from tidemark.catalog.stash.transactions import StashTransactions
from tidemark.clock import Clock
from tidemark.errors import CorruptState, Fenced, InvalidFrontier, NotWritable, Unreachable
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier

NAME = "stash"
FAIL_POINTS = ("stash.before-consolidation",)
log = logging.getLogger(__name__)
R = TypeVar("R")


class StashSnapshot:
    """The items as one transaction of the stash sees them, read on demand. Implements ``Snapshot``."""

    def __init__(self, collections: StashCollections) -> None:
        self._collections = collections
        self._loaded: dict[str, Contents] = {}

    def get(self, kind: str, key: str) -> str | None:
        if kind in self._loaded:
            return self._loaded[kind].get(kind, key)
        if kind not in self._collections.stored():
            return None
        return self._collections.peek_one(kind, key).get(key)

    def of_kind(self, kind: str) -> Mapping[str, str]:
        return self._load(kind).of_kind(kind)

    def holder(self, kind: ItemKind[Any, Any], constraint: str, claimed: Hashable) -> str | None:
        return self._load(kind.name).holder(kind, constraint, claimed)

    def everything(self) -> Contents:
        """Return the items of all kinds, in contents of their own."""
        return Contents(
            Item(name, key, value)
            for name in self._collections.stored()
            if name in KINDS  # the stash may hold collections that do not hold items
            for key, value in self._collections.peek_one(name).items()
        )

    def _load(self, kind: str) -> Contents:
        if kind not in self._loaded:
            values = self._collections.peek_one(kind) if kind in self._collections.stored() else {}
            self._loaded[kind] = Contents(Item(kind, key, value) for key, value in values.items())
        return self._loaded[kind]


def append_changes(collections: StashCollections, changes: Sequence[Change], *, now_ms: int) -> None:
    """Append net changes of items at one time, not before ``now_ms`` and later than any time of any kind."""
    by_kind: defaultdict[str, list[Entry]] = defaultdict(list)
    for (kind, key, value), diff in changes:
        by_kind[kind].append(Entry(key, value, diff))
    lowers = {name: collections.create(name).upper for name in by_kind}
    if sealed := [name for name, upper in lowers.items() if not isinstance(upper, int)]:
        raise InvalidFrontier(f"the stash's collections {sealed} are sealed", hint="this stash was closed for good")
    uppers = (stored.upper for stored in collections.stored().values())
    time = max([now_ms, *(upper for upper in uppers if isinstance(upper, int))])
    collections.append([AppendBatch.at(name, time, entries, lower=lowers[name]) for name, entries in by_kind.items()])


def _stored_items(collections: StashCollections) -> list[Change]:
    entries = ((name, entry) for name in collections.stored() if name in KINDS for entry in collections.peek(name))
    return [Change(Item(name, entry.key, entry.value), entry.diff) for name, entry in entries]


def _replacement(
    collections: StashCollections, wanted: Contents, *, generation: int, tombstone: bool | None
) -> list[Change]:
    try:
        stored = StashSnapshot(collections).everything()
    except CorruptState:  # somebody else wrote to the stash; it is garbage, and nobody is going to read these items
        own = Contents(config_item(key, value) for key, value in read_config(collections).items())
        stored_items = _stored_items(collections)
        return replacement_of_damaged(stored_items, wanted, own=own, generation=generation, tombstone=tombstone)
    return replacement_changes(stored, wanted, generation=generation, tombstone=tombstone)


class StashHandle(Closable):
    """Implements ``Handle``. Each transaction compares the fence twice: first, and last with the fence locked."""

    name = NAME
    fence_damage = None  # its fence is one row, which says one thing

    def __init__(
        self, transactions: StashTransactions, *, mode: OpenMode, generation: int, fence: StashFence, clock: Clock
    ) -> None:
        self.mode, self.generation = mode, generation
        self._transactions, self._fence, self._clock = transactions, fence, clock
        self._consolidates = mode is OpenMode.WRITABLE  # readers and dry runs leave retractions to writers
        self._fenced: Fenced | None = None

    @property
    def epoch(self) -> int:
        return self._fence.epoch

    @property
    def fence_mark(self) -> str:
        return self._fence.mark

    def run(self, operation: Callable[[StashCollections], R], *, write: bool | None = None) -> R:
        """Run ``operation`` on the collections in one fenced transaction, perhaps several times, and commit it.

        ``operation`` must have no other effect; its error ends the transaction without changes. ``write`` says whether
        it may change anything; None: if the mode allows changes.

        Raises:
            Fenced: If somebody opened the stash since; nothing was changed.
            NotWritable: If ``operation`` changes something and the mode is read-only.
            Uninitialized: If the tables were dropped.
            Others as ``StashTransactions.run``.
        """
        if self._fenced is not None:
            raise self._fenced
        writes = self.mode is not OpenMode.READ_ONLY if write is None else write
        connection = self._transactions.connection

        def body() -> tuple[R, dict[int, Frontier]]:
            check_fence(connection, self._fence, generation=self.generation)
            collections = StashCollections(connection, writable=writes)
            return operation(collections), collections.unconsolidated()

        def confirm() -> None:  # no older leader commits after a newer one has: the lock holds until the commit
            check_fence(connection, self._fence, generation=self.generation, locked=True)

        try:
            before_commit = confirm if writes else None
            result, unconsolidated = self._transactions.run(body, write=writes, before_commit=before_commit)
        except Fenced as fenced:
            self._fenced = fenced
            raise
        except MissingTable as missing:
            raise dropped(connection) from missing
        if self._consolidates:
            for collection_id, since in unconsolidated.items():
                self._consolidate(collection_id, since)
        return result

    def snapshot(self) -> Contents:
        return self.run(lambda collections: StashSnapshot(collections).everything(), write=False)

    def stored_items(self) -> Sequence[Change]:
        return self.run(_stored_items, write=False)

    def transact(self, change: Callable[[Transaction], R]) -> R:
        def operation(collections: StashCollections) -> R:
            now_ms = self._clock.now_ms()
            transaction = Transaction(StashSnapshot(collections), now_ms=now_ms)
            result = change(transaction)
            self._append(collections, transaction.pending(), now_ms)
            return result

        return self.run(operation)

    def replace_all(self, contents: Contents, *, tombstone: bool | None = None) -> Replaced:
        def operation(collections: StashCollections) -> Replaced:
            if self.mode is not OpenMode.SAVEPOINT:
                announced = read_config(collections).get(LEADER_EPOCH)
                check_not_led(announced, epoch=self.epoch, where=self._transactions.connection.where)
            changes = _replacement(collections, contents, generation=self.generation, tombstone=tombstone)
            self._append(collections, changes, self._clock.now_ms())
            return Replaced.by(changes)

        return self.run(operation)

    def initialise(self, migrations: Sequence[DataMigration]) -> None:
        """Create the collections of a new stash and migrate its items to the present data version; after the fence."""

        def operation(collections: StashCollections) -> None:
            new = [kind for kind in KINDS if collections.create(kind).upper == 0]
            collections.append([AppendBatch.at(kind, 0, lower=0) for kind in new])
            changes = opening_changes(
                read_config(collections),
                lambda: StashSnapshot(collections).everything(),
                generation=self.generation,
                where=self._transactions.connection.where,
                migrations=migrations,
            )
            append_changes(collections, changes, now_ms=self._clock.now_ms())
            collections.find_unconsolidated()

        self.run(operation)

    def confirm_leadership(self) -> None:
        self.run(lambda _: None, write=False)

    def close(self) -> None:
        self._transactions.connection.close()

    def _consolidate(self, collection_id: int, since: Frontier) -> None:
        """Consolidate a collection after a commit; log a failure and leave the work to a later writer."""
        connection = self._transactions.connection
        try:
            consolidate(connection, collection_id, since)
        except (LostConnection, Conflict, MissingTable, Unreachable) as error:
            log.info("collection %s of %s is consolidated later: %s", collection_id, connection.where, error)

    def _append(self, collections: StashCollections, changes: Sequence[Change], now_ms: int) -> None:
        if not changes:
            return
        if self.mode is OpenMode.READ_ONLY:
            raise NotWritable.in_mode(self.mode.value, what="a change", where="the stash")
        append_changes(collections, changes, now_ms=now_ms)


def consolidate(connection: StashConnection, collection_id: int, since: Frontier) -> None:
    """Sum up the updates up to ``since``, which no reader can tell apart any more; EMPTY drops all updates.

    Idempotent and unfenced, in a transaction of its own: a stash that is not consolidated yet is correct, and readers
    cannot tell apart updates up to an older ``since`` either. Raises as ``StashConnection``; then nothing was changed.
    """
    fail_point("stash.before-consolidation")
    try:
        if isinstance(since, int):
            connection.consolidate(collection_id, since)
            return
        connection.begin(write=True)
        connection.execute("DELETE FROM data WHERE collection_id = ?", [collection_id])
        connection.commit()
    finally:
        connection.rollback()
