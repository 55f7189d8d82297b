"""Runs one operation for several collections; the failure of one collection leaves the others alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.errors import Refused, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shards import Shards
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

log = logging.getLogger(__name__)


class Named(Protocol):
    """A collection, as a declaration or as a shard."""

    @property
    def name(self) -> str: ...


Collection = TypeVar("Collection", bound=Named)


class NeedsSpark(Exception):
    """The work for a collection is more than a process without Spark should do."""


def run_one_by_one(
    operation: str,
    collections: Iterable[Collection],
    run: Callable[[Collection], CollectionReport],
    *,
    deployment: Deployment,
    clock: Clock,
    started_at: int,
    shard_of: Callable[[Collection], str] = attrgetter("name"),
) -> tuple[Report, list[str]]:
    """Run one after the other, holding a lease; return the report, and the names of the collections left for Spark.

    ``collections`` are declarations or shards; an error of ``run`` is reported for its collection alone. ``started_at``
    is the start of the whole run, in ms since the Unix epoch. ``shard_of`` names the shard whose files are read.
    """
    reports: dict[str, CollectionReport] = {}
    left: list[str] = []
    chosen, settings = list(collections), deployment.settings
    with holding(settings, operation, [*map(shard_of, chosen)]) if chosen else nullcontext():
        for collection in chosen:
            try:
                run_this = partial(run, collection)
                reports[collection.name] = isolate(
                    collection.name, run_this, clock=clock, settings=settings, shard=shard_of(collection)
                )
            except NeedsSpark:
                left.append(collection.name)
    report = Report(
        operation=operation,
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=reports,
    )
    return report, left


def isolate(
    name: str, run: Callable[[], CollectionReport], *, clock: Clock, settings: Settings, shard: str = ""
) -> CollectionReport:
    """Do the work for one collection; return its report, or a report of its error.

    Whatever goes wrong because of damaged files is reported with their names. A bug is reported in one line, with exit
    code 70; the log has the traceback. ``shard`` has these files, if its name is another one.

    Raises ``NeedsSpark`` if ``run`` does.
    """
    began_ms = clock.now_ms()
    try:
        with naming_damage(lambda: Shards.connect(settings).open(shard or name).load()):
            report = run()
    except NeedsSpark:
        raise
    except TidemarkError as error:
        log.warning("%s: %s", name, error)
        outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
        report = CollectionReport(outcome=outcome, error=ErrorReport.of(error))
    except Exception as error:
        log.exception("%s failed", name)
        message = first_line(error)
        failure = ErrorReport(kind=type(error).__name__, message=message, exit_code=ExitCode.BUG)
        report = CollectionReport(outcome=Outcome.FAILED, error=failure)
    return replace(report, seconds=(clock.now_ms() - began_ms) / 1000)
