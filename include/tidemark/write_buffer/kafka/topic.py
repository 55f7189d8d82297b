"""A Kafka topic as a buffer: where it is, how clients are tuned, how it comes into being, what its errors mean."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable, InvalidData
from tidemark.write_buffer.writer import DEFAULT_LIMIT_BYTES

# ruff: noqa: SLF001 -- librdkafka's own codes have names that begin with an underscore
# Not to be believed: after a broker comes back, the client gives these codes for topics that exist.
UNHEARD_OF = {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
# A topic that was just made, or whose broker just came back, has no leader for a moment.
ELECTING = {KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
END_REACHED = KafkaError._PARTITION_EOF
NOT_ACKNOWLEDGED = {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT}
# No broker listens, or none lets us in: waiting for an answer is of no use.
NOBODY_ANSWERS = {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION}
# A fatal error of a transactional producer comes from another one under its id, unless the broker lost its memory.
FENCED = {KafkaError._FENCED, KafkaError._FATAL, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
NOT_ALLOWED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_UNREADABLE = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.INVALID_MSG}
_CONFIGURATION = {
    *NOT_ALLOWED,
    KafkaError._INVALID_ARG,
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
}

log = logging.getLogger(__name__)

LIMIT_NAME = "max.message.bytes"  # the topic's
_VISIBLE_S = 10.0  # until every broker knows a new topic
_BATCH_BYTES = 512  # what the broker counts beside payload and headers: the fields of record and batch
_GRACE_S = 0.7  # for the other addresses of a cluster
_POLL_S = 0.02
Answer = TypeVar("Answer")
# The settings on which exactly-once reading and durable writing rest, under all names that librdkafka knows.
PROTECTED = frozenset(
    {
        "bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol",
        "enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store", "auto.offset.reset",
        "allow.auto.create.topics", "enable.partition.eof", "isolation.level",
        "acks", "request.required.acks", "enable.idempotence", "transactional.id", "partitioner",
        "delivery.report.only.error", "enable.gapless.guarantee",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The identity and the partitions of an existing topic."""

    identity: str
    sequencer_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """The topic of a connection, whose ``client``, ``producer`` and ``consumer`` are librdkafka's own settings.

    Raises ``ConfigurationInvalid`` if a setting is a protected one.
    """

    connection: Connection

    def __post_init__(self) -> None:
        given = self.connection
        if taken := sorted(PROTECTED & (given.client.keys() | given.producer.keys() | given.consumer.keys())):
            raise ConfigurationInvalid(
                f"{', '.join(taken)} cannot be set for {self.name}",
                hint="Tidemark sets them: entries would be lost or come twice otherwise",
            )

    @property
    def name(self) -> str:
        """The topic as messages name it."""
        return f"the Kafka topic {self.connection.topic!r} at {self.connection.place}"

    def client_configuration(self) -> dict[str, Any]:
        """Return the configuration that all clients of this topic share."""
        return {
            "reconnect.backoff.max.ms": "1000",  # a broker that comes back is found again in a second, not in ten
            "log.connection.close": "false",
            "log_level": "2",  # what matters comes back as an error; librdkafka would repeat it 20 times a second
            "logger": log,
            **self.connection.client,
            "bootstrap.servers": self.connection.place,
        }

    def open(self, *, create: bool = False) -> TopicState:
        """Return the state of the topic; with ``create`` a missing topic is created as the connection says.

        Raises:
            BufferMissing: If there is no topic, and ``create`` is false.
            BufferUnreachable: If no broker answers in time.
            ConfigurationInvalid: If the brokers refuse the creation, or the login.
        """
        admin = self._admin()
        state = self._describe(admin)
        if state is not None:
            return state
        if not create:
            raise BufferMissing.of(self.name)
        self._create(admin)
        until = time.monotonic() + _VISIBLE_S
        while (state := self._describe(admin)) is None:  # read again: another creator may have chosen another count
            if time.monotonic() > until:
                raise BufferUnreachable(f"{self.name} was created and is not visible yet", hint="try again")
            time.sleep(0.05)
        return state

    def read_limit_bytes(self) -> int:
        """Return the topic's own limit; the default limit where this login may not ask."""
        resource = ConfigResource(ResourceType.TOPIC, self.connection.topic)
        admin = self._admin()
        answer = admin.client.describe_configs([resource], request_timeout=self.connection.timeout_s)[resource]
        options = admin.wait(answer, *NOT_ALLOWED)
        return DEFAULT_LIMIT_BYTES if options is None else int(options[LIMIT_NAME].value)

    def _admin(self) -> Admin:
        return Admin(self.client_configuration(), self.name)

    def _describe(self, admin: Admin) -> TopicState | None:
        # Asking for all topics would be slow, and asking for one by another call could make the broker create it.
        topic = self.connection.topic
        topics = TopicCollection([topic])
        answer = admin.client.describe_topics(topics, request_timeout=self.connection.timeout_s)[topic]
        description = admin.wait(answer, KafkaError.UNKNOWN_TOPIC_OR_PART)
        if description is None or not description.partitions:
            return None
        ids = frozenset(partition.id for partition in description.partitions)
        return TopicState(identity=str(description.topic_id), sequencer_ids=ids)

    def _create(self, admin: Admin) -> None:
        wanted = self.connection
        options = {LIMIT_NAME: str(DEFAULT_LIMIT_BYTES + _BATCH_BYTES), **wanted.topic_options}
        new = NewTopic(
            wanted.topic, num_partitions=wanted.sequencers, replication_factor=wanted.replication, config=options
        )
        answer = admin.client.create_topics([new], request_timeout=wanted.timeout_s)[wanted.topic]
        admin.wait(answer, KafkaError.TOPIC_ALREADY_EXISTS)


