"""Ingests many collections, one after the other, each one's failure its own."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from include.collections.source_declaration import BufferSource
from include.errors import Refused, TidemarkError
from include.exit_codes import ExitCode
from include.ingest.ingest import NeedsSpark, check_buffer_source, ingest
from include.ingest.preflight import check_named, unanswered
from include.report import CollectionReport, ErrorReport, Outcome, Report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from include.clock import Clock
    from include.collections.declaration import Declaration
    from include.collections.deployment import Deployment
    from include.ingest.ingest import Engine
    from include.persist.shards import Shards

log = logging.getLogger(__name__)

OPERATION = "ingest"


def choose_ingested(deployment: Deployment, names: Sequence[str]) -> list[Declaration]:
    """Return the named collections, or all that read a write buffer.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
        UsageError: If a named one does not read a buffer.
    """
    registry = deployment.registry
    if names:
        chosen = [registry.get(name) for name in dict.fromkeys(names)]
        for each in chosen:
            check_buffer_source(each)
        return chosen
    return [each for each in registry.read().declarations.values() if isinstance(each.source, BufferSource)]


def ingest_all(
    shards: Shards,
    deployment: Deployment,
    declarations: Sequence[Declaration],
    *,
    clock: Clock,
    engine: Engine,
    silent: Mapping[str, TidemarkError],
) -> tuple[Report, list[str]]:
    """Ingest what waits for each; return the report, and the names of the collections that are left for Spark.

    Args:
        shards: The shards of the installation.
        deployment: Whose this is.
        declarations: Of collections that read buffers.
        clock: Tells the time.
        engine: How the work may be done.
        silent: Buffers that were asked before and did not answer; the others are asked now.
    """
    started_at = clock.now_ms()
    reports: dict[str, CollectionReport] = {}
    left: list[str] = []
    addresses = {each.source.buffer for each in declarations if isinstance(each.source, BufferSource)}
    others = [each for each in addresses if each.upper() not in silent]
    silent = {**silent, **check_named(others, deployment.settings, clock=clock)}
    for declaration in declarations:
        began_ms = clock.now_ms()
        try:
            if (known := unanswered(check_buffer_source(declaration).buffer, silent)) is not None:
                raise known
            report = ingest(shards, declaration, deployment=deployment, clock=clock, engine=engine)
        except NeedsSpark:
            left.append(declaration.name)
            continue
        except TidemarkError as error:
            outcome = Outcome.REFUSED if isinstance(error, Refused) else Outcome.FAILED
            report = CollectionReport(outcome=outcome, error=ErrorReport.of(error))
        except Exception as error:
            # A bug in what one collection does must not take the others' results away; it exits with 70.
            log.exception("%s failed", declaration.name)
            failure = ErrorReport(kind=type(error).__name__, message=str(error), exit_code=ExitCode.BUG)
            report = CollectionReport(outcome=Outcome.FAILED, error=failure)
        reports[declaration.name] = replace(report, seconds=(clock.now_ms() - began_ms) / 1000)
    whole = Report(
        operation=OPERATION,
        started_at=started_at,
        finished_at=clock.now_ms(),
        generation=deployment.generation,
        collections=reports,
    )
    return whole, left
