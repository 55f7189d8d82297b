"""One run of a sink at a time: a run holds a lease on its sink, and another run waits for a while, and is then skipped.

Politeness only: a second run would fence the first one in the target, and a long load would so never end. What makes
two runs at once right is the target alone, so that a lease which cannot be stored, or is taken for dead too early,
does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.collections.deployment import AppliedSink
from tidemark.errors import Unreachable
from tidemark.iceberg.leases.holding import HeldLease, may_be_alive, seems_alive, writer_id
from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.leases.table import read_leases
from tidemark.settings import Settings

WAIT_S: Final = 20.0  # for a run that ends soon: what came during its last look is then carried by this one
_PAUSE_S: Final = 0.5


@contextmanager
def taking_turn(settings: Settings, applied: AppliedSink) -> Iterator[Lease | None]:
    """Hold the lease of the sink; yield None when this run's turn has come, or the lease of the run that goes on."""
    lease = HeldLease(settings, _operation(applied.name, applied.id), [applied.collection])
    lease.begin()
    try:
        until_s = time.monotonic() + WAIT_S
        while (other := find_run(settings, applied, before_us=True)) is not None and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        yield other
    finally:
        lease.end()


def find_run(settings: Settings, applied: AppliedSink, *, before_us: bool = False) -> Lease | None:
    """Return the lease of the run of the sink that is under way in another process; ``before_us``: began before ours.

    None also if the database of the leases does not answer.
    """
    leases, now_ms = _leases_of(settings, applied)
    for lease in leases:
        if lease.writer != writer_id():
            if seems_alive(lease, now_ms):
                return lease
        elif before_us:
            return None
    return None


def find_lost_runs(settings: Settings, applied: AppliedSink) -> list[Lease]:
    """Return the leases of runs of the sink, in other processes, that ended without a word, the oldest first.

    None also if the database of the leases does not answer, or if a maintenance has ended these leases.
    """
    leases, now_ms = _leases_of(settings, applied)
    return [lease for lease in leases if lease.writer != writer_id() and not seems_alive(lease, now_ms)]


def may_be_running(settings: Settings, sink: str, sink_id: int) -> bool:
    """Tell whether a run of the sink, in any process, may still claim its target; a silent one on another host may.

    Its lease stays until the run ends, or maintenance has watched it. Raises ``Unreachable`` if the database of the
    leases does not answer.
    """
    leases, _ = read_leases(settings)
    return any(lease.operation == _operation(sink, sink_id) and may_be_alive(lease) for lease in leases)


def _leases_of(settings: Settings, applied: AppliedSink) -> tuple[list[Lease], int]:
    """Return the leases of the sink, the oldest first, and the time of their database."""
    try:
        leases, now_ms = read_leases(settings)
    except Unreachable:
        return [], 0
    return [lease for lease in leases if lease.operation == _operation(applied.name, applied.id)], now_ms


def _operation(sink: str, sink_id: int) -> str:
    return f"sink {sink} ({sink_id})"  # a sink that is declared anew under the name runs for itself
