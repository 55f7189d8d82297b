"""Who discarded which staged batches, as audit events of the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.catalog.items.kinds import AUDIT_EVENT, COLLECTION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.catalog.deployment.membership import Membership
    from tidemark.catalog.items.transaction import Transaction

OPERATION = "discard"


@dataclass(frozen=True, slots=True)
class CatalogDiscards:
    """Implements ``DiscardRecords``: the key of a record is the subject of its event."""

    membership: Membership

    def add(self, records: Mapping[str, dict[str, Any]], *, who: str) -> None:
        def change(transaction: Transaction) -> None:
            known = _recorded(transaction)
            for key, details in records.items():
                if key not in known:
                    transaction.audit(OPERATION, kind=COLLECTION, subject=key, who=who, details=details)

        self.membership.change(change)

    def read(self) -> list[dict[str, Any]]:
        return list((self.membership.read(_recorded) or {}).values())


def _recorded(transaction: Transaction) -> dict[str, dict[str, Any]]:
    """Return the records by key, oldest first."""
    events = sorted(transaction.items(AUDIT_EVENT), key=lambda each: each[0].id)
    return {event.subject: dict(event.details) for _, event in events if event.operation == OPERATION}
