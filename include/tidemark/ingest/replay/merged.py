"""Values that a persist merged into one row: they come back only with all entries that gave some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemark.collections.sources.formats.buffer import BufferSource
from tidemark.errors import UsageError
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.batches import BatchesSeen
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.persist.duplicates import MERGED_FIELDS
from tidemark.lifecycle.replay_plan import ReplayPlan

_NEVER = (1 << 63) - 1  # a sequencer that does not begin anew brings nothing that is persisted


def may_be_merged(properties: Mapping[str, str], rules: PartitionRules) -> bool:
    """Tell whether persisted rows may have values of several entries: by the present rules, or by earlier ones."""
    return MERGED_FIELDS in properties or rules.merges_fields


def find_ways(
    ledgers: Mapping[str, Ledger], entries: Iterable[str], seen: BatchesSeen, source: BufferSource
) -> list[str]:
    """Return the producers that brought rows another way than the ``entries`` of sequencers did.

    ``seen`` are all batches that the buffer names. Their own log is such a producer only of batches without a name,
    of the table that the collection takes.
    """
    ways = {producer for producer, ledger in ledgers.items() if ledger.ranges} - {*entries}
    unnamed = (each for each in seen.batches if each.name is None)
    if not any(source.table in {None, each.table} for each in unnamed):
        ways.discard(seen.producer)
    return sorted(ways)


def check_merged(plan: ReplayPlan, firsts: Mapping[int, int], ways: Iterable[str]) -> None:
    """Raise ``UsageError`` if values of merged rows may be of entries that ``plan`` does not read.

    ``firsts`` are the first numbers that were ingested, by sequencer; ``ways`` are as of ``find_ways``.
    """
    missing = {
        id_ for id_, first in firsts.items() if max(plan.numbers[id_].start, plan.rewound.get(id_, _NEVER)) > first
    }
    if lost := sorted(missing & plan.lost.keys()):
        raise UsageError(
            "`merge: fields` put values of several entries into one persisted row, and the buffer has lost the first "
            f"entries of sequencer {', '.join(map(str, lost))}: their values would be lost, too",
            hint="replay without --from: what is persisted stays",
        )
    if missing:
        wanted = " ".join(f"--from {id_}:{first}" for id_, first in sorted(firsts.items()))
        raise UsageError(
            "`merge: fields` put values of several entries into one persisted row, and not all of them are read again",
            hint=f"begin with the first numbers of all sequencers: {wanted}",
        )
    if named := ", ".join(ways):
        raise UsageError(
            f"`merge: fields` put values of rows that came another way, by {named}, into persisted rows, and these are "
            "not in the log",
            hint="replay without --from; for what is persisted, declare the collection anew under another name",
        )
