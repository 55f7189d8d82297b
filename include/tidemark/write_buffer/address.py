"""What a buffer's address says: its type, where it is, and how it may be made and tuned.

memory:NAME                                     a buffer that this process registered under NAME
file:///absolute/folder                         a folder
kafka://HOST:PORT[,HOST:PORT…]/TOPIC            a topic; USER:PASSWORD@ in front of the hosts logs in by SASL

Behind ``?``: ``sequencers=N`` and, for Kafka, ``replication=N`` say how it is made; ``topic.NAME=VALUE`` sets a topic's
option when it is made; ``client.NAME``, ``producer.NAME`` and ``consumer.NAME`` tune librdkafka; ``limit_bytes=N`` is
the largest entry of a file buffer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE_PREFIX, AIRFLOW_PREFIX = "TIDEMARK_BUFFER_", "AIRFLOW_CONN_"
TYPES = ("memory", "file", "kafka")
_COUNTS = ("sequencers", "replication", "limit_bytes")
_SCOPES = ("topic", "client", "producer", "consumer")
_KNOWN = {
    "memory": set[str](),
    "file": {"sequencers", "limit_bytes"},
    "kafka": {"sequencers", "replication", *_SCOPES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A parsed address. ``place`` is a memory buffer's name, a folder, or bootstrap servers."""

    type: str
    place: str
    topic: str = ""
    sequencers: int = 1
    replication: int = 1
    limit_bytes: int = DEFAULT_LIMIT_BYTES
    topic_options: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a password
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    consumer: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_connection(name_or_uri: str, environ: Mapping[str, str]) -> Connection:
    """Return the connection of an address, or of a name.

    The address of a NAME is in ``TIDEMARK_BUFFER_<NAME>``, else in ``AIRFLOW_CONN_<NAME>``, as an address or as the
    JSON of an Airflow connection.

    Raises:
        ConfigurationInvalid: If it is neither; an address that holds a password is never quoted.
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

    Raises:
        ConfigurationInvalid: If its type is unknown, or a part of it cannot be meant.
    """
    kind, _, _ = uri.partition(":")
    if kind not in TYPES:
        raise ConfigurationInvalid(f"Unknown write buffer type: {kind}", hint=f"known are: {', '.join(TYPES)}")
    parts = urlsplit(uri)
    counts, scopes = _parse_query(kind, parts.query)
    if kind == "memory":
        place, topic = unquote(parts.path), ""
    elif kind == "file":
        place, topic = unquote(parts.path), ""
        if parts.netloc or not place.startswith("/"):
            raise ConfigurationInvalid(f"a file buffer is file:///ABSOLUTE/FOLDER, not {uri!r}")
    else:
        login, _, place = parts.netloc.rpartition("@")
        topic = unquote(parts.path).strip("/")
        scopes["client"] = _login(login) | scopes["client"]
        if not place or not topic or "/" in topic:
            raise ConfigurationInvalid("a Kafka buffer is kafka://HOST:PORT[,HOST:PORT]/TOPIC")
    return Connection(
        type=kind,
        place=place,
        topic=topic,
        topic_options=scopes["topic"],
        client=scopes["client"],
        producer=scopes["producer"],
        consumer=scopes["consumer"],
        **counts,
    )


def _parse_variable(variable: str, address: str) -> Connection:
    try:
        return parse_connection(address)
    except ConfigurationInvalid as error:
        raise ConfigurationInvalid(f"{variable}: {error}", hint=error.hint) from error


def _address_of(text: str, variable: str) -> str:
    """Return the address in an Airflow connection: type, host, port, login, and the topic as its schema.

    The extras are options as in an address, or, beside ``bootstrap.servers``, those of librdkafka.
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        fields = json.loads(text)
        extra = fields.get("extra") or {}
        extra = dict(json.loads(extra) if isinstance(extra, str) else extra)
        if fields["conn_type"] != "kafka":
            return "file://" + quote(str(extra.pop("path", None) or fields["host"]))
        if "bootstrap.servers" in extra:
            place = extra.pop("bootstrap.servers")
            extra = {f"client.{name}": value for name, value in extra.items()}
        else:
            place = f"{fields['host']}:{fields.get('port') or 9092}"
        login = quote(fields.get("login") or "", safe="")
        if login:
            place = f"{login}:{quote(fields.get('password') or '', safe='')}@{place}"
        return f"kafka://{place}/{quote(fields.get('schema') or '')}" + (f"?{urlencode(extra)}" if extra else "")
    except (ValueError, KeyError, TypeError):  # its text would quote the value, which holds the password
        raise ConfigurationInvalid(
            f"{variable} is no connection to a buffer", hint="use the type kafka, with the topic as its schema"
        ) from None


def _parse_query(kind: str, query: str) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    counts: dict[str, int] = {}
    scopes: dict[str, dict[str, str]] = {scope: {} for scope in _SCOPES}
    for name, value in parse_qsl(query, keep_blank_values=True):
        scope, dot, option = name.partition(".")
        if scope not in _KNOWN[kind]:
            known = ", ".join(sorted(_KNOWN[kind])) or "none"
            raise ConfigurationInvalid(f"a {kind} buffer has no option {name!r}", hint=f"its options are: {known}")
        if scope in _COUNTS:
            if dot or not value.isdecimal() or int(value) < 1:
                raise ConfigurationInvalid(f"{name} must be a whole number from 1 on, got {value!r}")
            counts[name] = int(value)
        elif not option:
            raise ConfigurationInvalid(f"{name!r} names no option", hint=f"for example {scope}.NAME=VALUE")
        else:
            scopes[scope][option] = value
    return counts, scopes


def _login(login: str) -> dict[str, str]:
    if not login:
        return {}
    user, _, password = login.partition(":")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": unquote(user),
        "sasl.password": unquote(password),
    }
