"""Transactions of Kafka: messages in several topics that become visible together, by one producer at a time.

A producer that begins under a transactional id fences every older one under the id, and ends what that one left open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Producer

from tidemark.errors import CommitStateUnknown, ConfigurationInvalid, FencedByEpoch
from tidemark.fail_points import fail_point
from tidemark.sinks.targets.kafka.messages import SinkMessage
from tidemark.write_buffer.formats.entry import Headers
from tidemark.write_buffer.kafka.topic import FENCED, KafkaTopic, failure

log = logging.getLogger(__name__)

FAIL_POINTS = ("sink.kafka-sent", "sink.kafka-committed")
_POLL_S = 0.02
_BEGIN_S, _COMMIT_S, _ABORT_S = 20.0, 60.0, 5.0
_LONGEST_MS = 15 * 60_000  # the broker's own limit of a transaction, unless it has another one
_BATCH_BYTES = 1_000_000
_TUNABLE = {
    "compression.type": "snappy",
    "message.timeout.ms": "30000",
    "queue.buffering.max.messages": "500000",
    "queue.buffering.max.kbytes": "262144",
    "transaction.timeout.ms": str(_LONGEST_MS),
    "message.max.bytes": "1000000000",  # the topic's own limit is looked at before
}
_REFUSED = {KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError.INVALID_TRANSACTION_TIMEOUT}


class TransactionalProducer:
    """Writes to Kafka in transactions, one after the other.

    ``limit_bytes`` is the largest message that all topics take: the brokers apply it to batches of messages, too.

    Raises ``ConfigurationInvalid`` if librdkafka refuses the settings.
    """

    def __init__(self, topic: KafkaTopic, transactional_id: str, *, limit_bytes: int = _BATCH_BYTES) -> None:
        self._title, self._id = topic.name, transactional_id
        try:
            self._producer = Producer(
                {
                    **_TUNABLE,
                    **topic.client_configuration(),
                    **topic.connection.producer,
                    "batch.size": str(min(limit_bytes, _BATCH_BYTES)),
                    "transactional.id": transactional_id,
                    "enable.idempotence": "true",
                    "acks": "all",
                    "delivery.report.only.error": True,
                }
            )
        except KafkaException as error:
            raise failure(error.args[0], self._title) from error

    def begin(self) -> None:
        """Fence every older producer under the id, once its last transaction is committed or aborted.

        Raises:
            Unreachable: If no broker answers.
            ConfigurationInvalid: If the brokers do not allow such transactions.
        """
        self._ask(lambda: self._producer.init_transactions(_BEGIN_S))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is sent inside the block; if the block raises, nothing is visible to who reads what is committed.

        Raises:
            FencedByEpoch: If another producer has begun under the id.
            Unreachable: If the broker did not take the messages; they will be aborted.
            CommitStateUnknown: If the broker went away during the commit.
        """
        self._ask(self._producer.begin_transaction)
        try:
            yield
            self._ask(lambda: self._producer.flush(_COMMIT_S))
        except BaseException:
            self._abort()
            raise
        fail_point("sink.kafka-sent")
        self._commit()
        fail_point("sink.kafka-committed")

    def send(self, topic: str, messages: Iterable[SinkMessage], *, headers: Headers = ()) -> None:
        """Send messages in the transaction that is open. Raises as ``transaction``."""
        produce = self._producer.produce
        pairs: list[tuple[str, str | bytes | None]] = [*headers]
        for partition, key, value in messages:
            while True:
                try:
                    produce(topic, value=value, key=key, partition=partition, headers=pairs)
                except BufferError:  # the queue of the client is full
                    self._producer.poll(_POLL_S)
                except KafkaException as error:
                    raise self._error(error.args[0]) from error
                else:
                    break

    def _commit(self) -> None:
        until = time.monotonic() + _COMMIT_S
        while True:
            try:
                self._producer.commit_transaction(max(until - time.monotonic(), 1.0))
            except KafkaException as error:
                cause = error.args[0]
                if cause.txn_requires_abort():  # a message did not arrive
                    self._abort()
                    raise self._error(cause) from error
                if cause.code() in FENCED:
                    raise self._error(cause) from error
                if not cause.retriable() or time.monotonic() > until:
                    raise CommitStateUnknown(
                        f"{self._title} went away during a commit, which may have landed: {cause.str()}",
                        hint="the next run asks the target: nothing is written twice, or left out",
                    ) from error
            else:
                return

    def _abort(self) -> None:
        """Abort, if the broker answers; else the next producer under the id does, or the broker after a while."""
        try:
            self._producer.abort_transaction(_ABORT_S)
        except KafkaException as error:
            log.warning("a transaction under the id %r stays open for now: %s", self._id, error.args[0].str())

    def _ask(self, question: Callable[[], object]) -> None:
        try:
            question()
        except KafkaException as error:
            raise self._error(error.args[0]) from error

    def _error(self, error: KafkaError) -> Exception:
        if error.code() in FENCED:
            return FencedByEpoch(
                f"another run has taken {self._title} over, or a transaction took too long: {error.str()}",
                hint="start over: the next run asks the topic how far it came; if one transaction takes longer than 15 "
                "minutes, add `?producer.transaction.timeout.ms=…` to the address, up to the broker's "
                "`transaction.max.timeout.ms`",
            )
        if error.code() in _REFUSED:
            return ConfigurationInvalid(
                f"{self._title} allows no transaction under the id {self._id!r}: {error.str()}",
                hint="allow the login this id, or add `?producer.transaction.timeout.ms=…` to the address",
            )
        return failure(error, self._title)
