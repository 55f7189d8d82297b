"""Chooses the collections that read write buffers, and ingests them one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemark.clock import Clock
from tidemark.collections.declarations.collection import Declaration, Kind
from tidemark.collections.declarations.selection import choose
from tidemark.collections.deployment import Deployment
from tidemark.collections.isolation import run_one_by_one
from tidemark.errors import TidemarkError
from tidemark.iceberg.shards import Shards
from tidemark.ingest.buffer_log import check_buffer_source
from tidemark.ingest.ingest import ingest
from tidemark.ingest.latest.ingest import ingest_latest
from tidemark.ingest.parts.ingesting import Engine
from tidemark.ingest.preflight import check_named
from tidemark.report import CollectionReport, Report


def choose_ingested(deployment: Deployment, words: Sequence[str]) -> list[Declaration]:
    """Return the collections that ``words`` select, or all that read a write buffer; rules leave out the others.

    Raises:
        UnknownCollection: If a name is not applied; with near matches.
        UsageError: If a named collection does not read a buffer, or no collection has a tag.
    """
    declared = deployment.registry.read().declarations
    return choose(declared, words, lambda each: each.reads_buffer, require=check_buffer_source)


def ingest_all(
    shards: Shards,
    deployment: Deployment,
    declarations: Sequence[Declaration],
    *,
    clock: Clock,
    engine: Engine,
    silent: Mapping[str, TidemarkError],
) -> tuple[Report, list[str]]:
    """Ingest the waiting entries of every collection; return the report, and the names of those left for Spark.

    ``silent`` are the buffers that did not answer an earlier check, by names in upper case; the others are asked now.

    Raises ``UsageError`` if a collection reads no buffer; nothing is ingested.
    """
    started_at = clock.now_ms()
    addresses = {check_buffer_source(declaration).buffer for declaration in declarations}
    others = [address for address in addresses if address.upper() not in silent]
    silent = {**silent, **check_named(others, deployment.settings)}

    def ingest_one(declaration: Declaration) -> CollectionReport:
        if (error := silent.get(check_buffer_source(declaration).buffer.upper())) is not None:
            raise error
        if declaration.kind is Kind.LATEST:
            return ingest_latest(
                shards, declaration, deployment=deployment, clock=clock, max_entries=engine.max_entries
            )
        return ingest(shards, declaration, deployment=deployment, clock=clock, engine=engine)

    return run_one_by_one("ingest", declarations, ingest_one, deployment=deployment, clock=clock, started_at=started_at)
