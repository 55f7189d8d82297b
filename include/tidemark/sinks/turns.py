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

from tidemark.errors import Unreachable
from tidemark.iceberg.leases.holding import HeldLease, seems_alive, writer_id
from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.leases.table import read_leases
from tidemark.settings import Settings

WAIT_S: Final = 20.0  # for a run that ends soon: what came during its last look is then carried by this one
_PAUSE_S: Final = 0.5


@contextmanager
def taking_turn(settings: Settings, sink: str, collection: str) -> Iterator[Lease | None]:
    """Hold the lease of the sink; yield None when this run's turn has come, or the lease of the run that goes on."""
    lease = HeldLease(settings, _operation(sink), [collection])
    lease.begin()
    try:
        until_s = time.monotonic() + WAIT_S
        while (other := find_run(settings, sink, before_us=True)) is not None and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        yield other
    finally:
        lease.end()


def find_run(settings: Settings, sink: str, *, before_us: bool = False) -> Lease | None:
    """Return the lease of the run of the sink that is under way in another process; ``before_us``: began before ours.

    None also if the database of the leases does not answer.
    """
    try:
        leases, now_ms = read_leases(settings)
    except Unreachable:
        return None
    for lease in leases:  # the oldest first
        if lease.operation != _operation(sink):
            continue
        if lease.writer != writer_id():
            if seems_alive(lease, now_ms):
                return lease
        elif before_us:
            return None
    return None


def _operation(sink: str) -> str:
    return f"sink {sink}"
