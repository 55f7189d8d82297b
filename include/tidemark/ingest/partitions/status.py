"""Which partitions of a collection are open, and which sequencer holds them open: without a JVM."""

from __future__ import annotations

from typing import Any

from tidemark.collections.declarations.collection import Declaration
from tidemark.iceberg.shard.ledger import Ledger
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.ingest.batches import look_at_batches
from tidemark.ingest.buffer_log import BufferLog, check_buffer_source, look_at
from tidemark.ingest.partitions.closing import Look
from tidemark.ingest.partitions.state import PartitionRules, Partitions
from tidemark.ingest.plan import find_start, remembered_starts
from tidemark.interval import time_text
from tidemark.lifecycle.chunks import Stage
from tidemark.lifecycle.partitions import find_bounds
from tidemark.lifecycle.state import LifecycleState, Partition
from tidemark.lifecycle.watermarks import find_watermark
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.registry import open_reader


def read_partitions(settings: Settings, declaration: Declaration, *, now_ms: int) -> dict[str, Any]:
    """Return the partitions that the state of a collection knows, and the watermark of each sequencer as of now.

    A watermark is an event time; None says that nothing is known of the sequencer, which holds all others back. While
    batches wait that were appended into the buffer, no sequencer has one: their rows may be in any of them.

    Raises:
        UsageError: If the collection does not read a buffer, or declares no event times.
        Unreachable: If the catalog or the buffer does not answer.
    """
    source = check_buffer_source(declaration)
    rules = PartitionRules.required(declaration)
    summary = read_state(settings, declaration.name)
    ledgers = summary.state.ledgers
    state = Partitions.parse(summary.properties, rules.column, rules.unit).state
    connection = find_connection(source.buffer, settings.connections)
    with open_reader(connection) as reader:
        log = BufferLog.of(connection, identity=reader.identity, title=reader.name)
        present = look_at(reader)
        seen = look_at_batches(connection, log, reader.identity, ledgers, source=source)
    starts = remembered_starts(summary.properties)
    begun = {
        id_: find_start(ledgers.get(log.producer(id_), Ledger()), bounds, starts.get(log.producer(id_)))
        for id_, bounds in present.items()
    }
    look = Look(now_ms=now_ms, present=present, begun=begun, batches=seen)
    late_ms, gaps = rules.lifecycle.late_ms, look.find_gaps(log, ledgers)
    whole = {id_: times for id_, times in state.sequencers.items() if id_ not in gaps}
    watermarks = {
        id_: find_watermark(whole.get(id_), now_ms=now_ms, late_ms=late_ms, is_caught_up=is_caught_up)
        for id_, is_caught_up in look.find_caught_up(log, ledgers).items()
    }
    slowest = min(watermarks, key=lambda id_: (watermarks[id_] is not None, watermarks[id_] or 0, id_))
    clock_ms = now_ms - late_ms  # as far as a sequencer is of which nothing waits
    shown: dict[str, Any] = {
        "collection": declaration.name,
        "watermark": _text(state.passed_ms),
        "partitions": [_describe(name, partition, state) for name, partition in sorted(state.partitions.items())],
        "sequencers": [
            {
                "sequencer": id_,
                "watermark": _text(watermark),
                "holds_back": id_ == slowest and (watermark is None or watermark < clock_ms),
            }
            for id_, watermark in sorted(watermarks.items())
        ],
    }
    waiting = sum(numbers.end - numbers.start for numbers in look.find_waiting_batches(ledgers))
    batches_wait = f"{waiting} batches that were appended wait for an ingest" if waiting else ""
    ahead = _explain_ahead(state.passed_ms, now_ms, declaration.name)
    told = {"batches_wait": seen.obstacle or batches_wait, "watermark_ahead": ahead}
    return shown | {name: what for name, what in told.items() if what}


def _explain_ahead(passed_ms: int | None, now_ms: int, name: str) -> str:
    """Return why the watermark is wrong; empty if nothing is wrong."""
    if passed_ms is None or passed_ms <= now_ms:
        return ""
    return (
        "the clock of an ingest was ahead, so rows of partitions that are still to come count as late: correct the "
        f"clock, then `tidemark repair {name} --partitions --yes`; the next ingest counts them from the rows"
    )


def _describe(name: str, partition: Partition, state: LifecycleState) -> dict[str, Any]:
    windows = partition.windows.unpersisted
    if partition.is_closed:
        standing = "closed"
    elif state.is_passed(name):
        standing = "reopened" if partition.late_rows else "passed"
    else:
        standing = f"open until {time_text(find_bounds(name).end_ms)}"
    unpersisted = Stage.OPEN if partition.windows.flush is None else Stage.FROZEN
    return {
        "partition": name,
        "chunk": (
            unpersisted if windows else Stage.PERSISTED
        ).value,  # frozen: a persist is under way, which takes no more rows
        "rows": partition.rows,
        "late_rows": partition.late_rows,
        "open_rows": sum(window.rows for window in windows),
        "earliest": _text(min((window.start_ms for window in windows), default=None)),
        "latest": _text(max((window.end_ms - 1 for window in windows), default=None)),
        "state": standing,
    }


def _text(time_ms: int | None) -> str | None:
    return None if time_ms is None else time_text(time_ms)
