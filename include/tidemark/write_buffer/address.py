"""Parses the address of a buffer: its type, its place, and options for its creation and its clients.

memory:NAME                                     a buffer that this process registered under NAME
file:///absolute/folder                         a folder
kafka://HOST:PORT[,HOST:PORT…]/TOPIC            a topic; USER:PASSWORD@ in front of the hosts logs in by SASL

Options after ``?``: ``sequencers=N`` and, for Kafka, ``replication=N`` and ``topic.NAME=VALUE`` count when the buffer
is created; ``client.NAME``, ``producer.NAME`` and ``consumer.NAME`` tune librdkafka; ``limit_bytes=N`` is the largest
entry of a file buffer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tidemark.errors import ConfigurationInvalid
from tidemark.secrets.redaction import know
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.registry import MODULES, find_back_end

VARIABLE_PREFIX, AIRFLOW_PREFIX = "TIDEMARK_BUFFER_", "AIRFLOW_CONN_"
_COUNTS = ("sequencers", "replication", "limit_bytes")
_SCOPES = {"topic": "topic_options", "client": "client", "producer": "producer", "consumer": "consumer"}


def find_connection(name_or_uri: str, environ: Mapping[str, str]) -> Connection:
    """Return the connection of an address, or of a name.

    The address of a NAME is in ``TIDEMARK_BUFFER_<NAME>``, else in ``AIRFLOW_CONN_<NAME>``, as an address or as the
    JSON of an Airflow connection.

    Raises ``ConfigurationInvalid`` if the address is invalid or not set; an address with a password is not quoted.
    """
    if ":" in name_or_uri:
        return parse_connection(name_or_uri)
    own, airflow = VARIABLE_PREFIX + name_or_uri.upper(), AIRFLOW_PREFIX + name_or_uri.upper()
    if environ.get(own):
        return _parse_variable(own, environ[own])
    if environ.get(airflow):
        return _parse_variable(airflow, _address_of(environ[airflow], airflow))
    raise ConfigurationInvalid(
        f"the buffer {name_or_uri!r} is not set",
        hint=f"set {own}, for example to kafka://HOST:9092/TOPIC, or {airflow}",
    )


def parse_connection(uri: str) -> Connection:
    """Parse an address.

    Raises ``ConfigurationInvalid`` if the type is unknown, or a part of the address is invalid.
    """
    know(uri)
    type_name, _, _ = uri.partition(":")
    back_end = find_back_end(type_name)
    try:
        query = urlsplit(uri).query
    except ValueError:  # the text of the error may quote a password
        raise ConfigurationInvalid(
            f"the address of a {type_name} buffer is malformed", hint="escape brackets"
        ) from None
    back_end.locate(Connection(type=type_name), uri)  # first: what follows the ? may be a part of a password
    options = _parse_query(type_name, back_end.options, query)
    return back_end.locate(Connection(type=type_name, **options), uri)


def _parse_variable(variable: str, address: str) -> Connection:
    if ":" not in address:  # it may be a password alone
        raise ConfigurationInvalid(f"{variable} is no address", hint="for example kafka://HOST:9092/TOPIC")
    try:
        return parse_connection(address)
    except ConfigurationInvalid as error:
        raise ConfigurationInvalid(f"{variable}: {error}", hint=error.hint) from error


def _address_of(text: str, variable: str) -> str:
    """Return the address in an Airflow connection: JSON, or an address already."""
    know(text)
    if not text.lstrip().startswith("{"):
        return text
    try:
        fields = json.loads(text)
        extra = fields.get("extra") or {}
        extra = dict(json.loads(extra) if isinstance(extra, str) else extra)
        type_name = fields["conn_type"]
        # Airflow's own names for folders are many: `fs`, `file`, and what providers add.
        return find_back_end(type_name if type_name in MODULES else "file").airflow_address(fields, extra)
    except (ValueError, KeyError, TypeError):  # the text of the error would quote the value with the password
        raise ConfigurationInvalid(
            f"{variable} is no connection to a buffer", hint="use the type kafka, with the topic as its schema"
        ) from None


def _parse_query(type_name: str, known: frozenset[str], query: str) -> dict[str, Any]:
    """Return the fields of a ``Connection`` that the options after ``?`` set."""
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        scope, dot, option = name.partition(".")
        if scope not in known:
            hint = f"its options are: {', '.join(sorted(known)) or 'none'}"
            raise ConfigurationInvalid(f"a {type_name} buffer has no option {name!r}", hint=hint)
        if scope in _COUNTS:
            if dot or not value.isdecimal() or int(value) < 1:
                raise ConfigurationInvalid(f"{name} must be a whole number from 1 on, got {value!r}")
            fields[name] = int(value)
        elif not option:
            raise ConfigurationInvalid(f"{name!r} names no option", hint=f"for example {scope}.NAME=VALUE")
        else:
            fields.setdefault(_SCOPES[scope], {})[option] = value
    return fields
