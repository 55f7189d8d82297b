"""The type ``kafka`` of buffers: ``kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/TOPIC``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.kafka.reader import KafkaReader
from tidemark.write_buffer.kafka.topic import KafkaTopic
from tidemark.write_buffer.kafka.writer import KafkaWriter
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.writer import Writer

_OF_THE_BROKER = -1  # as many copies as the brokers make of a topic by default


class KafkaBackEnd(BackEnd):
    """Topics."""

    options = frozenset({"sequencers", "replication", "topic", "client", "producer", "consumer"})

    def locate(self, connection: Connection, uri: str) -> Connection:
        parts = urlsplit(uri)
        login, _, place = parts.netloc.rpartition("@")
        topic = unquote(parts.path).strip("/")
        # What follows a / or # in a password that is not escaped comes as the topic, or is cut off.
        if not place or not topic or {"/", "@"} & {*topic} or "#" in uri:
            raise ConfigurationInvalid(
                "a Kafka buffer is kafka://HOST:PORT[,HOST:PORT]/TOPIC",
                hint="in a password write / as %2F, ? as %3F, # as %23 and @ as %40",
            )
        return replace(connection, place=place, topic=topic, client={**_login(login), **connection.client})

    def beside(self, connection: Connection, what: str) -> Connection:
        forever = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
        topic = f"{connection.topic}.{what}"
        return replace(connection, topic=topic, topic_options=forever, sequencers=1, replication=_OF_THE_BROKER)

    def airflow_address(self, fields: Mapping[str, Any], extra: dict[str, Any]) -> str:
        """Return the address: host, port, login, and the topic as the schema.

        The extras are options as in an address, or, beside ``bootstrap.servers``, those of librdkafka.
        """
        if "bootstrap.servers" in extra:
            place = extra.pop("bootstrap.servers")
            extra = {f"client.{name}": value for name, value in extra.items()}
        else:
            place = f"{fields['host']}:{fields.get('port') or 9092}"
        login = quote(fields.get("login") or "", safe="")
        if login:
            place = f"{login}:{quote(fields.get('password') or '', safe='')}@{place}"
        return f"kafka://{place}/{quote(fields.get('schema') or '')}" + (f"?{urlencode(extra)}" if extra else "")

    def open_writer(self, connection: Connection, *, clock: Clock, create: bool) -> Writer:
        return KafkaWriter(KafkaTopic(connection), clock=clock, create=create)

    def open_reader(self, connection: Connection, *, create: bool) -> Reader:
        return KafkaReader(KafkaTopic(connection), create=create)


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


BACK_END = KafkaBackEnd()
