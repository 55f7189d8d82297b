"""The log of the persist catalog in the memory of one handle: items and token at one upper; ``sync`` reads on.

Source: reference/collections_catalog_storage.md, sections 7.1 and 7.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from uuid import UUID

from pyiceberg.table.snapshots import Operation

from tidemark.catalog.items.item import Change, Item
from tidemark.catalog.persist.records import (
    FENCE_TOKEN,
    PROPERTY,
    SHOWN,
    WHERE,
    config_of,
    head_items,
    head_text,
    parse_head,
    shown_token,
    token_damage,
    token_text,
)
from tidemark.catalog.persist.stored_items import StoredItems
from tidemark.errors import CorruptState, Fenced, FencedByEpoch, UpperMismatch
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LogUpdate, TimedUpdate, append_to_log, read_all, read_changes, write_updates
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind
from tidemark.iceberg.shard.token import Token


class CatalogLog:
    """Items and token at ``upper - 1``; the constructor reads the whole log.

    The persist catalog may be garbage, so damage stops neither a fence nor a replacement of all items: neither items
    that contradict each other, nor records of the token that differ from the token in the table's head.

    Raises:
        UnknownCollection: If the shard does not exist.
        CorruptState: If the table's head cannot be read.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        head = shard.load()
        self.table_uuid: UUID = head.table.metadata.table_uuid
        self._load(head)

    def _load(self, head: ShardHead) -> int:
        records, items = _split(read_all(head))
        self.record = _present(records)
        self._read_head(head)
        self.token_damage: CorruptState | None = token_damage(self.record, self.token)
        shown = head_items(parse_head(head.table.metadata.properties))
        self.held = StoredItems((change for _, change in items), shown=shown)
        self.upper = _upper(head)
        # All present manifests: they hold no update from the upper on.
        self._known = {manifest.manifest_path for manifest in head.contents.manifests(head.table.io)}
        return len(items)

    def _read_head(self, head: ShardHead) -> None:
        properties = head.table.metadata.properties
        self.shown = properties.get(PROPERTY)  # the last committed head that this process has read or written
        self.token: Token | None = shown_token(properties)
        summary = head.contents.summary
        self.file_count = 0 if summary is None else int(summary["total-data-files"] or 0)

    @property
    def config(self) -> dict[str, int]:
        return config_of(self.held.shown)

    def sync(self, check: Callable[[Token], None]) -> int:
        """Read on to the present upper; return the number of updates of items that others wrote in between.

        Updates that cancel each other out count, too: a caller may have computed a change from the state between them.
        ``check`` gets the present token before anything is applied, and raises if that token fences the caller.

        Raises:
            FencedByEpoch: If the shard was dropped and made anew.
            CorruptState: If a new update contradicts the rest, or a new token is not of an open. Afterwards this object
                holds the damaged items.
        """
        head = self.shard.load()
        if head.table.metadata.table_uuid != self.table_uuid:
            raise FencedByEpoch(f"{WHERE} was dropped and made anew", hint="start over: open or join the catalog again")
        upper = _upper(head)
        if upper == self.upper:
            return 0
        if (token := shown_token(head.table.metadata.properties)) is not None:
            check(token)
        had_token_damage = self.token_damage is not None
        # Compaction may have moved updates that we know to times that are new to us.
        if had_token_damage or self.held.is_damaged or head.state.since >= self.upper:
            count = self._load(head)
            if self.token_damage is not None and not had_token_damage:
                raise self.token_damage
            return max(1, count)  # compaction may have merged new updates into known ones: assume a change
        records, items = _split(read_changes(head, from_=self.upper, known=self._known))
        merged = Counter(self.record)
        merged.update(records)  # unlike `+`, which drops counts below 0
        self.record = _present(merged)
        try:
            if (damage := token_damage(self.record, token)) is not None:
                raise damage
            for _, changes in groupby(items, key=itemgetter(0)):
                self.held.apply(change for _, change in changes)
        except CorruptState:
            self._load(head)  # so that a caller who reads the stored items sees all of them
            raise
        self._read_head(head)
        self.upper = upper
        return len(items)

    def append(self, changes: Sequence[Change], *, now_ms: int, generation: int) -> None:
        """Commit net ``changes`` if the upper is still ``self.upper``; the time is ``now_ms``, or the upper if larger.

        Raises:
            UpperMismatch: If the upper has moved; nothing was written: ``sync`` and decide again.
            Fenced: If the shard's own token moved during the commit; nothing was written.
            CorruptState: If the changes leave items that contradict each other; nothing was written.
            Others as ``Publication.heads``.
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

    def fence(self, token: Token, *, changes: Sequence[Change], now_ms: int) -> None:
        """Replace the token by the larger ``token``, and make ``changes`` of the config; the caller then syncs.

        Unlike other commits, this commit does not require an upper, or a leader that commits in a tight loop would win
        again and again. It requires that the table's head (``PROPERTY``) is unchanged, because every commit that moves
        the token sets the head, too. Items that others committed in between stay.

        Raises:
            UpperMismatch: If somebody else fenced or changed the head; nothing was written: ``sync`` and decide again.
            FencedByGeneration: If a newer deployment owns the shard.
            Sealed: If the shard is sealed.
            Others as ``Publication.heads``.
        """
        updates = [LogUpdate(FENCE_TOKEN, "", text, -count) for text, count in self.record.items()]
        updates += [LogUpdate(FENCE_TOKEN, "", token_text(token), 1)]
        updates += [LogUpdate(*change.item, change.diff) for change in changes]
        shown = self.held.shown.copy()
        shown.apply(change for change in changes if change.item.kind in SHOWN)
        publication = Publication(self.shard, is_fence=True)
        for head in publication.heads():
            state = head.state
            if state.token.generation > token.generation:
                raise Fenced.by(mine=token, theirs=state.token, where=WHERE)
            upper = _upper(head)
            if head.table.metadata.properties.get(PROPERTY) != self.shown:
                raise UpperMismatch(self.upper, upper)
            time = max(now_ms, upper)
            # New files for each attempt; the files of a lost attempt are orphans.
            added = write_updates(head.table, updates, time=time)
            proposal = Proposal(
                state=publication.next_state(state, CommitKind.FENCE, lower=time, upper=time + 1),
                main=SnapshotChange(operation=Operation.APPEND, added=added),
                set_properties={PROPERTY: head_text(token, shown)},
            )
            publication.commit(head, proposal)


def _split(updates: Sequence[TimedUpdate]) -> tuple[Counter[str], list[tuple[int, Change]]]:
    """Separate the token's records from the updates of items; updates keep their time and order."""
    records: Counter[str] = Counter()
    items = []
    for kind, key, value, time, diff in updates:
        if kind == FENCE_TOKEN:
            records[value] += diff
        else:
            items.append((time, Change(Item(kind, key, value), diff)))
    return records, items


def _present(records: Counter[str]) -> Counter[str]:
    """Drop records with count 0; a count below 0 is damage and stays."""
    return Counter({text: count for text, count in records.items() if count})


def _upper(head: ShardHead) -> int:
    return head.state.open_upper(WHERE, hint="this installation was closed for good")
