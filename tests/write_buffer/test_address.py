"""Addresses of buffers, and what is opened for them; what cannot be meant is refused before anything is asked."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.buffers import entry
from tests.support.clock import SteppedClock
from tests.support.failing_buffer import FailingReader, FailingWriter
from tidemark.errors import ConfigurationInvalid
from tidemark.exit_codes import ExitCode
from tidemark.ingest.preflight import check_buffers
from tidemark.write_buffer import registry
from tidemark.write_buffer.address import find_connection, parse_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable
from tidemark.write_buffer.file.buffer import FileReader, FileWriter
from tidemark.write_buffer.kafka.topic import PROTECTED, KafkaTopic
from tidemark.write_buffer.memory import MemoryReader, MemoryState, MemoryWriter, registered
from tidemark.write_buffer.registry import open_reader, open_writer
from tools.kafka_broker import free_ports

if TYPE_CHECKING:
    from pathlib import Path


CLOCK = SteppedClock()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `failing:NAME` be a buffer that always fails."""
    monkeypatch.setitem(registry.MODULES, "failing", "tests.support.failing_buffer")


@pytest.mark.parametrize(
    ("uri", "connection"),
    [
        ("memory:test", Connection(type="memory", place="test")),
        ("file:///data/a%20b", Connection(type="file", place="/data/a b")),
        (
            "file:///data?sequencers=3&limit_bytes=100",
            Connection(type="file", place="/data", sequencers=3, limit_bytes=100),
        ),
        (
            "kafka://one:9092,two:9093/weather?sequencers=4&topic.retention.ms=60000&producer.linger.ms=5",
            Connection(
                type="kafka",
                place="one:9092,two:9093",
                topic="weather",
                sequencers=4,
                topic_options={"retention.ms": "60000"},
                producer={"linger.ms": "5"},
            ),
        ),
        (
            "kafka://me:p%40ss@host:9092/t?client.sasl.mechanism=SCRAM-SHA-256",
            Connection(
                type="kafka",
                place="host:9092",
                topic="t",
                client={
                    "security.protocol": "SASL_SSL",
                    "sasl.mechanism": "SCRAM-SHA-256",
                    "sasl.username": "me",
                    "sasl.password": "p@ss",
                },
            ),
        ),
    ],
)
def test_an_address_says_everything(uri: str, connection: Connection) -> None:
    assert parse_connection(uri) == connection
    assert find_connection("mine", {"TIDEMARK_BUFFER_MINE": uri}) == connection


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("rabbit://host/queue", "Unknown write buffer type: rabbit"),
        ("file:relative", "file:///ABSOLUTE/FOLDER"),
        ("file://host/data", "file:///ABSOLUTE/FOLDER"),
        ("file:///data?sequencers=0", "sequencers must be a whole number from 1 on, got '0'"),
        ("file:///data?topic.x=1", "a file buffer has no option 'topic.x'"),
        ("kafka:///topic", "kafka://HOST:PORT"),
        ("kafka://host:9092", "kafka://HOST:PORT"),
        ("kafka://host:9092/a/b", "kafka://HOST:PORT"),
        ("kafka://host:9092/t?client=1", "names no option"),
        ("kafka://host:9092/t?replication=x", "replication must be a whole number"),
        ("nothing", "the buffer 'nothing' is not set"),
    ],
)
def test_what_cannot_be_meant_is_a_configuration_error(uri: str, says: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=says) as refused:
        find_connection(uri, {})
    assert refused.value.exit_code is ExitCode.CONFIGURATION


def test_a_password_is_never_shown() -> None:
    connection = parse_connection("kafka://me:secret@host:9092/t")
    topic = KafkaTopic(connection)
    assert "secret" not in f"{connection!r} {topic!r} {topic.name}"
    with pytest.raises(ConfigurationInvalid) as refused:
        parse_connection("kafka://me:secret@host:9092/a/b")
    assert "secret" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("name", sorted(PROTECTED))
@pytest.mark.parametrize("scope", ["client", "producer", "consumer"])
def test_protected_settings_cannot_be_set(scope: str, name: str) -> None:
    with pytest.raises(ConfigurationInvalid, match=f"{name} cannot be set"):
        KafkaTopic(parse_connection(f"kafka://host:9092/t?{scope}.{name}=1"))


def test_opens_memory_buffers_by_their_names() -> None:
    connection = parse_connection("memory:test")
    with registered("test", MemoryState()):
        with pytest.raises(BufferMissing):
            open_reader(connection)
        assert isinstance(open_writer(connection, clock=CLOCK, create=True), MemoryWriter)
        assert isinstance(open_reader(connection), MemoryReader)
        with pytest.raises(ValueError, match="'test' is registered already"), registered("test", MemoryState(1)):
            pass
        with pytest.raises(ConfigurationInvalid, match="Unknown memory buffer: other") as refused:
            open_reader(parse_connection("memory:other"))
    with pytest.raises(ConfigurationInvalid, match="Unknown memory buffer: test"):
        open_reader(connection)
    assert refused.value.exit_code is ExitCode.CONFIGURATION


