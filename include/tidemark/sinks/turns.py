"""One run of a sink at a time: a run holds a lease on its sink, and another run waits for a while, and is then skipped.

Politeness only: a second run would fence the first one in the target, and a long load would so never end. What makes
two runs at once right is the target alone, so that a lease which cannot be stored, or is taken for dead too early,
does no harm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemark.errors import Unreachable
from tidemark.iceberg.leases.holding import HeldLease, writer_id
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
            if _seems_alive(lease, now_ms):
                return lease
        elif before_us:
            return None
    return None


def may_be_running(settings: Settings, sink: str) -> bool:
    """Tell whether a run of the sink, in any process, may still claim its target; a silent one on another host may.

    Its lease stays until the run ends, or maintenance has watched it. Raises ``Unreachable`` if the database of the
    leases does not answer.
    """
    leases, _ = read_leases(settings)
    return any(lease.operation == _operation(sink) and _may_be_alive(lease) for lease in leases)


def _operation(sink: str) -> str:
    return f"sink {sink}"


def _seems_alive(lease: Lease, now_ms: int) -> bool:
    """Tell by the last renewals and, on this host, by its process, which may have been killed right now."""
    return now_ms - lease.renewed_ms <= 1000 * lease.length_s / 2 and _may_be_alive(lease)


def _may_be_alive(lease: Lease) -> bool:
    host, _, process = lease.writer.rpartition(":")
    return host != writer_id().rpartition(":")[0] or _is_running(int(process))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)  # which asks, and sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
