"""The applied sinks, stored as items of the catalog."""

from __future__ import annotations

from tidemark.catalog.items.kinds import SINK, NamedKey, SinkValue
from tidemark.catalog.items.transaction import Transaction
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import AppliedSink
from tidemark.errors import CorruptState


def read_sinks(transaction: Transaction) -> dict[str, AppliedSink]:
    """Return the sinks by name, sorted. Raises ``CorruptState`` if one cannot be read."""
    found = {key.name: AppliedSink(value.id, _parse(key.name, value)) for key, value in transaction.items(SINK)}
    return dict(sorted(found.items()))


def put_sink(transaction: Transaction, sink: SinkDeclaration, *, who: str) -> None:
    """Store a new or altered sink, with the event for the audit."""
    key = NamedKey(name=sink.name)
    before = transaction.get(SINK, key)
    value = SinkValue(
        id=transaction.allocate(SINK.name) if before is None else before.id,
        collection=sink.collection,
        definition=sink.to_json(),
    )
    if value == before:
        return
    transaction.put(SINK, key, value)
    transaction.audit(
        "create" if before is None else "alter",
        kind=SINK,
        subject=sink.name,
        who=who,
        details={"id": value.id, "definition": value.definition},
    )


def _parse(name: str, value: SinkValue) -> SinkDeclaration:
    try:
        return SinkDeclaration.model_validate(value.definition)
    except (ValueError, TypeError) as error:
        raise CorruptState(
            f"the applied sink {name!r} cannot be read: {error}",
            hint="a newer Tidemark applied it, or somebody edited the catalog: use that Tidemark, or restore a dump",
        ) from error
