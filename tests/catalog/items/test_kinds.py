from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from tests.support.catalog.items_of import name, numbered
from tidemark.catalog.items.item import Item
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    COLLECTION,
    CONFIG,
    DEPLOYMENT,
    KINDS,
    SETTING,
    TOMBSTONE,
    ConfigKey,
    ConfigValue,
    DeploymentKey,
    DeploymentState,
    DeploymentValue,
    SettingValue,
    config_item,
    kind_named,
)
from tidemark.collections.deployment import Mode
from tidemark.errors import CorruptState, IncompatibleDataVersion, UnknownKind
from tidemark.exit_codes import ExitCode


def test_the_format_of_config_never_changes() -> None:
    """Written down here as bytes: every version, older or newer, reads the tombstone in this form."""
    assert config_item(TOMBSTONE, 1) == Item("config", '"tombstone"', "1")
    assert (CONFIG.parse_key('"tombstone"').root, CONFIG.parse_value("1").root) == ("tombstone", 1)
    assert CONFIG.value_text(ConfigValue(2**64 - 1)) == "18446744073709551615"


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_config_value_is_an_unsigned_number_of_64_bits(value: int) -> None:
    with pytest.raises(ValidationError):
        ConfigValue(value)
    with pytest.raises(CorruptState, match="config"):
        CONFIG.parse_value(str(value))


def test_every_other_kind_has_a_version() -> None:
    assert [kind for kind in KINDS.values() if "version" not in kind.value_type.model_fields] == [CONFIG]


def test_items_read_back_as_they_were_written() -> None:
    key = DeploymentKey(generation=3)
    value = DeploymentValue(state=DeploymentState.IS_LEADER, mode=Mode.READ_ONLY, since_ms=5, who="ß")
    item = DEPLOYMENT.item(key, value)
    assert (DEPLOYMENT.parse_key(item.key), DEPLOYMENT.parse_value(item.value)) == (key, value)
    assert json.loads(item.value)["mode"] == "read-only"


def test_the_order_of_a_declaration_does_not_matter() -> None:
    one = numbered(1).model_copy(update={"declaration": {"key": ["a"], "name": "x"}})
    two = numbered(1).model_copy(update={"declaration": {"name": "x", "key": ["a"]}})
    assert COLLECTION.item(name("x"), one) == COLLECTION.item(name("x"), two)


def test_a_newer_version_of_a_value_is_not_guessed_at() -> None:
    with pytest.raises(IncompatibleDataVersion, match="version 2") as refused:
        SETTING.parse_value('{"value":"x","version":2,"unit":"s"}')
    assert refused.value.exit_code is ExitCode.NOT_POSSIBLE


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version":1}', '{"value":1,"version":1}', '{"value":"","x":1}'])
def test_an_edited_value_is_reported_as_such(text: str) -> None:
    with pytest.raises(CorruptState, match="setting"):
        SETTING.parse_value(text)


def test_an_unknown_kind_is_a_usage_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownKind, match="'gadget'") as refused:
        kind_named("gadget")
    assert refused.value.exit_code is ExitCode.USAGE
    assert "audit_event" in refused.value.hint
    assert kind_named("audit_event") is AUDIT_EVENT


def test_a_key_is_short_enough_for_every_index() -> None:
    longest = CONFIG.key_text(ConfigKey("\U0001f30a" * 200))
    assert len(longest) < 2_700, "a page of a PostgreSQL index"
    with pytest.raises(ValidationError):
        name("x" * 201)


def test_values_cannot_be_changed_in_place() -> None:
    value = SettingValue(value="x")
    with pytest.raises(ValidationError):
        value.value = "y"