def usable_bytes(limit_bytes: int) -> int:
    """Return the largest payload with headers that fits a topic's ``max.message.bytes``."""
    return max(limit_bytes - _BATCH_BYTES, 0)


class Admin:
    """Asks brokers about topics, and gives up as soon as no broker can answer; errors name ``buffer``.

    Raises ``ConfigurationInvalid`` if librdkafka refuses the ``configuration``.
    """

    def __init__(self, configuration: Mapping[str, Any], buffer: str) -> None:
        self._buffer = buffer
        self._refusal: KafkaError | None = None
        try:
            settings: dict[str, Any] = {**configuration, "error_cb": self._note_error}
            self.client = AdminClient(settings)
        except KafkaException as error:
            raise failure(error.args[0], buffer) from error

    def wait(self, answer: Future[Answer], *accepted: int) -> Answer | None:
        """Return the answer; ``None`` if it is an error whose code is ``accepted``.

        Raises:
            BufferUnreachable: If no broker answers; at once if no broker listens.
            ConfigurationInvalid: If the brokers refuse the request, or the login.
        """
        grace = time.monotonic() + _GRACE_S
        while not answer.done():
            self.client.poll(_POLL_S)  # lets the client say what it hears
            if self._refusal is not None and time.monotonic() > grace:
                raise failure(self._refusal, self._buffer)
        try:
            return answer.result()
        except KafkaException as error:
            if error.args[0].code() in accepted:
                return None
            raise failure(error.args[0], self._buffer) from error

    def _note_error(self, error: KafkaError) -> None:
        if error.code() in NOBODY_ANSWERS:
            self._refusal = error


def failure(error: KafkaError, buffer: str) -> Exception:
    """Return the error of write buffers for an error of Kafka on ``buffer``."""
    if error.code() in _UNREADABLE:
        return InvalidData(f"{buffer} holds what cannot be read: {error.str()}")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return BufferMissing(f"{buffer} is not there any more: {error.str()}", hint="was the topic deleted?")
    if error.code() in _CONFIGURATION:
        return ConfigurationInvalid(f"{buffer} refuses: {error.str()}", hint="check its settings and its login")
    return BufferUnreachable(f"{buffer} cannot be reached: {error.str()}", hint="is the broker up, and the port right?")
