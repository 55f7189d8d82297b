"""Small items for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.data_versions import opening_changes
from tidemark.catalog.items.kinds import COLLECTION, SETTING, CollectionValue, NamedKey, SettingValue

if TYPE_CHECKING:
    from tidemark.catalog.items.item import Item
    from tidemark.catalog.items.transaction import Transaction


def name(text: str) -> NamedKey:
    return NamedKey(name=text)


def setting(text: str) -> SettingValue:
    return SettingValue(value=text)


def numbered(number: int) -> CollectionValue:
    """A collection's value, of which ``id`` has to be unique."""
    return CollectionValue(id=number, declaration_version=1, declaration={})


def setting_item(key: str, value: str) -> Item:
    return SETTING.item(name(key), setting(value))


def collection_item(key: str, number: int) -> Item:
    return COLLECTION.item(name(key), numbered(number))


def initialised(*items: Item, generation: int = 1) -> Contents:
    """Contents of an initialised back end that also holds ``items``."""
    empty = Contents()
    fresh = opening_changes({}, lambda: empty, generation=generation, where="test")
    return Contents([*(change.item for change in fresh), *items])


def set_to(value: str, key: str = "tide") -> object:
    """A change that sets one setting, for ``transact``."""

    def change(transaction: Transaction) -> str:
        transaction.put(SETTING, name(key), setting(value))
        return value

    return change
