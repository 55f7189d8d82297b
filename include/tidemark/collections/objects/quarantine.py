"""The quarantine of a collection, which belongs to the collection's very table and not to the name alone.

A process that works on a collection while somebody drops it may make a quarantine after the drop. The quarantine names
the table that its rows were meant for, so that a collection that is made anew under the name takes none of them: the
quarantine waits beside the dropped table, and goes with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tidemark.collections.declarations.collection import QUARANTINE_SUFFIX
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import COLLECTIONS, DROPPED, Shards

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

    from tidemark.iceberg.shard.shard import Shard

log = logging.getLogger(__name__)

OWNER: Final = "tidemark.quarantine-of"  # the uuid of the collection's table; quarantines of older versions lack it


def find_quarantine(shards: Shards, shard: Shard) -> Shard | None:
    """Return the quarantine of a collection; None while there is none. Raises as ``Shard.load_table``."""
    name = shard.name + QUARANTINE_SUFFIX
    if not shards.exists(name):
        return None
    quarantine = shards.open(name)
    return quarantine if _owner_of(quarantine) in {"", _uuid_of(shard)} else None


def make_quarantine(shards: Shards, shard: Shard, schema: Schema) -> Shard:
    """Return the quarantine of a collection, made with the columns of ``schema`` if there is none.

    Raises:
        Dropped: If the collection was dropped while this process worked on it.
        Others as ``Shards.create``.
    """
    own, name = _uuid_of(shard), shard.name + QUARANTINE_SUFFIX
    quarantine = shards.create(name, schema=schema, layout=ShardKind.APPEND_ONLY, properties={OWNER: own})
    if (owner := _owner_of(quarantine)) in {"", own}:
        return quarantine
    log.warning("%s was made for the table %s, which was dropped: it is set aside", name, owner)
    set_quarantine_aside(shards, shard.name, owner)
    return make_quarantine(shards, shard, schema)


def set_quarantine_aside(shards: Shards, collection: str, owner: str) -> None:
    """Rename a quarantine that was made for the dropped table ``owner`` of ``collection``, if there is one."""
    name = collection + QUARANTINE_SUFFIX
    if not shards.exists(name):
        return
    quarantine = shards.open(name)
    if _owner_of(quarantine) == owner:
        uuid = _uuid_of(quarantine)
        shards.rename((COLLECTIONS, name), (DROPPED, _name_aside(collection, owner) + uuid[:8]), uuid=uuid)


def list_quarantines_aside(shards: Shards, collection: str, owner: str) -> list[str]:
    """Return the names, among the dropped tables, of quarantines that were made for the dropped table ``owner``."""
    return [name for name in shards.names(DROPPED) if name.startswith(_name_aside(collection, owner))]


def _name_aside(collection: str, owner: str) -> str:
    return f"{collection}{QUARANTINE_SUFFIX}_of_{owner[:8]}_"


def _owner_of(quarantine: Shard) -> str:
    return quarantine.load_table().properties.get(OWNER, "")


def _uuid_of(shard: Shard) -> str:
    return str(shard.load_table().metadata.table_uuid)
