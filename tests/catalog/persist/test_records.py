"""The head of the persist catalog, as a property of its table: what may be there, and what is refused in words."""

from __future__ import annotations

import json

import pytest

from tidemark.catalog.back_end import Head
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.kinds import config_item
from tidemark.catalog.persist.records import PROPERTY, head_text, parse_head, shown_token
from tidemark.errors import CorruptState
from tidemark.iceberg.shard.token import Token

SOUND = {"epoch": 3, "generation": 1, "config": {"data_version": 1}, "deployments": {}}


def test_the_head_and_its_token_are_read_back() -> None:
    properties = {PROPERTY: head_text(Token(1, 3), Contents([config_item("data_version", 1)]))}
    assert json.loads(properties[PROPERTY]) == SOUND
    assert parse_head(properties) == Head(3, {"data_version": 1})
    assert shown_token(properties) == Token(1, 3)
    assert (parse_head({}), shown_token({})) == (Head(None, {}), None)


@pytest.mark.parametrize(
    "edit",
    [
        {"config": {"leader_epoch": -1}},
        {"config": {"leader_epoch": 2**64}},
        {"config": {"": 1}},
        {"config": {"data_version": "?"}},
        {"config": []},
        {"deployments": None},
        {"epoch": float("inf")},
        {"generation": None},
    ],
    ids=str,
)
def test_a_head_that_somebody_edited_is_refused_with_what_to_do(edit: dict[str, object]) -> None:
    properties = {PROPERTY: json.dumps({**SOUND, **edit})}
    for parse in (parse_head, shown_token):
        with pytest.raises(CorruptState, match="the head of the persist catalog cannot be read") as told:
            parse(properties)
        assert "drop the table instead" in told.value.hint
