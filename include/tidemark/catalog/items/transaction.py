"""A transaction of the catalog: pending changes over a snapshot; what it leaves is net retractions and insertions.

Pure: a back end reads the snapshot, runs the caller's function on a transaction and commits ``pending()``, and may do
so several times until nothing comes between. The caller's function must therefore have no other effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.catalog.items.item import Change, Item, net
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    CONFIG,
    ID_ALLOCATOR,
    AuditEventValue,
    ConfigKey,
    ConfigValue,
    IdAllocatorValue,
    NamedKey,
    NumberedKey,
    kind_named,
)
from tidemark.errors import KeyTaken, NotUnique

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from pydantic import BaseModel, JsonValue

    from tidemark.catalog.items.contents import Snapshot
    from tidemark.catalog.items.kinds import ItemKind

K = TypeVar("K", bound="BaseModel")
V = TypeVar("V", bound="BaseModel")


class Transaction:
    """Changes on top of one snapshot, which sees its own. An operation that is refused leaves nothing pending."""

    def __init__(self, snapshot: Snapshot, *, now_ms: int) -> None:
        """Start with nothing pending; ``now_ms`` is the time that audit events of this transaction bear."""
        self._snapshot = snapshot
        self.now_ms = now_ms
        self._pending: dict[str, dict[str, str | None]] = {}  # kind, key: the value it is to have, None for none
        self._claims: dict[tuple[str, str, Hashable], str] = {}  # kind, constraint, claimed value: pending key

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, kind: ItemKind[K, V], key: K) -> V | None:
        """Return the value under ``key``, or None."""
        text = self._text(kind.name, kind.key_text(key))
        return None if text is None else kind.parse_value(text)

    def items(self, kind: ItemKind[K, V]) -> Iterator[tuple[K, V]]:
        """Return the items of a kind, own changes included, in order of their key's text."""
        for key, value in sorted(self._texts(kind.name).items()):
            yield kind.parse_key(key), kind.parse_value(value)

    def config(self, key: str) -> int | None:
        """Return a config value, or None."""
        value = self.get(CONFIG, ConfigKey(key))
        return None if value is None else value.root

    # -- changing --------------------------------------------------------------------------------------------------

    def insert(self, kind: ItemKind[K, V], key: K, value: V) -> None:
        """Add an item; its key may have been deleted in this transaction.

        Raises:
            KeyTaken: If there is an item of that key.
            NotUnique: If another item holds what must be unique.
        """
        text = kind.key_text(key)
        if self._text(kind.name, text) is not None:
            raise KeyTaken(f"{kind.name} {text} exists already", hint="choose another, or change the one that is there")
        self._put(kind, {text: kind.value_text(value)})

    def put(self, kind: ItemKind[K, V], key: K, value: V | None) -> V | None:
        """Make ``value`` the value under ``key``, None for no item, whatever is there now; return what was there.

        Raises:
            NotUnique: If another item holds what must be unique.
        """
        before = self.get(kind, key)
        self._put(kind, {kind.key_text(key): None if value is None else kind.value_text(value)})
        return before

    def update(self, kind: ItemKind[K, V], change: Callable[[K, V], V | None]) -> int:
        """Replace the value of each item for which ``change`` returns another one, None leaves it; return how many.

        The items may exchange what must be unique: only the outcome counts.

        Raises:
            NotUnique: If afterwards two items held what must be unique.
        """
        changed = {}
        for key, value in self.items(kind):
            new = change(key, value)
            if new is not None and new != value:
                changed[kind.key_text(key)] = kind.value_text(new)
        self._put(kind, changed)
        return len(changed)

    def delete(self, kind: ItemKind[K, V], where: Callable[[K, V], bool]) -> list[tuple[K, V]]:
        """Delete the items for which ``where`` holds, and return them."""
        deleted = [(key, value) for key, value in self.items(kind) if where(key, value)]
        self._put(kind, {kind.key_text(key): None for key, _ in deleted})
        return deleted

    def set_config(self, key: str, value: int | None) -> None:
        """Set a config value, None removes it."""
        self.put(CONFIG, ConfigKey(key), None if value is None else ConfigValue(value))

    def allocate(self, allocator: str, count: int = 1) -> int:
        """Take ``count`` numbers, at least 1, from an allocator and return the first; the others follow it.

        An allocator that is not there yet starts with 1. Numbers of a transaction that does not commit come again.
        """
        if count < 1:
            raise ValueError(f"at least one number has to be taken, got {count}")
        key = NamedKey(name=allocator)
        stored = self.get(ID_ALLOCATOR, key)
        first = 1 if stored is None else stored.next_id
        self.put(ID_ALLOCATOR, key, IdAllocatorValue(next_id=first + count))
        return first

    def audit(
        self,
        operation: str,
        *,
        kind: ItemKind[Any, Any],
        subject: str,
        who: str,
        details: Mapping[str, JsonValue] | None = None,
    ) -> int:
        """Record what is done here, in this same transaction, and return the event's id.

        Args:
            operation: A verb, such as ``create``.
            kind: What kind of item is concerned.
            subject: Which one, in words.
            who: The person or process that asked for it.
            details: What else a reader of the history needs.
        """
        number = self.allocate(AUDIT_EVENT.name)
        event = AuditEventValue(
            occurred_at_ms=self.now_ms,
            operation=operation,
            subject_kind=kind.name,
            subject=subject,
            who=who,
            details=dict(details or {}),
        )
        self.insert(AUDIT_EVENT, NumberedKey(id=number), event)
        return number

    # -- the outcome -----------------------------------------------------------------------------------------------

    def pending(self) -> list[Change]:
        """Return the net changes, retractions first; empty if everything is as the snapshot has it."""
        changes = []
        for kind, values in self._pending.items():
            for key, value in values.items():
                before = self._snapshot.get(kind, key)
                changes += [Change(Item(kind, key, text), diff) for text, diff in ((before, -1), (value, 1)) if text]
        return net(changes)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _text(self, kind: str, key: str) -> str | None:
        pending = self._pending.get(kind, {})
        return pending[key] if key in pending else self._snapshot.get(kind, key)

    def _texts(self, kind: str) -> dict[str, str]:
        merged: dict[str, str | None] = {**self._snapshot.of_kind(kind), **self._pending.get(kind, {})}
        return {key: value for key, value in merged.items() if value is not None}

    def _put(self, kind: ItemKind[Any, Any], changed: Mapping[str, str | None]) -> None:
        claims = self._new_claims(kind, changed)
        pending = self._pending.setdefault(kind_named(kind.name).name, {})
        for claim in [claim for claim, key in self._claims.items() if claim[0] == kind.name and key in changed]:
            del self._claims[claim]
        self._claims |= claims
        pending.update(changed)

    def _new_claims(
        self, kind: ItemKind[Any, Any], changed: Mapping[str, str | None]
    ) -> dict[tuple[str, str, Hashable], str]:
        """Return what the changed items hold that must be unique, or refuse the change."""
        claims: dict[tuple[str, str, Hashable], str] = {}
        for constraint, held in kind.unique.items():
            for key, value in changed.items():
                if value is None or (claimed := held(kind.parse_key(key), kind.parse_value(value))) is None:
                    continue
                claim = (kind.name, constraint, claimed)
                other = claims.get(claim) or self._other_holder(kind, claim, changed)
                if other is not None:
                    raise NotUnique(
                        f"{kind.name} {key} cannot have the {constraint} {claimed!r}, {other} has it",
                        hint=f"the {constraint} is unique among items of kind {kind.name!r}",
                    )
                claims[claim] = key
        return claims

    def _other_holder(
        self, kind: ItemKind[Any, Any], claim: tuple[str, str, Hashable], changed: Mapping[str, str | None]
    ) -> str | None:
        """Return the key outside ``changed`` that holds what is claimed, own changes included."""
        pending = self._claims.get(claim)
        if pending is not None:
            return None if pending in changed else pending
        stored = self._snapshot.holder(kind, claim[1], claim[2])
        return None if stored in changed or stored in self._pending.get(kind.name, {}) else stored
