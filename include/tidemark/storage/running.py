"""Tells what live storage workers run, so that scheduled runs leave it to them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import read_mode
from tidemark.report import CollectionReport
from tidemark.settings import Settings
from tidemark.storage.board import look_once
from tidemark.storage.sharing import WORKERS, find_live

if TYPE_CHECKING:
    from tidemark.collections.isolation import Collection

log = logging.getLogger(__name__)

_WHY: Final = "a storage worker runs it all the time; `tidemark storage status` shows how far it has come"


def how_to_run(name: str, deployment: Deployment) -> str:
    """Return what somebody does who wants storage workers to run an object that none of them runs.

    Raises ``Unreachable`` if the database does not answer.
    """
    applied = deployment.registry.read()
    declared = applied.declarations.get(name)
    if declared is not None and not declared.reads_buffer:
        return "workers run sinks, and collections that read a write buffer: scheduled runs do all others"
    if name not in applied.paced:
        return f"declare `every: 5s` for {name!r}, apply it, and start workers: `tidemark storage run`"
    entries, now_ms = look_once(deployment.settings, WORKERS)
    live = find_live(entries, now_ms=now_ms)
    if not live:
        return "start workers: `tidemark storage run`"
    if 0 not in live:
        return "worker 0, which decides what runs, is away: `tidemark storage run` starts it"
    return "the workers begin with it within seconds, unless `tidemark storage status` says why they wait"


def running_on_workers(settings: Settings) -> frozenset[str]:
    """Return the names of the collections and sinks that live storage workers run, in milliseconds.

    Politeness only: a worker may have died just now, and whatever runs beside a worker is safe.

    Raises ``Unreachable`` if the database does not answer.
    """
    entries, now_ms = look_once(settings, WORKERS)
    return frozenset(
        name for entry in find_live(entries, now_ms=now_ms).values() for name in entry.value.get("objects", ())
    )


def leave_to_workers(
    deployment: Deployment, chosen: Sequence[Collection], names: Sequence[str]
) -> tuple[list[Collection], dict[str, CollectionReport]]:
    """Return what is left of ``chosen`` for a run, and the reports of what live storage workers run, as skipped.

    Nothing is left to workers if somebody gave the ``names`` to run, nor while the deployment is read-only, because
    its workers wait then.

    Raises ``Unreachable`` if the database does not answer, and as ``read_mode``.
    """
    from tidemark.collections.isolation import skipped  # noqa: PLC0415 - it loads pyiceberg

    if names or not (running := running_on_workers(deployment.settings)) or read_mode(deployment) is Mode.READ_ONLY:
        return list(chosen), {}
    left = {each.name: skipped(_WHY) for each in chosen if each.name in running}
    for name in left:
        log.info("%s: skipped: %s", name, _WHY)
    return [each for each in chosen if each.name not in left], left
