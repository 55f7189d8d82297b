"""The log of the persist catalog as one handle has read it: in memory, at one upper, read on and written to from there.

Source: reference/collections_catalog_storage.md, sections 7.1 and 7.3.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from tidemark.catalog.items.item import Change, Item
from tidemark.catalog.persist.records import (
    FENCE_TOKEN,
    PROPERTY,
    SHOWN,
    WHERE,
    config_of,
    head_text,
    parse_head,
    shown_items,
    shown_token,
    token_damage,
)
from tidemark.catalog.persist.stored_items import StoredItems
from tidemark.errors import CorruptState, FencedByEpoch
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LogUpdate, append_to_log, read_all, read_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from tidemark.catalog.items.contents import Contents
    from tidemark.iceberg.log import TimedUpdate
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shard.token import Token


class CatalogLog:
    """Items and token at ``upper - 1``.

    Items that contradict each other stop neither a fence nor a replacement of everything; nor do records of the token
    that differ from the one which the table's head shows, since each open sets both in one commit. The persist catalog
    may be garbage, and then what somebody wrote there must stop nobody.
    """

    def __init__(self, shard: Shard) -> None:
        """Read the whole log.

        Raises:
            UnknownCollection: If the shard does not exist.
            CorruptState: If the table's head cannot be read.
        """
        self.shard = shard
        head = shard.load()
        self.table_uuid: UUID = head.table.metadata.table_uuid
        self._load(head)

    def _load(self, head: ShardHead) -> int:
        records, items = _split(read_all(head))
        self.record = _present(records)
        self._look_at(head)
        self.token_damage: CorruptState | None = token_damage(self.record, self.token)
        shown = shown_items(parse_head(head.table.metadata.properties))
        self.held = StoredItems((change for _, change in items), shown=shown)
        self.upper = _upper(head)
        # Manifests that hold nothing from the upper on: those there are now.
        self._known = {manifest.manifest_path for manifest in head.contents.manifests(head.table.io)}
        return len(items)

    def _look_at(self, head: ShardHead) -> None:
        properties = head.table.metadata.properties
        self.shown = properties.get(PROPERTY)  # the head that was committed last, as far as known
        self.token: Token | None = shown_token(properties)
        self.file_count = _count_files(head)

    @property
    def contents(self) -> Contents:
        """All items.

        Raises:
            CorruptState: If they contradict each other.
        """
        return self.held.contents

    @property
    def config(self) -> dict[str, int]:
        """All config values."""
        return config_of(self.held.shown)

    def sync(self, check: Callable[[Token], None]) -> int:
        """Read on to the present upper; return how many updates of items others wrote in between.

        Updates are counted as they are stored, also those that cancel each other out: a change that was computed
        before them may rest on what they changed and changed back.

        Args:
            check: Gets the present token, before anything is applied; it raises if that one fences.

        Raises:
            FencedByEpoch: If the shard was dropped and made anew.
            CorruptState: If what was written in between contradicts the rest, or is a token of no open; what is held
                then is what is stored, damaged.
        """
        head = self.shard.load()
        if head.table.metadata.table_uuid != self.table_uuid:
            raise FencedByEpoch(f"{WHERE} was dropped and made anew", hint="start over: open or join the catalog again")
        upper = _upper(head)
        if upper == self.upper:
            return 0
        is_damaged = self.held.is_damaged or self.token_damage is not None
        # Compaction may have moved what we know to times that are new to us.
        if is_damaged or head.state.since >= self.upper:
            return self._load_again(head, check)
        records, items = _split(read_changes(head, from_=self.upper, known=self._known))
        if (token := shown_token(head.table.metadata.properties)) is not None:
            check(token)
        merged = Counter(self.record)
        merged.update(records)  # unlike `+`, which forgets what is below 0
        self.record = _present(merged)
        try:
            self._refuse(token_damage(self.record, token))
            for _, changes in groupby(items, key=itemgetter(0)):
                self.held.apply(change for _, change in changes)
        except CorruptState:
            self._load(head)  # whoever looks at what is stored, and not at the contents, sees all of it
            raise
        self._look_at(head)
        self.upper = upper
        return len(items)

    def _load_again(self, head: ShardHead, check: Callable[[Token], None]) -> int:
        if (token := shown_token(head.table.metadata.properties)) is not None:
            check(token)
        was_damaged = self.token_damage is not None
        count = self._load(head)
        if not was_damaged:
            self._refuse(self.token_damage)
        return max(1, count)  # whatever came since was merged with what was known: take it for a change

    @staticmethod
    def _refuse(damage: CorruptState | None) -> None:
        if damage is not None:
            raise damage

    def append(self, changes: Sequence[Change], *, now_ms: int, generation: int) -> None:
        """Commit ``changes`` at the upper that was read, or later, if it is still the upper.

        Args:
            changes: Net changes of items, which apply to what is held.
            now_ms: The time that the clock says; the commit's time is not before it, and not before the upper.
            generation: Who writes.

        Raises:
            UpperMismatch: If the upper has moved; nothing was written: ``sync`` and decide again.
            Fenced: If the shard's own token moved during the commit; nothing was written.
            CorruptState: If the changes leave items that contradict each other; nothing was written.
            CommitStateUnknown, Unreachable, ConflictsUnsettled: As every commit.
        """
        if self.token is None:
            raise TypeError("nothing is written before the first fence")  # a bug in the caller
        time = max(now_ms, self.upper)
        shown = head_text(self.token, self.held.shown_after(changes))
        append_to_log(
            Writer.join(self.shard, generation),
            [LogUpdate(*change.item, change.diff) for change in changes],
            lower=self.upper,
            time=time,
            properties={PROPERTY: shown},
        )
        self.held.apply(changes)
        self.upper, self.shown, self.file_count = time + 1, shown, self.file_count + 1

    def shown_with(self, token: Token, changes: Sequence[Change]) -> str:
        """Return the head (``PROPERTY``) as a fence has to set it that changes the config, and leaves the rest."""
        shown = self.held.shown.copy()
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


def _present(records: Counter[str]) -> Counter[str]:
    """Leave out what was retracted; what was retracted too often stays."""
    return Counter({text: count for text, count in records.items() if count})


def _count_files(head: ShardHead) -> int:
    summary = head.contents.summary
    return 0 if summary is None else int(summary["total-data-files"] or 0)


def _upper(head: ShardHead) -> int:
    return head.state.open_upper(WHERE, hint="this installation was closed for good")
