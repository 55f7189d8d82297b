"""Puts together what collections know of the deployment, all of it kept in the catalog that the settings name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import CatalogModes
from tidemark.catalog.deployment.objects import CatalogObjects
from tidemark.catalog.deployment.registry import CatalogRegistry
from tidemark.catalog.items.kinds import AUDIT_EVENT, COLLECTION
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.catalog import Catalog
from tidemark.clock import Clock, SystemClock
from tidemark.collections.deployment import BatchLog, Deployment
from tidemark.settings import Settings

OPERATION, SKIPPING = "discard", "skip-lost"


def deployment_of(settings: Settings, *, who: str = "", clock: Clock | None = None) -> Deployment:
    """Return the deployment of this process, which joins the catalog's leader with its first read or change.

    ``who`` is the person or process, for the audit.

    Raises ``ConfigurationInvalid`` if the stash's URI is malformed.
    """
    membership = Membership(Catalog.of(settings, clock=clock or SystemClock(), who=who))
    return Deployment(
        settings=settings,
        registry=CatalogRegistry(membership, who),
        objects=CatalogObjects(membership, who),
        modes=CatalogModes(membership),
        discards=CatalogDiscards(membership),
        losses=CatalogLosses(membership),
        buffers=NamedBuffers(settings.connections),
    )


@dataclass(frozen=True, slots=True)
class NamedBuffers:
    """Implements ``Buffers`` with the addresses that the environment has."""

    environ: Mapping[str, str]

    @contextmanager
    def open(self, buffer: str, *, collection: str, table: str) -> Iterator[BatchLog]:
        from tidemark.write_buffer.address import find_connection  # noqa: PLC0415 -- most processes need no buffer
        from tidemark.write_buffer.batches.batch_log import open_batch_log  # noqa: PLC0415

        connection = find_connection(buffer, self.environ)
        with open_batch_log(connection, collection=collection, table=table) as opened:
            yield opened


@dataclass(frozen=True, slots=True)
class CatalogDiscards:
    """Implements ``DiscardRecords`` with audit events: the subject of an event is the key of the record."""

    membership: Membership

    def add(self, records: Mapping[str, dict[str, Any]], *, who: str) -> None:
        def change(transaction: Transaction) -> None:
            stored = _discards(transaction)
            for key, details in records.items():
                if key not in stored:
                    transaction.audit(OPERATION, kind=COLLECTION, subject=key, who=who, details=details)

        self.membership.change(change)

    def read(self) -> list[dict[str, Any]]:
        return list((self.membership.read(_discards) or {}).values())


@dataclass(frozen=True, slots=True)
class CatalogLosses:
    """Implements ``LossRecords`` with audit events."""

    membership: Membership

    def add(self, collection: str, details: Mapping[str, Any], *, who: str) -> None:
        def change(transaction: Transaction) -> None:
            events = (event for _, event in transaction.items(AUDIT_EVENT) if event.operation == SKIPPING)
            if not any((event.subject, event.who, event.details) == (collection, who, details) for event in events):
                transaction.audit(SKIPPING, kind=COLLECTION, subject=collection, who=who, details=details)

        self.membership.change(change)


def _discards(transaction: Transaction) -> dict[str, dict[str, Any]]:
    """Return the records by key, oldest first."""
    events = sorted(transaction.items(AUDIT_EVENT), key=lambda item: item[0].id)
    return {event.subject: dict(event.details) for _, event in events if event.operation == OPERATION}
