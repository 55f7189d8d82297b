"""The log of the persist catalog as one handle has read it: in memory, at one upper, read on and written to from there.

Source: reference/collections_catalog_storage.md, sections 7.1 and 7.3.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from include.catalog.contents import Contents
from include.catalog.items import Change, Item, net
from include.catalog.persist_records import FENCE_TOKEN, PROPERTY, SHOWN, WHERE, config_of, head_text, parse_token
from include.catalog.replacement import replacement_changes, replacement_of_damaged
from include.errors import CorruptState, FencedByEpoch, Sealed
from include.persist.log import LogUpdate, append_to_log
from include.persist.log_changes import read_all, read_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from include.persist.log_changes import TimedUpdate
    from include.persist.shard import Shard
    from include.persist.shard_head import ShardHead
    from include.persist.token import Token


class CatalogLog:
    """Contents and token at ``upper - 1``. After a ``CorruptState`` of ``sync`` it is of no more use.

    Other items that contradict each other spoil ``contents`` alone: a fence and a replacement of everything do without.
    The persist catalog may be garbage, and then what somebody wrote there must stop nobody.
    """

    def __init__(self, shard: Shard) -> None:
        """Read the whole log.

        Raises:
            UnknownCollection: If the shard does not exist.
            CorruptState: If the token is there more than once, or an item of the kinds in ``SHOWN``.
        """
        self.shard = shard
        head = shard.load()
        self.table_uuid: UUID = head.table.metadata.table_uuid
        self._load(head)

    def _load(self, head: ShardHead) -> None:
        records, items = _split(read_all(head))
        self.record = +records
        self.token = _only_token(self.record)
        changes = [change for _, change in items]
        self._contents = Contents()
        self._damage: CorruptState | None = None
        self._damaged: list[Change] = []  # everything that is stored, where it contradicts itself
        try:
            self._contents.apply(changes)
        except CorruptState as error:
            self._damage, self._damaged = error, net(changes)
            self._contents.apply(change for change in changes if change.item.kind in SHOWN)
        self.upper = _upper(head)
        # Manifests that hold nothing from the upper on: those there are now.
        self._known = {manifest.manifest_path for manifest in head.contents.manifests(head.table.io)}
        self._look_at(head)

    def _look_at(self, head: ShardHead) -> None:
        self.shown = head.table.metadata.properties.get(PROPERTY)  # the head that was committed last, as far as known
        self.file_count = _count_files(head)

    @property
    def contents(self) -> Contents:
        """All items.

        Raises:
            CorruptState: If an item is there more than once, or a key has two values.
        """
        if self._damage is not None:
            raise CorruptState(str(self._damage), hint=self._damage.hint) from self._damage
        return self._contents

    @property
    def config(self) -> dict[str, int]:
        """All config values."""
        return config_of(self._contents)

    def replacement(self, wanted: Contents, *, generation: int) -> list[Change]:
        """Return the net changes that make the log hold ``wanted``, whatever it holds.

        Raises:
            As ``replacement_changes``.
        """
        if self._damage is not None:
            return replacement_of_damaged(self._damaged, wanted, generation=generation)
        return replacement_changes(self._contents, wanted, generation=generation)

    def sync(self, check: Callable[[Token], None]) -> int:
        """Read on to the present upper; return how many updates of items others wrote in between.

        Updates are counted as they are stored, also those that cancel each other out: a change that was computed
        before them may rest on what they changed and changed back.

        Args:
            check: Gets the largest token that was found, before anything is applied; it raises if that one fences.

        Raises:
            FencedByEpoch: If the shard was dropped and made anew.
            CorruptState: As ``__init__``.
        """
        head = self.shard.load()
        if head.table.metadata.table_uuid != self.table_uuid:
            raise FencedByEpoch(f"{WHERE} was dropped and made anew", hint="start over: open or join the catalog again")
        upper = _upper(head)
        if upper == self.upper:
            return 0
        # Compaction may have moved what we know to times that are new to us.
        if self._damage is not None or head.state.since >= self.upper:
            return self._load_again(head, check)
        records, items = _split(read_changes(head, from_=self.upper, known=self._known))
        if tokens := [parse_token(text) for text, diff in records.items() if diff > 0]:
            check(max(tokens))
        self.record.update(records)
        self.record = +self.record
        self.token = _only_token(self.record)
        for _, changes in groupby(items, key=itemgetter(0)):
            self._contents.apply(change for _, change in changes)
        self.upper = upper
        self._look_at(head)
        return len(items)

    def _load_again(self, head: ShardHead, check: Callable[[Token], None]) -> int:
        records, items = _split(read_all(head))
        if (token := _only_token(+records)) is not None:
            check(token)
        self._load(head)
        return max(1, len(items))  # whatever came since was merged with what was known: take it for a change

    def append(self, changes: Sequence[Change], *, now_ms: int, generation: int) -> None:
        """Commit ``changes`` at the upper that was read, or later, if it is still the upper.

        Args:
            changes: Net changes of items, which apply to the contents.
            now_ms: The time that the clock says; the commit's time is not before it, and not before the upper.
            generation: Who writes.

        Raises:
            UpperMismatch: If the upper has moved; nothing was written: ``sync`` and decide again.
            Fenced: If the shard's own token moved during the commit; nothing was written.
            CommitStateUnknown, Unreachable, ConflictsUnsettled: As every commit.
        """
        if self.token is None:
            raise TypeError("nothing is written before the first fence")  # a bug in the caller
        time = max(now_ms, self.upper)
        shown = self.shown_after(changes, self.token)
        append_to_log(
            self.shard.join(generation),
            [LogUpdate(*change.item, change.diff) for change in changes],
            lower=self.upper,
            time=time,
            properties={PROPERTY: shown},
        )
        if self._damage is not None:  # which is gone now
            self._load(self.shard.load())
            return
        self._contents.apply(changes)
        self.upper, self.shown, self.file_count = time + 1, shown, self.file_count + 1

    def shown_after(self, changes: Sequence[Change], token: Token) -> str:
        """Return the head (``PROPERTY``) as a commit of ``changes`` has to set it, with ``token`` as the leader's."""
        shown = Contents(Item(kind, *pair) for kind in SHOWN for pair in self._contents.of_kind(kind).items())
        shown.apply(change for change in changes if change.item.kind in SHOWN)
        return head_text(token, shown)


def _split(updates: Sequence[TimedUpdate]) -> tuple[Counter[str], list[tuple[int, Change]]]:
    """Part the token's records from the updates of items, which keep their time and order."""
    records: Counter[str] = Counter()
    items = []
    for kind, key, value, time, diff in updates:
        if kind == FENCE_TOKEN:
            records[value] += diff
        else:
            items.append((time, Change(Item(kind, key, value), diff)))
    return records, items


def _only_token(records: Counter[str]) -> Token | None:
    """Return the one token that is present; None if the catalog was never fenced."""
    if not records:
        return None
    if list(records.values()) != [1]:
        raise CorruptState(f"{WHERE} holds more than one fence token: {sorted(records)}", hint="restore its table")
    return parse_token(next(iter(records)))


def _count_files(head: ShardHead) -> int:
    summary = head.contents.summary
    return 0 if summary is None else int(summary["total-data-files"] or 0)


def _upper(head: ShardHead) -> int:
    if not isinstance(head.state.upper, int):
        raise Sealed(f"{WHERE} is sealed", hint="this installation was closed for good")
    return head.state.upper
