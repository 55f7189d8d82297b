"""Runs one operation for several collections; the failure of one collection leaves the others alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import stands_by
from tidemark.collections.objects.standing import Standing
from tidemark.errors import OutOfTime, Refused, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.leases.holding import holding
from tidemark.iceberg.leases.protection import MAINTENANCE
from tidemark.iceberg.shard.damage import naming_damage
from tidemark.iceberg.shards import Shards
from tidemark.report import SKIPPED_BECAUSE, CollectionReport, ErrorReport, Outcome, Report
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

log = logging.getLogger(__name__)


FOLLOWING: Final = frozenset(
    {"ingest", "sink"}
)  # what runs by itself after a source, or a collection, and is suspended
LEADERS_ALONE: Final = frozenset({MAINTENANCE, "persist"})  # what cannot be staged, and waits for the next run


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
    goes_on_paused: bool = False,
) -> tuple[Report, list[str]]:
    """Run one after the other, holding a lease; return the report, and the names of the collections left for Spark.

    ``collections`` are declarations or shards; an error of ``run`` is reported for its collection alone. ``started_at``
    is the start of the whole run, in ms since the Unix epoch. ``shard_of`` names the shard whose files are read.
    Collections that are paused are skipped, unless the operation ``goes_on_paused``, as maintenance does, which leaves
    the contents alone; those that are suspended for now by an operation of ``FOLLOWING``: others may be what helps.
    The collection whose run a time limit of the deployment ends has failed, and those after it are skipped. All are
    skipped if the deployment stands by, and the operation is one of ``LEADERS_ALONE``.
    """
    reports: dict[str, CollectionReport] = {}
    left: list[str] = []
    chosen, settings, suspends = list(collections), deployment.settings, operation in FOLLOWING
    ids: dict[str, int | None] = {}
    if chosen and operation in LEADERS_ALONE and stands_by(deployment):
        why = f"deployment {deployment.generation} stands by: the deployment that leads does this"
        reports, chosen = {collection.name: skipped(why) for collection in chosen}, []

    def run_unless_resting(collection: Collection) -> CollectionReport:
        """Look into the catalog when the turn has come: the runs before may have taken hours."""
        if goes_on_paused:
            return run(collection)
        found = deployment.objects.find(collection.name)
        ids[collection.name] = found.object_id
        if found.standing is not None and _rests(deployment, clock, collection.name, found.standing, suspends=suspends):
            return _skipped(collection.name, found.standing)
        return run(collection)

    with holding(settings, operation, [*map(shard_of, chosen)]) if chosen else nullcontext():
        for place, collection in enumerate(chosen):
            began_ms = clock.now_ms()
            try:
                run_this = partial(run_unless_resting, collection)
                report = isolate(collection.name, run_this, clock=clock, settings=settings, shard=shard_of(collection))
                reports[collection.name] = replace(report, object_id=ids.get(collection.name))
            except NeedsSpark:
                left.append(collection.name)
            except deployment.time_limits as limit:
                failed = _out_of_time(collection.name, limit, seconds=(clock.now_ms() - began_ms) / 1000)
                reports[collection.name] = replace(failed, object_id=ids.get(collection.name))
                why = f"the time of the run ended with {collection.name!r}: the next run goes on here"
                reports |= {later.name: skipped(why) for later in chosen[place + 1 :]}
                break
    whole = Report(
        operation=operation,
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=reports,
    )
    return whole, left


def find_resting(deployment: Deployment, clock: Clock, *, suspended: bool = False) -> dict[str, CollectionReport]:
    """Return the reports of the objects that runs leave out now, by name: of paused ones.

    With ``suspended`` also of suspended ones whose time has not come, and that nobody asked for.

    Raises as ``Objects.read``.
    """
    return {
        name: _skipped(name, standing)
        for name, standing in deployment.objects.read().items()
        if _rests(deployment, clock, name, standing, suspends=suspended)
    }


def _rests(deployment: Deployment, clock: Clock, name: str, standing: Standing, *, suspends: bool) -> bool:
    if standing.is_paused:
        return True
    return suspends and standing.rests_at(clock.now_ms()) and name not in deployment.asked_for


def _skipped(name: str, standing: Standing) -> CollectionReport:
    return skipped(f"{standing}; `tidemark resume {name}` lets it run again")


def skipped(why: str) -> CollectionReport:
    """Return the report of a collection that a run leaves out."""
    return CollectionReport(outcome=Outcome.SKIPPED, details={SKIPPED_BECAUSE: why})


def with_skipped(report: Report, left_out: Mapping[str, CollectionReport]) -> Report:
    """Return the report, with those of what was left out before the run began."""
    return replace(report, collections={**report.collections, **left_out})


def _out_of_time(name: str, limit: BaseException, *, seconds: float) -> CollectionReport:
    error = OutOfTime(
        f"the time limit ended the run after {seconds:.0f} s: {first_line(limit)}",
        hint="what it committed stays, and the next run goes on from there",
    )
    log.warning("%s: %s", name, error)
    return CollectionReport(outcome=Outcome.FAILED, error=ErrorReport.of(error), seconds=seconds)


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


@contextmanager
def only_logging(what: str) -> Iterator[None]:
    """Log an error of the block, of any kind: ``what`` is not stored then, and the run that it is about stands."""
    try:
        yield
    except TidemarkError as error:
        log.warning("%s: not stored: %s: %s", what, error.kind, error)
    except Exception as error:
        log.exception("%s: not stored: %s: %s", what, type(error).__name__, first_line(error))
