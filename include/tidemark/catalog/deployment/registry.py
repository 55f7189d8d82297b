"""The applied declarations, stored as items of the catalog."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import mode_in
from tidemark.catalog.deployment.sinks import put_sink, read_sinks
from tidemark.catalog.items.kinds import COLLECTION, OBJECT_STATE, SINK, CollectionValue, NamedKey
from tidemark.catalog.items.transaction import Transaction
from tidemark.collections.declarations.collection import DECLARATION_VERSION, Declaration
from tidemark.collections.declarations.sink import SinkDeclaration
from tidemark.collections.deployment import Applied, CatalogObject, Mode, StatusKind
from tidemark.collections.mode import mode_of, read_only
from tidemark.errors import CatalogOutOfSync, CorruptState, NotPossible, UnknownCollection

RENAME = "rename"


@dataclass(frozen=True, slots=True)
class CatalogRegistry:
    """Implements ``Registry``."""

    membership: Membership
    who: str  # for the audit

    def read(self) -> Applied:
        return self.membership.read(_applied) or Applied()

    def get(self, name: str) -> Declaration:
        applied = self.read()
        if name not in applied.declarations:
            raise UnknownCollection.named(name, applied.declarations, renamed=applied.renamed)
        return applied.declarations[name]

    def find(self, name: str) -> Declaration | None:
        value = self.membership.read(lambda transaction: transaction.get(COLLECTION, NamedKey(name=name)))
        return None if value is None else parse_declaration(name, value)

    def objects(self) -> dict[str, CatalogObject]:
        return self.membership.read(_objects) or {}

    def replace(self, changed: Iterable[Declaration], *, seen: Applied, sinks: Iterable[SinkDeclaration] = ()) -> None:
        declarations, carried, generation = list(changed), list(sinks), self.membership.generation

        def change(transaction: Transaction) -> None:
            if _texts(transaction) != seen.texts:
                raise CatalogOutOfSync(
                    "somebody else applied declarations after these were compared with what is applied",
                    hint="apply again",
                )
            # In this transaction, because a switch to read-only changes items that this transaction reads.
            if mode_of(mode_in(transaction, generation), generation) is Mode.READ_ONLY:
                raise read_only(generation, "change of declarations")
            for declaration in declarations:
                _put(transaction, declaration, who=self.who)
            for sink in carried:
                put_sink(transaction, sink, who=self.who)

        self.membership.change(change)


def _put(transaction: Transaction, declaration: Declaration, *, who: str) -> None:
    key = NamedKey(name=declaration.name)
    before = transaction.get(COLLECTION, key) or _rename(transaction, declaration, who=who)
    value = CollectionValue(
        id=transaction.allocate(COLLECTION.name) if before is None else before.id,
        declaration_version=DECLARATION_VERSION,
        declaration=declaration.to_json(),
    )
    if value == before:
        return
    transaction.put(COLLECTION, key, value)
    transaction.audit(
        "create" if before is None else "alter",
        kind=COLLECTION,
        subject=declaration.name,
        who=who,
        details={"id": value.id, "declaration": value.declaration},
    )


def _rename(transaction: Transaction, declaration: Declaration, *, who: str) -> CollectionValue | None:
    """Take the item of the old name away, and move its state; return the item, None if there is nothing to rename."""
    name, old_name = declaration.name, declaration.renamed_from
    if old_name is None or (old := transaction.put(COLLECTION, NamedKey(name=old_name), None)) is None:
        return None
    if (state := transaction.put(OBJECT_STATE, NamedKey(name=old_name), None)) is not None:
        transaction.put(OBJECT_STATE, NamedKey(name=name), state)
    transaction.audit(RENAME, kind=COLLECTION, subject=name, who=who, details={"id": old.id, "from": old_name})
    return old


def _applied(transaction: Transaction) -> Applied:
    declarations = {key.name: parse_declaration(key.name, value) for key, value in transaction.items(COLLECTION)}
    return Applied(dict(sorted(declarations.items())), _texts(transaction), read_sinks(transaction))


def _texts(transaction: Transaction) -> dict[str, str]:
    """Return the stored texts; collections and sinks share one space of names."""
    texts = {key.name: COLLECTION.value_text(value) for key, value in transaction.items(COLLECTION)}
    return texts | {key.name: SINK.value_text(value) for key, value in transaction.items(SINK)}


def _objects(transaction: Transaction) -> dict[str, CatalogObject]:
    found = {key.name: CatalogObject(StatusKind.SINK, value.id) for key, value in transaction.items(SINK)}
    for key, value in transaction.items(COLLECTION):
        source = value.declaration.get("source")
        is_ingestion = isinstance(source, dict) and "buffer" in source
        found[key.name] = CatalogObject(StatusKind.INGESTION if is_ingestion else StatusKind.COLLECTION, value.id)
    return dict(sorted(found.items()))


def parse_declaration(name: str, value: CollectionValue) -> Declaration:
    """Return the declaration in an item of the catalog.

    Raises:
        NotPossible: If a newer Tidemark wrote the item.
        CorruptState: If the item cannot be read.
    """
    if value.declaration_version > DECLARATION_VERSION:
        raise NotPossible(
            f"the declaration of {name!r} has version {value.declaration_version}, this Tidemark reads up to "
            f"{DECLARATION_VERSION}",
            hint="a newer Tidemark applied it: use that one",
        )
    try:
        return Declaration.model_validate(value.declaration)
    except (ValueError, TypeError, ValidationError) as error:
        raise CorruptState(
            f"the applied declaration of {name!r} cannot be read: {error}", hint="apply its file once more"
        ) from error