def test_opens_file_buffers(tmp_path: Path) -> None:
    connection = parse_connection(f"{(tmp_path / 'buffer').as_uri()}?sequencers=3")
    writer = open_writer(connection, clock=CLOCK, create=True)
    assert isinstance(writer, FileWriter)
    assert writer.sequencer_ids() == {0, 1, 2}
    assert isinstance(open_reader(connection), FileReader)


@pytest.mark.usefixtures("failing")
def test_a_failing_buffer_fails_each_call_with_its_own_text() -> None:
    writer = open_writer(parse_connection("failing:bad"), clock=CLOCK)
    reader = open_reader(parse_connection("failing:bad"))
    assert isinstance(writer, FailingWriter)
    assert isinstance(reader, FailingReader)
    assert writer.sequencer_ids() == reader.sequencer_ids() == {0}
    with pytest.raises(BufferUnreachable, match="bad happened on the way to writing an entry in the write buffer"):
        writer.store_entry(entry("1"), 0)
    with pytest.raises(BufferUnreachable, match="bad happened while fetching the high watermark"):
        reader.fetch_high_watermark(0)
    with pytest.raises(BufferUnreachable, match="bad happened while fetching the earliest number"):
        reader.fetch_earliest(0)
    with pytest.raises(BufferUnreachable, match="bad happened while seeking the stream"):
        reader.seek(0, 1)
    with pytest.raises(BufferUnreachable, match="bad happened while resetting the streams"):
        reader.reset_to_earliest()
    with reader.streams() as streams:
        for _ in range(2):
            with pytest.raises(BufferUnreachable, match="bad happened while reading from stream"):
                streams[0].take(1)


def test_a_broker_that_is_down_is_said_in_time() -> None:
    (port,) = free_ports(1)
    connection = replace(parse_connection(f"kafka://127.0.0.1:{port}/t"), timeout_s=0.3)
    for opening in (open_reader, partial(open_writer, clock=CLOCK)):
        began = time.monotonic()
        with pytest.raises(BufferUnreachable, match=rf"'t' at 127.0.0.1:{port} cannot be reached") as refused:
            opening(connection)
        assert refused.value.exit_code is ExitCode.UNREACHABLE
        assert time.monotonic() - began < 2


@pytest.mark.usefixtures("failing")
def test_buffers_are_checked_at_once_and_a_bad_one_leaves_the_others_alone(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    addresses = {f"down {number}": f"kafka://127.0.0.1:{port}/t{number}" for number in range(4)}
    addresses |= {"good": "memory:good", "bad": "failing:bad", "gone": (tmp_path / "gone").as_uri()}
    began = time.monotonic()
    with registered("good", MemoryState(2)):
        found = check_buffers({name: replace(parse_connection(uri), timeout_s=0.5) for name, uri in addresses.items()})
    assert time.monotonic() - began < 4 * 0.5 + 1, "all at once, not one after the other"
    kinds = {name: None if error is None else error.kind for name, error in found.items()}
    down = {f"down {number}": "BufferUnreachable" for number in range(4)}
    assert kinds == down | {"good": None, "bad": "BufferUnreachable", "gone": "BufferMissing"}
    assert f"127.0.0.1:{port}" in str(found["down 3"])
    assert check_buffers({}) == {}


def test_a_setting_that_librdkafka_does_not_know_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationInvalid, match='No such configuration property: "nonsense"'):
        open_reader(parse_connection("kafka://127.0.0.1:9/t?client.nonsense=1"))


@pytest.mark.parametrize(
    ("value", "connection"),
    [
        ("kafka://host:9092/t", parse_connection("kafka://host:9092/t")),
        (
            {"conn_type": "kafka", "host": "host", "port": 9093, "schema": "t", "login": "me", "password": "p@ss/word"},
            parse_connection("kafka://me:p%40ss%2Fword@host:9093/t"),
        ),
        (
            {"conn_type": "kafka", "schema": "t", "extra": {"bootstrap.servers": "a:1,b:2", "client.id": "me"}},
            parse_connection("kafka://a:1,b:2/t?client.client.id=me"),
        ),
        ({"conn_type": "fs", "extra": '{"path": "/data/a b"}'}, parse_connection("file:///data/a%20b")),
    ],
)
def test_airflow_connections_are_addresses(value: str | dict[str, object], connection: Connection) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    assert find_connection("mine", {"AIRFLOW_CONN_MINE": text}) == connection
    own = {"TIDEMARK_BUFFER_MINE": "file:///own", "AIRFLOW_CONN_MINE": text}
    assert find_connection("mine", own) == parse_connection("file:///own"), "what is set for Tidemark goes first"


def test_what_is_wrong_with_an_address_names_its_variable() -> None:
    for variable in ("TIDEMARK_BUFFER_MINE", "AIRFLOW_CONN_MINE"):
        with pytest.raises(ConfigurationInvalid, match=f"{variable}: Unknown write buffer type: rabbit") as caught:
            find_connection("mine", {variable: "rabbit://host/queue"})
        assert "known are" in caught.value.hint


def test_an_airflow_connection_that_is_none_is_never_quoted() -> None:
    with pytest.raises(ConfigurationInvalid, match="AIRFLOW_CONN_MINE") as caught:
        find_connection("mine", {"AIRFLOW_CONN_MINE": '{"conn_type": "kafka", "password": "secret"}'})
    assert "secret" not in str(caught.value)
