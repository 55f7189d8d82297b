"""The holds of sinks, as the items of the catalog name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.items.kinds import SINK
from tidemark.catalog.items.transaction import Transaction
from tidemark.collections.declarations.sink import SinkDeclaration


@dataclass(frozen=True, slots=True)
class CatalogSinkHolds:
    """Implements ``SinkHolds``."""

    membership: Membership

    def read(self) -> Mapping[tuple[str, str], int]:
        return self.membership.read(_sink_holds) or {}


def _sink_holds(transaction: Transaction) -> dict[tuple[str, str], int]:
    sinks = (SinkDeclaration.model_validate(value.definition) for _, value in transaction.items(SINK))
    return {(sink.collection, sink.hold): sink.warn_after_ms for sink in sinks}
