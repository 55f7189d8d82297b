"""Which files of a collection no removal takes, because a process that holds a lease may still commit them.

Whoever removes files ends the leases that ran out, then takes the leases that are left, and only then looks which files
are named, on metadata that the removal itself has changed. Whoever commits asks whether the lease of its operation
stands, on the metadata that the commit replaces. So the commit was named before the removal looked, or it loses against
the change; or its lease stood when the removal took the leases, and its files were spared. Both compare the same number
with the time of a file: a wrong clock makes the commit compute again, and costs no file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemark.fail_points import fail_point
from tidemark.iceberg.leases.holding import held_leases
from tidemark.iceberg.leases.lease import Lease
from tidemark.iceberg.leases.table import read_leases
from tidemark.iceberg.leases.watching import end_lapsed, watch_leases
from tidemark.settings import Settings

FAIL_POINTS: Final = ("leases.after-end",)
MAINTENANCE: Final = "maintain"  # the operation
_MARGIN_MS: Final = 3_600_000  # the clock of the database and that of the store differ by less


def protect_writers(settings: Settings, collection: str | None = None) -> int | None:
    """End the leases that ran out; return since when others may have written files that they still need, in ms.

    None: nobody else is at work on ``collection``, or without one on any. Others are all but the maintenance of this
    process, which asks. It may take as long as a lease, to see one run out; a maintenance waits once for all
    collections.

    Raises ``Unreachable`` if the database does not answer.
    """
    maintenances = [lease for lease in held_leases(settings) if lease.operation == MAINTENANCE]
    own = {lease.id for lease in maintenances}

    def is_other(lease: Lease) -> bool:
        return lease.id not in own

    earlier = maintenances[0].watch if maintenances else None
    end_lapsed(settings, watch_leases(settings, of=is_other, watch=earlier).lapsed.values())
    fail_point("leases.after-end")
    others = filter(is_other, read_leases(settings)[0])
    return _begin_of(lease for lease in others if collection is None or lease.concerns(collection))


def own_protection(settings: Settings, collection: str) -> int | None:
    """Return since when the files that this process has written to ``collection`` are spared; None without a lease.

    Raises ``Unreachable`` if the database does not answer.
    """
    own = {lease.id for lease in held_leases(settings)}
    return _begin_of(lease for lease in read_leases(settings)[0] if lease.id in own and lease.concerns(collection))


def is_alone(settings: Settings, collection: str) -> bool:
    """Return whether one lease of this process is all that is stored on ``collection``, counting what ran out.

    Raises ``Unreachable`` if the database does not answer.
    """
    ids = [lease.id for lease in read_leases(settings)[0] if lease.concerns(collection)]
    return len(ids) == 1 and ids[0] in {lease.id for lease in held_leases(settings)}


def _begin_of(leases: Iterable[Lease]) -> int | None:
    return min((lease.began_ms - _MARGIN_MS for lease in leases), default=None)
