"""The fence of a stash: an epoch, and random bytes that differ if the stash was dropped and made anew."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tidemark.catalog.items.kinds import CONFIG, GENERATION_KEY
from tidemark.catalog.stash.collections import StashCollections
from tidemark.catalog.stash.connection import StashConnection
from tidemark.errors import Fenced, FencedByEpoch, Uninitialized
from tidemark.iceberg.shard.token import Token

NONCE_BYTES = 16
FIRST_EPOCH = 1  # of a stash that nobody opened yet; its nonce is empty


@dataclass(frozen=True, slots=True)
class StashFence:
    """Who holds the stash: whoever opened it writable last."""

    epoch: int
    nonce: bytes

    @property
    def mark(self) -> str:
        """A hash of the nonce, which may stand in logs and arguments that everybody reads."""
        return hashlib.sha256(self.nonce).hexdigest()[:32]


def read_fence(connection: StashConnection, *, locked: bool = False) -> StashFence | None:
    """Return the fence as the open transaction sees it, None if nobody opened the stash.

    ``locked``: nobody can raise the fence until the transaction has ended; if somebody raised the fence since the
    transaction began, ``Conflict`` is raised.
    """
    rows = connection.query(f"SELECT epoch, nonce FROM fence{connection.row_lock if locked else ''}")  # noqa: S608
    return StashFence(rows[0][0], bytes(rows[0][1])) if rows else None


def raise_fence(connection: StashConnection, *, lower_bound: int, nonce: bytes) -> StashFence:
    """Raise the epoch by one, or to ``lower_bound`` if that is more, in the open transaction."""
    present = read_fence(connection)
    if present is None:
        present = StashFence(FIRST_EPOCH, b"")
        connection.insert("fence", ("epoch", "nonce"), [(present.epoch, present.nonce)])
    raised = StashFence(max(present.epoch + 1, lower_bound), nonce)
    connection.execute("UPDATE fence SET epoch = ?, nonce = ?", [raised.epoch, raised.nonce])
    return raised


def read_config(collections: StashCollections) -> dict[str, int]:
    """Return all config values; none if the stash is not initialised."""
    texts = read_small(collections, CONFIG.name)
    return {CONFIG.parse_key(key).root: CONFIG.parse_value(value).root for key, value in texts.items()}


def read_small(collections: StashCollections, kind: str) -> dict[str, str]:
    """Return the few items of a kind by key, as they are stored; none if the stash is not initialised."""
    stored = collections.stored().get(kind)
    return {} if stored is None or stored.upper == 0 else collections.peek_one(kind, is_small=True)


def check_fence(connection: StashConnection, mine: StashFence, *, generation: int, locked: bool = False) -> None:
    """Compare the fence in the open transaction with the one that is held.

    Raises:
        FencedByGeneration: If a newer deployment than ``generation`` opened the stash since.
        FencedByEpoch: If it was opened since, or dropped and made anew.
        Uninitialized: If it was dropped.
    """
    found = read_fence(connection, locked=locked)
    if found == mine:
        return
    if found is None:
        raise dropped(connection)
    theirs = read_config(StashCollections(connection, writable=False)).get(GENERATION_KEY, generation)
    if theirs > generation or found.epoch > mine.epoch:
        larger = max(theirs, generation)
        raise Fenced.by(mine=Token(generation, mine.epoch), theirs=Token(larger, found.epoch), where=connection.where)
    raise FencedByEpoch(
        f"{connection.where} was dropped and made anew: its epoch is {found.epoch}, this handle has {mine.epoch}",
        hint="start over: open or join the catalog again",
    )


def dropped(connection: StashConnection) -> Uninitialized:
    """Build the error for a stash whose tables were dropped while it was open."""
    return Uninitialized(f"the tables of {connection.where} are gone", hint="restore them from a dump")
