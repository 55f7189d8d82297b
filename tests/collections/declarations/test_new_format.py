"""A declaration asks its source what it is, so a new format needs no change in any other file."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import ValidationError

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.sources.formats.source import InputSource
from tidemark.collections.sources.formats.sql import SqlSource


class TicketSource(InputSource):
    """A format that the library does not know: tickets of a service, behind a login, in a database of its own."""

    form = "tickets"
    is_database = True

    format: Literal["tickets"] = "tickets"
    login: str

    @property
    def connection_name(self) -> str:
        return self.login


class MirrorSource(InputSource):
    """A format that reads a collection under another field name."""

    form = "mirror"

    mirrored: str

    @property
    def collection_name(self) -> str:
        return self.mirrored


class Query(SqlSource):
    inputs: dict[str, TicketSource | MirrorSource]  # type: ignore[assignment]  # the formats that are registered


class NewDeclaration(Declaration):
    source: TicketSource | MirrorSource | Query | None = None


def declared(**source: object) -> Declaration:
    return NewDeclaration.model_validate({"name": "it", "kind": "differential", "key": ["id"], "source": source})


def test_the_connection_of_a_new_format_is_one_of_the_declaration() -> None:
    assert declared(login="helpdesk").connections == ("helpdesk",)
    assert declared(login="helpdesk").inputs == ()


def test_a_new_format_may_read_a_collection() -> None:
    assert declared(mirrored="planes").inputs == ("planes",)
    assert declared(mirrored="planes").connections == ()


def test_the_inputs_of_a_query_count_once_each() -> None:
    inputs = {"t": {"login": "helpdesk"}, "a": {"mirrored": "planes"}, "b": {"mirrored": "planes"}}
    query = declared(sql="SELECT * FROM t", inputs=inputs)
    assert (query.connections, query.inputs) == (("helpdesk",), ("planes",))


def test_two_databases_of_a_new_format_are_not_read_by_one_query() -> None:
    inputs = {"a": {"login": "helpdesk"}, "b": {"login": "helpdesk"}}
    with pytest.raises(ValidationError, match="inputs a, b are read by one database statement each"):
        declared(sql="SELECT * FROM a, b", inputs=inputs)
