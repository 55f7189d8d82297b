"""The life of objects, stored as items of the catalog: paused and suspended ones, and dropped ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import mode_in
from tidemark.catalog.deployment.registry import RENAME, parse_declaration
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    COLLECTION,
    DROPPED,
    OBJECT_STATE,
    SINK,
    AuditEventValue,
    CollectionValue,
    DroppedValue,
    ItemKind,
    NamedKey,
    NumberedKey,
    ObjectStateValue,
    SinkValue,
)
from tidemark.catalog.items.transaction import Transaction
from tidemark.collections.deployment import Found, Leaving, Mode
from tidemark.collections.mode import mode_of, read_only
from tidemark.collections.objects.standing import Dropped, ObjectKind, ObjectState, Standing, back_off_ms
from tidemark.errors import CatalogOutOfSync, StillRead, UnknownObject, UsageError
from tidemark.interval import time_text
from tidemark.report import ErrorReport

DROP = "drop"
_KINDS: Mapping[ObjectKind, ItemKind[Any, Any]] = {ObjectKind.COLLECTION: COLLECTION, ObjectKind.SINK: SINK}
_MADE_ANEW: Mapping[ObjectKind, str] = {
    ObjectKind.COLLECTION: "`tidemark apply` its declaration: it is made anew, and empty",
    ObjectKind.SINK: "`tidemark apply` its declaration, with `existing: replace` in `to` if its old target is to be "
    "loaded anew: what the dropped sink wrote is still there",
}


@dataclass(frozen=True, slots=True)
class CatalogObjects:
    """Implements ``Objects``."""

    membership: Membership
    who: str  # for the audit

    # -- paused and suspended ----------------------------------------------------------------------------------------

    def read(self) -> Mapping[str, Standing]:
        return self.membership.read(_standings) or {}

    def find(self, name: str) -> Found:
        def look(transaction: Transaction) -> Found:
            kind, value = _find(transaction, name) or (None, None)
            declaration = parse_declaration(name, value) if isinstance(value, CollectionValue) else None
            gone = frozenset(each.table_uuid for _, each in transaction.items(DROPPED) if each.name == name)
            object_id = None if value is None else value.id
            return Found(declaration, _standing(transaction, name), gone, kind, object_id)

        return self.membership.read(look) or Found()

    def pause(self, names: Sequence[str], *, why: str = "") -> dict[str, Standing]:
        def change(transaction: Transaction) -> dict[str, Standing]:
            self._refuse_when_read_only(transaction, "pause")
            paused: dict[str, Standing] = {}
            for name in names:
                kind = _require(transaction, name)[0]
                present = _standing(transaction, name)
                if present is not None and present.is_paused:
                    paused[name] = present
                    continue
                new = Standing(state=ObjectState.PAUSED, since_ms=transaction.now_ms, who=self.who, reason=why)
                _put(transaction, name, new)
                self._audit(transaction, "pause", kind, name, {"why": why})
            return paused

        return self.membership.change(change)

    def resume(self, names: Sequence[str]) -> dict[str, Standing]:
        def change(transaction: Transaction) -> dict[str, Standing]:
            self._refuse_when_read_only(transaction, "resume")
            ended: dict[str, Standing] = {}
            for name in names:
                kind = _require(transaction, name)[0]
                present = _standing(transaction, name)
                if present is not None:
                    ended[name] = present
                    _put(transaction, name, None)
                    self._audit(transaction, "resume", kind, name, {"was": str(present)})
            return ended

        return self.membership.change(change)

    def suspend(
        self, name: str, object_id: int, error: ErrorReport, *, back_off: Callable[[int], int] = back_off_ms
    ) -> Standing | None:
        def change(transaction: Transaction) -> Standing | None:
            self._refuse_when_read_only(transaction, "suspension")
            found = _find(transaction, name)
            present = _standing(transaction, name)
            if found is None or found[1].id != object_id or (present is not None and present.is_paused):
                return None
            attempts = 1 if present is None else present.attempts + 1
            new = Standing(
                state=ObjectState.SUSPENDED,
                # The earlier one may be of a clock that was ahead.
                since_ms=min(transaction.now_ms, transaction.now_ms if present is None else present.since_ms),
                reason=error.message.strip().partition("\n")[0],
                error=error.kind,
                attempts=attempts,
                retry_at_ms=transaction.now_ms + back_off(attempts),
            )
            _put(transaction, name, new)
            if present is None:  # not for every try of an object that fails for months
                self._audit(transaction, "suspend", found[0], name, {"error": new.error, "reason": new.reason})
            return new

        return self.membership.change(change)

    def recover(self, name: str, object_id: int) -> bool:
        present = self.read().get(name)
        if present is None or present.is_paused:  # as nearly always: without a commit
            return False

        def change(transaction: Transaction) -> bool:
            found, present = _find(transaction, name), _standing(transaction, name)
            if found is None or found[1].id != object_id or present is None or present.is_paused:
                return False
            _put(transaction, name, None)
            self._audit(transaction, "recover", found[0], name, {"attempts": present.attempts})
            return True

        return self.membership.change(change)

    # -- dropped -----------------------------------------------------------------------------------------------------

    def look(self, names: Sequence[str]) -> list[Leaving]:
        def find(transaction: Transaction) -> list[Leaving]:
            self._refuse_when_read_only(transaction, DROP)
            leaving = []
            for name in dict.fromkeys(names):
                kind, value = _require(transaction, name)
                leaving.append(Leaving(kind=kind, name=name, object_id=value.id))
            _refuse_what_is_read(transaction, leaving)
            return leaving

        found = self.membership.read(find)
        if found is None:
            raise UnknownObject.named(names[0], ())
        return found

    def drop(self, leaving: Sequence[Leaving]) -> list[Dropped]:
        def change(transaction: Transaction) -> list[Dropped]:
            self._refuse_when_read_only(transaction, DROP)
            for each in leaving:
                kind, value = _require(transaction, each.name)
                if (kind, value.id) != (each.kind, each.object_id):
                    raise CatalogOutOfSync(
                        f"{each.name!r} was dropped and made anew since it was looked at", hint="look again"
                    )
            _refuse_what_is_read(transaction, leaving)
            return [dropped for each in leaving for dropped in self._drop(transaction, each)]

        return self.membership.change(change)

    def _drop(self, transaction: Transaction, leaving: Leaving) -> Iterator[Dropped]:
        key = NamedKey(name=leaving.name)
        before = transaction.put(_KINDS[leaving.kind], key, None)
        definition = before.definition if isinstance(before, SinkValue) else {}
        _put(transaction, leaving.name, None)
        for name, uuid in (leaving.tables or {leaving.name: ""}).items():
            value = DroppedValue(
                object_kind=leaving.kind,
                name=name,
                object_id=leaving.object_id,
                table_uuid=uuid,
                dropped_at_ms=transaction.now_ms,
                who=self.who,
                definition=definition,
            )
            number = NumberedKey(id=transaction.allocate(DROPPED.name))
            transaction.insert(DROPPED, number, value)
            yield _dropped(number, value)
        tables: dict[str, JsonValue] = dict(leaving.tables)
        self._audit(transaction, DROP, leaving.kind, leaving.name, {"id": leaving.object_id, "tables": tables})

    def dropped(self) -> list[Dropped]:
        found = self.membership.read(
            lambda transaction: [_dropped(key, value) for key, value in transaction.items(DROPPED)]
        )
        return sorted(found or [], key=lambda dropped: dropped.number)

    def forget(self, removed: Dropped) -> None:
        def change(transaction: Transaction) -> None:
            if transaction.put(DROPPED, NumberedKey(id=removed.number), None) is not None:
                details: dict[str, JsonValue] = {"id": removed.object_id, "table": removed.table_uuid}
                self._audit(transaction, "remove", removed.kind, removed.name, details)

        self.membership.change(change)

    def gone(self, names: Sequence[str]) -> Mapping[str, str]:
        def look(transaction: Transaction) -> dict[str, str]:
            missing = [name for name in dict.fromkeys(names) if _find(transaction, name) is None]
            left = {name: _find_leave(transaction, name) for name in missing}
            return {name: _leave_text(name, event) for name, event in left.items() if event is not None}

        return self.membership.read(look) or {}

    def _refuse_when_read_only(self, transaction: Transaction, what: str) -> None:
        # In this transaction, because a switch to read-only changes items that this transaction reads.
        generation = self.membership.generation
        if mode_of(mode_in(transaction, generation), generation) is Mode.READ_ONLY:
            raise read_only(generation, what)

    def _audit(
        self, transaction: Transaction, operation: str, kind: ObjectKind, name: str, details: Mapping[str, JsonValue]
    ) -> None:
        transaction.audit(operation, kind=_KINDS[kind], subject=name, who=self.who, details=details)


def _find(transaction: Transaction, name: str) -> tuple[ObjectKind, CollectionValue | SinkValue] | None:
    key = NamedKey(name=name)
    if (collection := transaction.get(COLLECTION, key)) is not None:
        return ObjectKind.COLLECTION, collection
    sink = transaction.get(SINK, key)
    return None if sink is None else (ObjectKind.SINK, sink)


def _require(transaction: Transaction, name: str) -> tuple[ObjectKind, CollectionValue | SinkValue]:
    """Return the object. Raises ``UsageError`` if it was dropped, ``UnknownObject`` if there never was one."""
    if (found := _find(transaction, name)) is None:
        _refuse_dropped(transaction, name)
        known = [key.name for kind in _KINDS.values() for key, _ in transaction.items(kind)]
        raise UnknownObject.named(name, known)
    return found


def _refuse_dropped(transaction: Transaction, name: str) -> None:
    """Raise ``UsageError`` if the audit says that an object of that name was dropped."""
    last = _find_leave(transaction, name)
    if last is not None and last.operation == DROP:
        raise UsageError(
            f"{_leave_text(name, last)}: there is no such object any more",
            hint=_MADE_ANEW[ObjectKind(last.subject_kind)],
        )


def _find_leave(transaction: Transaction, name: str) -> AuditEventValue | None:
    """Return the last event that took the name away from an object: its drop, or a rename; None if there is none."""
    leaves = [
        event
        for _, event in transaction.items(AUDIT_EVENT)
        if (event.operation == DROP and event.subject == name)
        or (event.operation == RENAME and event.details.get("from") == name)
    ]
    return max(leaves, key=lambda event: event.occurred_at_ms, default=None)


def _leave_text(name: str, event: AuditEventValue) -> str:
    what = "dropped" if event.operation == DROP else f"renamed to {event.subject!r}"
    by = f" by {event.who}" if event.who else ""
    return f"{name!r} was {what} {time_text(event.occurred_at_ms // 1000 * 1000)}{by}"


def _refuse_what_is_read(transaction: Transaction, leaving: Sequence[Leaving]) -> None:
    """Raise ``StillRead`` with all collections and sinks that stay and read a collection that leaves."""
    names = {each.name for each in leaving}
    readers = [
        f"collection {key.name!r} reads {name!r}"
        for key, value in transaction.items(COLLECTION)
        if key.name not in names
        for name in parse_declaration(key.name, value).inputs
        if name in names
    ]
    readers += [
        f"sink {key.name!r} carries {value.collection!r}"
        for key, value in transaction.items(SINK)
        if key.name not in names and value.collection in names
    ]
    if readers:
        raise StillRead("; ".join(readers), hint="drop them first, or together; or apply them without it")


def _standings(transaction: Transaction) -> dict[str, Standing]:
    return {key.name: _parse(value) for key, value in transaction.items(OBJECT_STATE)}


def _standing(transaction: Transaction, name: str) -> Standing | None:
    value = transaction.get(OBJECT_STATE, NamedKey(name=name))
    return None if value is None else _parse(value)


def _parse(value: ObjectStateValue) -> Standing:
    return Standing(**value.model_dump(exclude={"version"}))


def _put(transaction: Transaction, name: str, standing: Standing | None) -> None:
    value = None
    if standing is not None:
        value = ObjectStateValue(
            state=standing.state,
            since_ms=standing.since_ms,
            who=standing.who,
            reason=standing.reason,
            error=standing.error,
            attempts=standing.attempts,
            retry_at_ms=standing.retry_at_ms,
        )
    transaction.put(OBJECT_STATE, NamedKey(name=name), value)


def _dropped(key: NumberedKey, value: DroppedValue) -> Dropped:
    return Dropped(number=key.id, kind=value.object_kind, **value.model_dump(exclude={"version", "object_kind"}))
