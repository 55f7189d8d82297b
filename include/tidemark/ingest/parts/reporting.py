"""The report of what one ingest did, or one commit of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any

from tidemark.collections.staged.batches import BatchName
from tidemark.errors import TidemarkError
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.ingest.buffer_log import BufferLog
from tidemark.ingest.partitions.closing import Closing, describe_changes
from tidemark.ingest.partitions.state import PartitionRules
from tidemark.ingest.parts.ingesting import Ingesting
from tidemark.ingest.parts.shares import Minted
from tidemark.ingest.plan import PlannedRange
from tidemark.ingest.progress import measure
from tidemark.ingest.publish import PublishedRows
from tidemark.ingest.quarantine import quarantine_name
from tidemark.ingest.range_rows import NOT_CHECKED, Tally, add_up
from tidemark.report import CollectionReport, Outcome
from tidemark.write_buffer.keys import Spread

log = logging.getLogger(__name__)


def closing_of(run: Ingesting, minted: Minted) -> Closing | None:
    """Return what judges the rows of a mint, and closes partitions; None for a collection without event times."""
    if (rules := PartitionRules.of(run.declaration)) is None:
        return None
    passed_ms, read_ms = minted.passed_ms, minted.read_ms
    return Closing(rules=rules, log=run.target.log, look=minted.look, passed_ms=passed_ms, read_ms=read_ms)


def name_of(log: BufferLog, planned: PlannedRange) -> BatchName:
    """Return the name of a range of a sequencer in the ledgers."""
    return BatchName(log.producer(planned.sequencer_id), planned.range)


def report(
    run: Ingesting,
    minted: Minted,
    outcome: Outcome,
    tallies: Sequence[Tally],
    *,
    rows: int = 0,
    published: PublishedRows | None = None,
    measures: bool = True,
) -> CollectionReport:
    """Return the report on ``rows`` good rows of all that ``minted`` says.

    ``published`` is what the commit left that made them visible. Batches that nobody could publish are told once.
    """
    details: dict[str, Any] = {"buffer": run.reader.name}
    bad_rows = sum(tally.bad_rows for tally in tallies)
    ranges, batches, closing = minted.planned, minted.batches.batches, closing_of(run, minted)
    if ranges or batches:
        ledgers: dict[str, Ledger] = {}
        for name in (*(name_of(run.target.log, part) for part in ranges), *(batch.name for batch in batches)):
            ledgers[name.producer] = ledgers.get(name.producer, Ledger()).add(name.range)
        shown = "open_ranges" if closing is not None and closing.rules.keeps_open else "ranges"
        # The main branch shows open ones once they are persisted.
        details[shown if published else "staged_ranges"] = {
            producer: [list(part) for part in ledger.ranges] for producer, ledger in ledgers.items()
        }
        if measures:
            try:
                now_ms = run.target.clock.now_ms()
                details["sequencers"] = measure(run.reader, ranges, add_up(tallies), now_ms=now_ms)
            except TidemarkError as error:  # the rows are published: a broker that stopped since does not fail the run
                details["unmeasured"] = str(error)
    spread = reduce(Spread.add, (tally.spread for tally in tallies), NOT_CHECKED)
    if spread.checked:
        details["key_spread"] = asdict(spread)
    if spread.rows:
        log.warning(
            "%s: %s rows of a key spread over sequencers: %s", run.declaration.name, spread.rows, spread.example
        )
    told: dict[str, object] = {
        "lost": sum(part.lost for part in ranges) + sum(batch.lost for batch in batches),
        "batches_wait": minted.look.batches.obstacle,
        "refused_batches": list(minted.batches.refused),
        "dropped": list(minted.dropped),
    }
    run.dropped.clear()
    details |= {name: what for name, what in told.items() if what}
    _warn(run.declaration.name, details)
    if closing is not None:
        refused = sum(tally.arrivals.refused for tally in tallies)
        details |= describe_changes(published.counted if published else None, refused=refused)
    if bad_rows:
        details |= {"quarantined": bad_rows, "quarantine": quarantine_name(run.declaration.name)}
    upper = run.head.state.upper if published is None else published.state.upper
    return CollectionReport(
        outcome=outcome,
        lower=published.state.lower if published else upper,
        upper=upper,
        inserted=rows if published else 0,
        rows_source=rows + bad_rows if ranges or batches else None,
        batches=len(ranges) + len(batches),
        details=details,
    )


def _warn(collection: str, details: Mapping[str, Any]) -> None:
    """Log what becomes of no row: nobody sees the report of a storage worker's round."""
    for what in ("refused_batches", "dropped"):
        if what in details:
            log.warning("%s: %s: %s", collection, what.replace("_", " "), details[what])
