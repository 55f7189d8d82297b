"""Runs over several collections: each one's failure is its own."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tidemark.errors import Refused, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidemark.clock import Clock
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import Deployment

log = logging.getLogger(__name__)


class NeedsSpark(Exception):
    """What is to be done for a collection is more than a process without Spark should do by itself."""


def run_one_by_one(
    operation: str,
    declarations: Sequence[Declaration],
    run: Callable[[Declaration], CollectionReport],
    *,
    deployment: Deployment,
    clock: Clock,
    started_at: int,
) -> tuple[Report, list[str]]:
    """Run one after the other; return the report, and the names of the collections that are left for Spark.

    Args:
        operation: The word for it in the report.
        declarations: Of the collections.
        run: What to do for one; whatever it raises is told of that collection alone.
        deployment: Whose this is.
        clock: Tells the time.
        started_at: When the whole run began, ms since the Unix epoch.
    """
    reports: dict[str, CollectionReport] = {}
    left: list[str] = []
    for declaration in declarations:
        try:
            reports[declaration.name] = isolate(declaration.name, partial(run, declaration), clock=clock)
        except NeedsSpark:
            left.append(declaration.name)
    whole = Report(
        operation=operation,
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=reports,
    )
    return whole, left


def isolate(name: str, run: Callable[[], CollectionReport], *, clock: Clock) -> CollectionReport:
    """Run what is to be done for one collection; an error is its report, and takes no other's result away.

    A bug is told in one line, and exits with 70; the log has all of it.

    Args:
        name: Of the collection.
        run: Does it.
        clock: Measures the seconds of the report.

    Raises:
        NeedsSpark: If ``run`` does.
    """
    began_ms = clock.now_ms()
    try:
        report = run()
    except NeedsSpark:
        raise
    except TidemarkError as error:
        log.warning("%s: %s", name, error)
        outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
        report = CollectionReport(outcome=outcome, error=ErrorReport.of(error))
    except Exception as error:
        log.exception("%s failed", name)
        kind, message = type(error).__name__, str(error).partition("\n")[0]
        failure = ErrorReport(kind=kind, message=message, exit_code=ExitCode.BUG)
        report = CollectionReport(outcome=Outcome.FAILED, error=failure)
    return replace(report, seconds=(clock.now_ms() - began_ms) / 1000)
