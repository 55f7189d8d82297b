"""Roles exclude each other by type; what becomes of a direct write is one table."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tidemark.collections.append.interval import check_interval_source
from tidemark.collections.append.ways_in import NoBuffer, Reading, Role, Rules, Writing, role_of
from tidemark.collections.declarations.collection import Declaration
from tidemark.errors import OnlyThroughBuffer, UsageError
from tidemark.exit_codes import ExitCode

SOURCE = {"buffer": "weather"}


def declare(**more: object) -> Declaration:
    fields = {"name": "w", "kind": "append-only", "schema": "a bigint", "source": SOURCE, **more}
    return Declaration.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "role"),
    [
        ({"source": None}, NoBuffer()),
        ({}, Reading("weather")),
        ({"source": None, "writes_to": "log"}, Writing("log", "w")),
        ({"writes_to": "weather"}, Writing("weather", "w")),
        ({"writes_to": "Weather", "source": {"buffer": "weather", "table": "t"}}, Writing("Weather", "t")),
    ],
)
def test_declaration_gives_one_role(fields: dict[str, object], role: Role) -> None:
    """A collection that writes to the buffer that it reads writes: its rows come back by an ingest."""
    assert role_of(declare(**fields)) == role
    rules = Rules.declared(declare(**fields))
    if isinstance(role, Reading):
        with pytest.raises(OnlyThroughBuffer):
            rules.refuse_direct_write()
    else:
        rules.refuse_direct_write()
    if isinstance(role, Writing):
        with pytest.raises(UsageError, match="statuses are compared with stored rows"):
            rules.refuse_statuses()
    else:
        rules.refuse_statuses()


def test_direct_write_to_a_reading_collection_is_77_and_says_what_to_do() -> None:
    assert role_of(declare()) == Reading("weather")
    for write in (Rules.declared(declare()).refuse_direct_write, lambda: check_interval_source(declare())):
        with pytest.raises(OnlyThroughBuffer, match="come out of the buffer 'weather' alone") as caught:
            write()
        assert caught.value.exit_code == ExitCode.FENCED
        assert "tidemark buffer write weather" in caught.value.hint


def test_collections_without_a_buffer_have_none() -> None:
    assert role_of(declare(source=None)) == NoBuffer()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"writes_to": "other"}, "name the same buffer in both"),
        (
            {
                "writes_to": "weather",
                "source": None,
                "schema": "a int, b int, c timestamp",
                "status": {"key": ["a"], "column": "b", "time": "c"},
            },
            "`writes_to` stores none",
        ),
        ({"writes_to": "b", "source": None, "on_schema_change": "evolve"}, "add columns to the `schema` of each"),
        ({"writes_to": "kafka://me:secret@host/topic", "source": None}, "must not hold a user or a password"),
        ({"writes_to": "b", "kind": "differential", "source": {"format": "csv", "path": "x"}}, "is for append-only"),
        ({"kind": "differential"}, "make the collection append-only"),
        ({"schema": None}, "need a `schema`"),
        ({"on_schema_change": "evolve"}, "is for files"),
        ({"status": {"key": ["a"], "column": "b", "time": "c"}, "schema": "a int, b int, c timestamp"}, "in one order"),
        ({"source": {"buffer": "kafka://me:secret@host/topic"}}, "must not hold a user or a password"),
        ({"source": {"buffer": "we ather"}}, "neither an address nor a name"),
        ({"source": {"buffer": "b", "on_expired": "latest"}}, "'fail' or 'earliest'"),
        ({"source": {"buffer": "b", "where": "a > 1"}}, "where"),
    ],
)
def test_declarations_that_cannot_be_meant_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        declare(**fields)
    assert "secret" not in str(caught.value.errors(include_input=False))


def test_declaration_comes_back_from_its_stored_form() -> None:
    declared = declare(source={"buffer": "weather", "table": "w", "on_expired": "earliest"})
    assert Declaration.model_validate(declared.to_json()) == declared
    assert declared.connections == ("weather",)
    assert declare(source={"buffer": "file:///there"}).connections == ()
    assert not declared.needs_interval
