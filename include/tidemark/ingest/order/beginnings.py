"""Where a collection begins in a log: remembered before its first rows are held, since no ledger tells until a commit.

Without that, what retention takes meanwhile would count as having been there before the collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.update import SetPropertiesUpdate

from tidemark.errors import InputsGone
from tidemark.fail_points import fail_point
from tidemark.iceberg.commit.branch_commit import attempts_beside, commit_beside
from tidemark.ingest.plan import START

if TYPE_CHECKING:
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.ingest.parts.shares import Minted
    from tidemark.ingest.publish import Target

FAIL_POINTS = ("ingest.after-beginnings",)


def remember_beginnings(target: Target, minted: Minted, seen: ShardHead) -> None:
    """Remember with which number the collection begins in each planned sequencer that it has nothing of yet.

    The first process that says so decides. ``seen`` is the head that the mint was made from.

    Raises ``InputsGone`` if the collection was made anew since then.
    """
    begun = {target.log.producer(part.sequencer_id): part.begun for part in minted.planned}
    if not _find_lacking(seen, begun):
        return
    for attempt in attempts_beside(target.shard, "the beginning in a log"):
        with attempt:
            head = target.shard.load()
            if head.table.metadata.table_uuid != seen.table.metadata.table_uuid:
                raise InputsGone(f"{target.shard.name!r} was made anew since it was looked at", hint="run it again")
            if not (lacking := _find_lacking(head, begun)):
                return
            commit_beside(target.shard, head, (), [SetPropertiesUpdate(updates=lacking)])
    fail_point("ingest.after-beginnings")


def _find_lacking(head: ShardHead, begun: dict[str, int]) -> dict[str, str]:
    known = {*head.state.ledgers, *(key.removeprefix(START) for key in head.table.properties if key.startswith(START))}
    return {START + producer: str(number) for producer, number in begun.items() if producer not in known}
