"""Turns errors of librdkafka and of brokers into the errors of write buffers."""

from __future__ import annotations

from confluent_kafka import KafkaError

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.errors import BufferMissing, BufferUnreachable, InvalidData

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


def failure(error: KafkaError, buffer: str) -> Exception:
    """Return the error of write buffers for an error of Kafka on ``buffer``."""
    if error.code() in _UNREADABLE:
        return InvalidData(f"{buffer} holds what cannot be read: {error.str()}")
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return BufferMissing(f"{buffer} is not there any more: {error.str()}", hint="was the topic deleted?")
    if error.code() in _CONFIGURATION:
        return ConfigurationInvalid(f"{buffer} refuses: {error.str()}", hint="check its settings and its login")
    return BufferUnreachable(f"{buffer} cannot be reached: {error.str()}", hint="is the broker up, and the port right?")
