"""Tells a broker how far a reader is, for people who watch lags there. Nothing is ever resumed by it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidemark.write_buffer.registry import kafka_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.write_buffer.address import Connection

log = logging.getLogger(__name__)

_PATIENCE_MS = 3_000


def tell_progress(connection: Connection, group: str, numbers: Mapping[int, int]) -> None:
    """Commit ``numbers``, the next ones by sequencer, as the offsets of the consumer group ``group``.

    A broker that does not take them is no failure, and only logged. Other buffers are not told anything.
    """
    if connection.type != "kafka" or not numbers:
        return
    topic = kafka_topic(connection)
    configuration: dict[str, Any] = {
        **topic.client_configuration(),
        "group.id": group,
        "enable.auto.commit": "false",
        "socket.timeout.ms": str(_PATIENCE_MS),
        "allow.auto.create.topics": "false",
    }
    places = [TopicPartition(topic.topic, sequencer_id, number) for sequencer_id, number in sorted(numbers.items())]
    consumer = Consumer(configuration)
    try:
        consumer.commit(offsets=places, asynchronous=False)
    except KafkaException as error:
        log.warning("the offsets of the group %s in %s were not told: %s", group, topic.name, error)
    finally:
        consumer.close()
