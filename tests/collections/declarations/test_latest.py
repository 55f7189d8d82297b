"""Declarations of collections that keep the latest row of each key."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tidemark.collections.declarations.collection import Declaration, Kind, OnKeySpread
from tidemark.collections.sources.formats.buffer import Envelope

FIELDS: dict[str, Any] = {
    "name": "it",
    "kind": "latest",
    "schema": "id bigint, name string, gone boolean",
    "key": ["id"],
    "source": {"buffer": "changes"},
}


def declare(**more: object) -> Declaration:
    fields = {name: value for name, value in {**FIELDS, **more}.items() if value is not None}
    return Declaration.model_validate(fields)


def test_a_declaration_is_stored_as_it_was_read() -> None:
    found = declare(
        delete_when={"op": "d", "gone": [True], "level": [1, 2]},
        source={"buffer": "changes", "envelope": "debezium"},
        on_key_spread="refuse",
        buckets=4,
        on_foreign_commit="fail",
    )
    assert found.delete_when == {"op": ("d",), "gone": (True,), "level": (1, 2)}
    assert (found.kind, found.on_key_spread) == (Kind.LATEST, OnKeySpread.REFUSE)
    assert getattr(found.source, "envelope", None) is Envelope.DEBEZIUM
    assert Declaration.model_validate(found.to_json()) == found
    assert declare() == Declaration.model_validate(declare().to_json())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"source": None}, "needs a `source` with `buffer: NAME`"),
        ({"source": {"format": "parquet", "path": "/x"}}, "needs a `source` with `buffer: NAME`"),
        ({"schema": None}, "need a `schema`"),
        ({"key": []}, "needs a `key`"),
        ({"key": ["no"]}, "`key` names 'no', which is not among the columns"),
        ({"source": {"buffer": "b", "check_keys": True}}, "the key of every row is looked at"),
        ({"delete_when": {}}, "at least 1 item"),
        ({"delete_when": {"op": []}}, "at least 1 item"),
        ({"delete_when": {"op": 1.5}}, "a value is a text, a whole number, or true or false, got 1.5"),
        ({"delete_when": {"op": ["d", 1]}}, "have one type"),
        ({"delete_when": {"op": [True, 1]}}, "have one type"),
        ({"delete_when": {"gone": "yes"}}, "'yes' cannot be a value of a column of type boolean"),
        ({"guards": {"allow_empty": True}}, "`guards` is for differential collections: leave it out"),
        ({"scope": {"column": "id", "every": "day"}}, "`scope` is for differential collections"),
        ({"cluster_by": ["id"]}, "`cluster_by` is for differential collections: leave it out"),
        ({"event_time": "name"}, "`event_time` is for append-only collections"),
        ({"retention": {"age": "3d", "column": "id"}}, "`retention` is for append-only collections"),
        ({"expect": {"not_null": ["id"]}}, "`expect` is for append-only collections"),
        ({"writes_to": "changes"}, "`writes_to` is for append-only collections"),
        ({"on_read_only": "reject"}, "`on_read_only` is for append-only collections"),
        ({"kind": "append-only", "key": None, "delete_when": {"op": "d"}}, "`delete_when` is for `latest` collections"),
        ({"kind": "append-only", "key": None, "on_key_spread": "refuse"}, "`on_key_spread` is for `latest`"),
        (
            {"kind": "append-only", "key": None, "source": {"buffer": "b", "envelope": "debezium"}},
            "`source.envelope` is for `latest` collections: leave it out",
        ),
        ({"kind": "differential"}, "`latest`, which keeps the latest row of each key"),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        declare(**more)
    assert message in str(caught.value)
