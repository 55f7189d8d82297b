"""Watches the leases of other processes until it is known which of them are live."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from tidemark.errors import Unreachable
from tidemark.iceberg.leases.lease import Lease, Watch
from tidemark.iceberg.leases.table import LeaseTable, read_leases
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

_PAUSE_S: Final = 0.5


def watch_leases(
    settings: Settings, *, of: Callable[[Lease], bool], until_live: bool = False, watch: Watch | None = None
) -> Watch:
    """Look at the leases that ``of`` chooses until each is seen to be live or to have run out: for its length at most.

    With ``until_live`` it is enough that one of them is live. An earlier ``watch`` of the same leases goes on: what it
    has seen live needs no second look. Raises ``Unreachable`` if the database does not answer.
    """
    watch = watch or Watch()
    while not watch.look(filter(of, read_leases(settings)[0]), now_s=time.monotonic()):
        if until_live and watch.live:
            break
        time.sleep(_PAUSE_S)
    return watch


def end_lapsed(settings: Settings, leases: Iterable[Lease]) -> None:
    """End leases that ran out, so that their processes know it when they go on; and those that all have forgotten.

    Raises ``Unreachable`` if the database does not answer.
    """
    if not read_leases(settings)[0]:  # an older store has no table of them
        return
    table = LeaseTable(settings)
    try:
        for lease in leases:
            table.end_lapsed(lease)
        table.end_forgotten()
    except table.failures as error:
        raise Unreachable(
            f"leases that ran out cannot be ended: {first_line(error)}", hint="check TIDEMARK_CATALOG_URI"
        ) from error
    finally:
        table.close()
