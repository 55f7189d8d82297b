"""Shared by the command line and the Spark applications: arguments, deployment, report and exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.errors import TidemarkError, Unreachable, UsageError
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.stores import check_stores
from tidemark.interval import Interval, milliseconds
from tidemark.report import ErrorReport, Report
from tidemark.secrets.redaction import traceback_text
from tidemark.settings import Settings


class UsageParser(argparse.ArgumentParser):
    """An argument parser that exits with 64 for invalid arguments, not with 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n")


def parse_interval(start: str, end: str) -> Interval:
    """Return ``[start, end)`` of texts that ``parse_time`` takes. Raises ``UsageError`` if it is empty or reversed."""
    return Interval(parse_time(start), parse_time(end))


def parse_time(text: str) -> int:
    """Return a date or time in ISO form, UTC without an offset, as ms since the Unix epoch.

    Raises ``UsageError`` if ``text`` is not a date or a time.
    """
    import pendulum  # noqa: PLC0415 - takes a while, and most commands get no time

    try:
        time = pendulum.parse(text, tz="UTC")
    except ValueError:
        time = None
    if not isinstance(time, datetime):  # pendulum also knows durations and times of day
        raise UsageError(f"{text!r} is not a time", hint="for example 2013-01-01, or 2013-01-01T06:00:00+00:00")
    return milliseconds(datetime.fromisoformat(time.isoformat()))  # pendulum's own differences cannot be divided


def join_deployment(settings: Settings, *, who: str = "", writes: bool = True) -> Deployment:
    """Return the deployment of this process, once catalog, warehouse and stash have answered, within seconds.

    Call this before pyiceberg and pyspark are imported, which takes seconds. ``who`` is the person or process, for the
    audit. ``writes`` says whether the process writes to the warehouse.

    Raises:
        Unreachable: If a store does not answer, or the warehouse cannot be written.
        FencedByGeneration: If a newer deployment leads.
        NotLed: If the catalog is being moved or opened.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pydantic

    check_stores(settings, writes=writes)
    deployment = deployment_of(settings, who=who)
    deployment.modes.read()
    return deployment


def exit_code_of(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run ``main`` and return its exit code; an unexpected exception is a bug: traceback to stderr, then 70.

    Python's own exit code 1 would not say whether trying again makes sense.
    """
    try:
        return main(argv)
    except Exception as error:  # noqa: BLE001 -- the one place that catches everything
        sys.stderr.write(traceback_text(error))
        return ExitCode.BUG


def write_report(
    path: Path,
    operation: str,
    work: Callable[[Settings], Report],
    *,
    clock: Clock,
    names: Sequence[str] = (),
    records: bool = True,
) -> int:
    """Do the work of a Spark application, write its report to ``path``, and return its exit code.

    If ``work`` raises a TidemarkError, or a store fails, the report has this error and no collections. The statuses and
    measures of the objects are recorded as ``record`` says, unless the work changes none (``records``).
    """
    started_at, generation = clock.now_ms(), 0
    settings: Settings | None = None
    try:
        settings = Settings.load(os.environ)
        generation = settings.generation
        report = work(settings)
    except (TidemarkError, OSError) as error:
        report = Report(
            operation=operation,
            started_at=started_at,
            finished_at=clock.now_ms(),
            generation=generation,
            error=ErrorReport.of(error if isinstance(error, TidemarkError) else Unreachable.by(error)),
        )
    report.write(path)
    if records and settings is not None:
        record(settings, report, clock=clock, names=names)
    return report.exit_code


@contextmanager
def recording_failure(settings: Settings, operation: str, names: Sequence[str], *, clock: Clock) -> Iterator[None]:
    """Record a TidemarkError in the block, which prepares a run over ``names``; without names, over all objects."""
    started_at = clock.now_ms()
    try:
        yield
    except TidemarkError as error:
        failed = Report(
            operation=operation,
            started_at=started_at,
            finished_at=clock.now_ms(),
            generation=settings.generation,
            error=ErrorReport.of(error),
        )
        record(settings, failed, clock=clock, names=names)
        raise


def record(settings: Settings, report: Report, *, clock: Clock, names: Sequence[str] = ()) -> None:
    """Record what a run did to each object, after its own answer was given; whatever goes wrong is only logged.

    A run that ended before its first object failed for each of ``names``, or for all without names. If that was because
    something did not answer, which is mostly the store, nothing is asked again: the process would end seconds later.
    """
    if not report.collections and report.error is not None and report.error.exit_code is ExitCode.UNREACHABLE:
        return
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.system.recorder import record_run  # noqa: PLC0415

    record_run(deployment_of(settings, clock=clock), report, clock=clock, names=names)
