from __future__ import annotations

import pytest

from tests.support.catalog.items_of import collection_item, name, numbered, setting, setting_item
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    COLLECTION,
    DEPLOYMENT,
    ID_ALLOCATOR,
    SETTING,
    AuditEventValue,
    DeploymentKey,
    DeploymentState,
    DeploymentValue,
    IdAllocatorValue,
    ItemKind,
    NamedKey,
    NumberedKey,
    SettingValue,
)
from tidemark.catalog.items.transaction import Transaction
from tidemark.collections.deployment import Mode
from tidemark.errors import KeyTaken, NotUnique, UnknownKind
from tidemark.exit_codes import ExitCode


def begun(*items: object) -> Transaction:
    return Transaction(Contents(items), now_ms=7)


def test_only_net_changes_are_pending() -> None:
    transaction = begun(setting_item("kept", "1"), setting_item("changed", "1"), setting_item("gone", "1"))
    transaction.put(SETTING, name("kept"), setting("2"))
    transaction.put(SETTING, name("kept"), setting("1"))
    transaction.insert(SETTING, name("passing"), setting("1"))
    transaction.delete(SETTING, lambda key, _: key.name in {"passing", "gone"})
    transaction.update(SETTING, lambda key, _: setting("2") if key.name == "changed" else None)
    transaction.insert(SETTING, name("new"), setting("1"))
    assert transaction.pending() == [
        Change(setting_item("changed", "1"), -1),
        Change(setting_item("gone", "1"), -1),
        Change(setting_item("changed", "2"), 1),
        Change(setting_item("new", "1"), 1),
    ]


def test_a_transaction_sees_its_own_changes() -> None:
    transaction = begun(setting_item("b", "1"))
    transaction.insert(SETTING, name("a"), setting("2"))
    assert transaction.get(SETTING, name("a")) == setting("2")
    assert list(transaction.items(SETTING)) == [(name("a"), setting("2")), (name("b"), setting("1"))]
    assert transaction.delete(SETTING, lambda _, value: value.value == "1") == [(name("b"), setting("1"))]
    assert list(transaction.items(SETTING)) == [(name("a"), setting("2"))]


def test_an_existing_key_cannot_be_inserted() -> None:
    transaction = begun(setting_item("a", "1"))
    with pytest.raises(KeyTaken, match="setting") as refused:
        transaction.insert(SETTING, name("a"), setting("2"))
    assert refused.value.exit_code is ExitCode.REFUSED
    transaction.insert(SETTING, name("b"), setting("2"))
    with pytest.raises(KeyTaken):
        transaction.insert(SETTING, name("b"), setting("3"))
    assert transaction.pending() == [Change(setting_item("b", "2"), 1)]


def test_a_deleted_key_may_be_inserted_again_in_the_same_transaction() -> None:
    transaction = begun(collection_item("a", 1))
    transaction.delete(COLLECTION, lambda key, _: key.name == "a")
    transaction.insert(COLLECTION, name("a"), numbered(1))
    assert transaction.pending() == []
    transaction.delete(COLLECTION, lambda key, _: key.name == "a")
    transaction.insert(COLLECTION, name("a"), numbered(2))
    assert transaction.pending() == [Change(collection_item("a", 1), -1), Change(collection_item("a", 2), 1)]


def test_what_must_be_unique_is_refused_and_leaves_nothing() -> None:
    transaction = begun(collection_item("a", 1))
    with pytest.raises(NotUnique, match="cannot have the id 1") as refused:
        transaction.insert(COLLECTION, name("b"), numbered(1))
    assert refused.value.exit_code is ExitCode.REFUSED
    transaction.insert(COLLECTION, name("b"), numbered(2))
    with pytest.raises(NotUnique):
        transaction.put(COLLECTION, name("c"), numbered(2))
    with pytest.raises(NotUnique):
        transaction.update(COLLECTION, lambda _, value: value.model_copy(update={"id": 9}))
    assert transaction.pending() == [Change(collection_item("b", 2), 1)]


def test_unique_values_are_free_again_once_given_up() -> None:
    transaction = begun(collection_item("a", 1))
    transaction.put(COLLECTION, name("a"), numbered(2))
    transaction.insert(COLLECTION, name("b"), numbered(1))
    transaction.put(COLLECTION, name("b"), None)
    transaction.insert(COLLECTION, name("c"), numbered(1))
    assert {key.name: value.id for key, value in transaction.items(COLLECTION)} == {"a": 2, "c": 1}


def test_items_may_exchange_unique_values() -> None:
    transaction = begun(collection_item("a", 1), collection_item("b", 2))
    assert transaction.update(COLLECTION, lambda _, value: value.model_copy(update={"id": 3 - value.id})) == 2
    assert {key.name: value.id for key, value in transaction.items(COLLECTION)} == {"a": 2, "b": 1}


def test_one_deployment_leads() -> None:
    def deployment(state: DeploymentState) -> DeploymentValue:
        return DeploymentValue(state=state, mode=Mode.READ_WRITE, since_ms=0)

    transaction = begun(DEPLOYMENT.item(DeploymentKey(generation=1), deployment(DeploymentState.IS_LEADER)))
    transaction.insert(DEPLOYMENT, DeploymentKey(generation=2), deployment(DeploymentState.CATCHING_UP))
    with pytest.raises(NotUnique, match="leader"):
        transaction.put(DEPLOYMENT, DeploymentKey(generation=2), deployment(DeploymentState.IS_LEADER))
    states = {1: DeploymentState.DEPOSED, 2: DeploymentState.IS_LEADER}
    transaction.update(DEPLOYMENT, lambda key, _: deployment(states[key.generation]))
    assert {key.generation: value.state for key, value in transaction.items(DEPLOYMENT)} == states


def test_an_allocator_hands_out_each_number_once() -> None:
    transaction = begun(ID_ALLOCATOR.item(name("collection"), IdAllocatorValue(next_id=5)))
    assert (transaction.allocate("collection"), transaction.allocate("collection", 3)) == (5, 6)
    assert transaction.allocate("sink") == 1
    assert transaction.get(ID_ALLOCATOR, name("collection")) == IdAllocatorValue(next_id=9)
    with pytest.raises(ValueError, match="at least one"):
        transaction.allocate("sink", 0)


def test_the_audit_event_is_part_of_the_transaction() -> None:
    transaction = begun()
    transaction.insert(COLLECTION, name("a"), numbered(1))
    assert transaction.audit("create", kind=COLLECTION, subject="a", who="ann", details={"from": "file"}) == 1
    assert transaction.audit("alter", kind=COLLECTION, subject="a", who="ann") == 2
    event = AuditEventValue(
        occurred_at_ms=7,
        operation="create",
        subject_kind="collection",
        subject="a",
        who="ann",
        details={"from": "file"},
    )
    assert transaction.get(AUDIT_EVENT, NumberedKey(id=1)) == event
    kinds = [change.item.kind for change in transaction.pending()]
    assert kinds == ["audit_event", "audit_event", "collection", "id_allocator"]


def test_config_is_set_and_removed() -> None:
    transaction = begun()
    transaction.set_config("tombstone", 1)
    assert transaction.config("tombstone") == 1
    transaction.set_config("tombstone", None)
    assert (transaction.config("tombstone"), transaction.pending()) == (None, [])


def test_a_kind_of_one_s_own_is_refused() -> None:
    with pytest.raises(UnknownKind):
        begun().put(ItemKind("gadget", NamedKey, SettingValue), name("a"), setting("1"))
