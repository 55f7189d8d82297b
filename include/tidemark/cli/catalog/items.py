"""`tidemark catalog get`, `set`, `set-kind`, `history`: single items of the truth, and who changed them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidemark.cli.console import print_json, print_line, print_result
from tidemark.cli.options import AsJson, current_user
from tidemark.errors import NotWritable, Refused, UsageError
from tidemark.interval import time_text
from tidemark.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from tidemark.catalog.items.kinds import AuditEventValue, ItemKind
    from tidemark.catalog.items.transaction import Transaction
    from tidemark.catalog.opening.catalog import Catalog

R = TypeVar("R")
Kind = Annotated[str, typer.Argument(metavar="KIND", help="A kind of item, such as setting, collection or config.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The name, the number, or the key as JSON.")]
SomeKey = Annotated[str | None, typer.Argument(metavar="[KEY]", help="Without it: all items of the kind.")]
Value = Annotated[str | None, typer.Argument(metavar="VALUE", help="The value as JSON, or a setting's bare text.")]
Delete = Annotated[bool, typer.Option("--delete", help="Remove the item instead.")]
Wanted = Annotated[str, typer.Argument(metavar="stash|persist|emergency-stash", help="What the next `open` is to do.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the last N events.")]

TITLES = {"persist": "the persist catalog", "stash": "the stash"}  # names of the back ends in sentences


def load_catalog() -> Catalog:
    """Return the catalog that the environment names, for the present user."""
    from tidemark.catalog.opening.catalog import Catalog  # noqa: PLC0415
    from tidemark.clock import SystemClock  # noqa: PLC0415

    return Catalog.of(Settings.load(os.environ), clock=SystemClock(), who=current_user())


def read_items(look: Callable[[Transaction], R]) -> R:
    """Return the result of ``look`` on the items of the truth; a deployment that stands by may look, too.

    Raises ``NotWritable`` if the catalog never had a leader, otherwise as ``Membership.read``.
    """
    from tidemark.catalog.deployment.membership import Membership  # noqa: PLC0415

    found = Membership(load_catalog()).read(look)
    if found is None:
        raise NotWritable.uninitialized("the catalog")
    return found


def set_kind(kind: Wanted, *, as_json: AsJson = False) -> None:
    """Say what the next `open` is to do."""
    from tidemark.catalog.items.kinds import CATALOG_KIND, CONFIG, CatalogKind  # noqa: PLC0415

    wanted = {kind.name.lower().replace("_", "-"): kind for kind in CatalogKind if kind is not CatalogKind.SHADOW}
    if kind not in wanted:
        known = ", ".join(wanted)
        raise UsageError(f"the catalog cannot be of kind {kind!r}", hint=f"kinds are: {known}; shadow is not supported")

    def change(transaction: Transaction) -> None:
        transaction.set_config(CATALOG_KIND, wanted[kind])
        transaction.audit("set-kind", kind=CONFIG, subject=kind, who=current_user())

    with load_catalog().join() as handle:
        handle.transact(change)
        truth = handle.name
    if as_json:
        print_json({"catalog_kind": kind, "truth": truth})
    else:
        print_line(f"the next `tidemark catalog open` uses {kind}; {TITLES[truth]} is still the truth")


def get(kind: Kind, key: SomeKey = None, *, as_json: AsJson = False) -> None:
    """Show an item of the truth, or all of a kind."""
    from tidemark.catalog.items.kinds import kind_named  # noqa: PLC0415

    item_kind = kind_named(kind)
    wanted = None if key is None else _parse_key(item_kind, key)
    items = read_items(lambda transaction: _items(transaction, item_kind, wanted))
    if as_json:
        print_json({"kind": kind, "items": items})
        return
    if wanted is not None and not items:
        print_line(f"there is no {kind} {key}")
    for item in items:
        print_line(f"{_text(item['key'])}\t{_text(item['value'])}")


def set_(kind: Kind, key: Key, value: Value = None, *, delete: Delete = False, as_json: AsJson = False) -> None:
    """Write an item of the truth, or delete it, with an audit event; for what has no command of its own."""
    from tidemark.catalog.items import kinds  # noqa: PLC0415

    item_kind = kinds.kind_named(kind)
    wanted = _parse_key(item_kind, key)
    own = {kinds.LEADER_EPOCH, kinds.CATALOG_KIND, kinds.DATA_VERSION_KEY, kinds.GENERATION_KEY, kinds.TOMBSTONE}
    if item_kind is kinds.CONFIG and key in own:
        raise Refused(f"config {key!r} is the catalog's own", hint="see `tidemark catalog --help` for what changes it")
    if (value is None) is not delete:
        raise UsageError("give a VALUE, or --delete", hint="tidemark catalog set KIND KEY VALUE")
    new = None if value is None else _parse_value(item_kind, value)

    def change(transaction: Transaction) -> bool:
        before = transaction.put(item_kind, wanted, new)
        if before == new:
            return False
        operation = "delete" if new is None else "create" if before is None else "alter"
        transaction.audit(operation, kind=item_kind, subject=key, who=current_user())
        return True

    with load_catalog().join() as handle:
        is_changed = handle.transact(change)
    if as_json:
        print_json({"kind": kind, "key": wanted.model_dump(mode="json"), "changed": is_changed})
    else:
        print_line(f"{kind} {key}: {'changed' if is_changed else 'was so already'}")


def history(*, limit: Limit = None, as_json: AsJson = False) -> None:
    """Show the audit: who changed what in the catalog, and when; the newest event last."""
    from tidemark.catalog.items.kinds import AUDIT_EVENT  # noqa: PLC0415

    events = read_items(lambda transaction: sorted(transaction.items(AUDIT_EVENT), key=lambda event: event[0].id))
    shown = events[-limit:] if limit else events
    result = {"events": [{"id": key.id, **event.model_dump(mode="json")} for key, event in shown]}
    rows = (
        (key.id, time_text(event.occurred_at_ms // 1000 * 1000), event.who, event.operation, event.subject_kind,
         _subject_of(event), event.details.get("why", ""))
        for key, event in shown
    )  # fmt: skip
    print_result(result, ["id", "at", "who", "did", "kind", "what", "why"], rows, as_json=as_json)


def _subject_of(event: AuditEventValue) -> str:
    """Return what was changed; of a switch of the mode also to which one."""
    mode = event.details.get("mode")
    return event.subject if mode is None else f"{event.subject}: {mode}"


def _items(transaction: Transaction, kind: ItemKind[Any, Any], wanted: BaseModel | None) -> list[dict[str, Any]]:
    if wanted is None:
        found = list(transaction.items(kind))
    else:
        value = transaction.get(kind, wanted)
        found = [] if value is None else [(wanted, value)]
    return [{"key": key.model_dump(mode="json"), "value": value.model_dump(mode="json")} for key, value in found]


def _parse_key(kind: ItemKind[Any, Any], text: str) -> BaseModel:
    """Return the key in ``text``: JSON, or the bare text or number of its one field.

    Raises ``UsageError`` if ``text`` is neither.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    fields = list(kind.key_type.model_fields)
    number = int(text) if text.isdecimal() else text
    for candidate in (text if fields == ["root"] else {fields[0]: text}, {fields[0]: number}, _json_of(text)):
        try:
            key: BaseModel = kind.key_type.model_validate(candidate)
        except ValidationError:
            continue
        return key
    raise UsageError(f"{text!r} is no key of kind {kind.name!r}", hint="give its one field, or all as JSON")


def _parse_value(kind: ItemKind[Any, Any], text: str) -> BaseModel:
    """Return the value in ``text``: JSON, or the bare text of a setting.

    Raises ``UsageError`` if the value does not fit the kind.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    candidates = [text] if list(kind.value_type.model_fields) != ["version", "value"] else [
        json.dumps({"value": text}), text]  # fmt: skip
    error: ValidationError | None = None
    for candidate in candidates:
        try:
            value: BaseModel = kind.value_type.model_validate_json(candidate)
        except ValidationError as failure:
            error = failure
        else:
            return value
    reason = error.errors()[0]["msg"] if error else ""
    raise UsageError(f"{text!r} is no value of kind {kind.name!r}: {reason}", hint="see `tidemark catalog get KIND`")


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
