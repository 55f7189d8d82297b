"""A transaction of the catalog: pending changes over a snapshot; the result is net retractions and insertions.

Pure: a back end reads the snapshot, runs the caller's function on a transaction and commits ``pending()``. If another
commit comes in between, the back end does so again. So the caller's function must have no other effect.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, JsonValue

from tidemark.catalog.items.contents import Snapshot
from tidemark.catalog.items.item import Change, Item, net
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    CONFIG,
    ID_ALLOCATOR,
    AuditEventValue,
    ConfigKey,
    ConfigValue,
    IdAllocatorValue,
    ItemKind,
    NamedKey,
    NumberedKey,
    kind_named,
)
from tidemark.errors import KeyTaken, NotUnique

K = TypeVar("K", bound=BaseModel)
V = TypeVar("V", bound=BaseModel)


class Transaction:
    """Changes on top of one snapshot; reads see the own changes. A refused operation leaves nothing pending.

    ``now_ms`` is the time of the transaction's audit events.
    """

    def __init__(self, snapshot: Snapshot, *, now_ms: int) -> None:
        self._snapshot = snapshot
        self.now_ms = now_ms
        self._pending: dict[str, dict[str, str | None]] = {}  # kind, key: new value, None for a deleted item
        self._claims: dict[tuple[str, str, Hashable], str] = {}  # kind, constraint, claimed value: pending key

    def get(self, kind: ItemKind[K, V], key: K) -> V | None:
        """Return the value under ``key``, or None."""
        text = self._text(kind.name, kind.key_text(key))
        return None if text is None else kind.parse_value(text)

    def items(self, kind: ItemKind[K, V]) -> Iterator[tuple[K, V]]:
        """Yield the items of a kind, own changes included, in order of the text of the key."""
        merged = {**self._snapshot.of_kind(kind.name), **self._pending.get(kind.name, {})}
        for key, value in sorted(merged.items()):
            if value is not None:
                yield kind.parse_key(key), kind.parse_value(value)

    def config(self, key: str) -> int | None:
        """Return a config value, or None."""
        value = self.get(CONFIG, ConfigKey(key))
        return None if value is None else value.root

    def insert(self, kind: ItemKind[K, V], key: K, value: V) -> None:
        """Add an item; this transaction may have deleted its key.

        Raises:
            KeyTaken: If there is an item of that key.
            NotUnique: If another item has the same value of a constraint.
        """
        text = kind.key_text(key)
        if self._text(kind.name, text) is not None:
            raise KeyTaken(f"{kind.name} {text} exists already", hint="choose another, or change the one that is there")
        self._put(kind, {text: kind.value_text(value)})

    def put(self, kind: ItemKind[K, V], key: K, value: V | None) -> V | None:
        """Set or replace the value under ``key``, None deletes the item; return the value before.

        Raises ``NotUnique`` if another item has the same value of a constraint.
        """
        before = self.get(kind, key)
        self._put(kind, {kind.key_text(key): None if value is None else kind.value_text(value)})
        return before

    def update(self, kind: ItemKind[K, V], change: Callable[[K, V], V | None]) -> int:
        """Replace the value of an item by the result of ``change``, None keeps the value; return how many changed.

        Items may exchange values of a constraint: only the outcome counts.

        Raises ``NotUnique`` if two items would have the same value of a constraint.
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
        """Set a config value; None deletes the key."""
        self.put(CONFIG, ConfigKey(key), None if value is None else ConfigValue(value))

    def allocate(self, allocator: str, count: int = 1) -> int:
        """Take ``count`` consecutive numbers, at least 1, from an allocator and return the first.

        A new allocator starts with 1. Numbers of a transaction that does not commit are handed out again.
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
        """Add an audit event to this transaction and return the event's id.

        ``operation`` is a verb, such as ``create``; ``subject`` names the item in words.
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

    def pending(self) -> list[Change]:
        """Return the net changes, retractions first; empty if nothing differs from the snapshot."""
        changes = []
        for kind, values in self._pending.items():
            for key, value in values.items():
                before = self._snapshot.get(kind, key)
                changes += [Change(Item(kind, key, text), diff) for text, diff in ((before, -1), (value, 1)) if text]
        return net(changes)

    def _text(self, kind: str, key: str) -> str | None:
        pending = self._pending.get(kind, {})
        return pending[key] if key in pending else self._snapshot.get(kind, key)

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
        """Return the constraint values that the changed items claim, or refuse the change."""
        claims: dict[tuple[str, str, Hashable], str] = {}
        for constraint, claimed_by in kind.unique.items():
            for key, value in changed.items():
                if value is None or (claimed := claimed_by(kind.parse_key(key), kind.parse_value(value))) is None:
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
        """Return the key outside ``changed`` that holds the claimed value, own changes included."""
        pending = self._claims.get(claim)
        if pending is not None:
            return None if pending in changed else pending
        stored = self._snapshot.holder(kind, claim[1], claim[2])
        return None if stored in changed or stored in self._pending.get(kind.name, {}) else stored
