"""Appends one interval of the declared sources of many collections, one after the other, each one's failure its own."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from include.collections.declaration import Kind
from include.collections.frame_append import append_interval
from include.collections.registry import LogRegistry
from include.errors import Refused, TidemarkError
from include.exit_codes import ExitCode
from include.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from include.clock import Clock
    from include.collections.declaration import Declaration
    from include.collections.interval import Interval
    from include.persist.shards import Shards
    from include.settings import Settings

log = logging.getLogger(__name__)


def choose_appended(shards: Shards, settings: Settings, names: Sequence[str]) -> list[Declaration]:
    """Return the named collections, or all whose source is cut by an interval and that are append-only.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
    """
    registry = LogRegistry(shards, settings.generation)
    if names:
        return [registry.get(name) for name in dict.fromkeys(names)]
    declared = registry.read().declarations.values()
    return [each for each in declared if each.kind is Kind.APPEND_ONLY and each.needs_interval]


def append_all(
    spark: SparkSession,
    shards: Shards,
    settings: Settings,
    declarations: Sequence[Declaration],
    interval: Interval,
    *,
    clock: Clock,
) -> Report:
    """Append the slice ``interval`` of each source, once; intervals that are there already are skipped."""
    started_at = clock.now_ms()
    reports: dict[str, CollectionReport] = {}
    for declaration in declarations:
        began_ms = clock.now_ms()
        try:
            report = append_interval(spark, shards, declaration, interval, settings=settings, clock=clock)
        except TidemarkError as error:
            outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
            report = CollectionReport(outcome=outcome, error=ErrorReport.of(error))
        except Exception as error:
            # A bug in what one collection does must not take the others' results away; it exits with 70.
            log.exception("%s failed", declaration.name)
            failure = ErrorReport(kind=type(error).__name__, message=str(error), exit_code=ExitCode.BUG)
            report = CollectionReport(outcome=Outcome.FAILED, error=failure)
        reports[declaration.name] = replace(report, seconds=(clock.now_ms() - began_ms) / 1000)
    return Report(
        operation="append",
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=settings.generation,
        collections=reports,
    )
