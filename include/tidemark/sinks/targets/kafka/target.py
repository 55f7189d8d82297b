"""A topic of Kafka as the target of a sink: rows and progress in one transaction, of one producer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from tidemark.collections.declarations.sink import BufferTopic, SinkDeclaration, SinkMode
from tidemark.errors import ConfigurationInvalid, NotPossible, Refused
from tidemark.fail_points import fail_point
from tidemark.settings import Settings
from tidemark.sinks import progress as rules
from tidemark.sinks.progress import Owner, Progress, SinkColumn
from tidemark.sinks.target import Target
from tidemark.sinks.targets.kafka.messages import MessageMaker, SinkMessages
from tidemark.sinks.targets.kafka.progress_log import ProgressLog, StoredProgress
from tidemark.sinks.targets.kafka.transaction import TransactionalProducer
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.entry import CONTENT_TYPE, TABLE_HEADER, BadMessage, Delivered, EntryFormat
from tidemark.write_buffer.kafka.reader import KafkaReader
from tidemark.write_buffer.kafka.topic import KafkaTopic, TopicState, usable_bytes
from tidemark.write_buffer.ranges import iterate_range

if TYPE_CHECKING:
    import pyarrow as pa

FAIL_POINTS = ("sink.kafka-fenced",)
_COMPACTED = {"cleanup.policy": "compact"}  # of a topic that a mirror makes: the last message of each key stays


class KafkaTarget(Target):
    """Implements ``Target``.

    The claim fences: a producer that begins under the transactional id of the topic ends the transactions of every
    older one, whichever sink it belongs to. What the topic beside it says afterwards stays true until the next claim.
    """

    reloads = False  # a mirror would need the keys of all its messages in memory, to delete those that are gone

    def __init__(self, sink: SinkDeclaration, connection: Connection) -> None:
        super().__init__(sink)
        self._is_mirror = sink.mode is SinkMode.MIRROR
        if self._is_mirror:
            connection = replace(connection, topic_options={**_COMPACTED, **connection.topic_options})
        self._topic = KafkaTopic(connection)
        self.title = self._topic.name
        self._progress = ProgressLog(connection, title=self.title)
        self._producer: TransactionalProducer | None = None
        self._known_partitions: tuple[int, ...] = ()
        self._headers = ((CONTENT_TYPE, EntryFormat.JSON_ROWS.encode()), (TABLE_HEADER, sink.collection.encode()))

    @classmethod
    def of(cls, sink: SinkDeclaration, place: BufferTopic, settings: Settings) -> Self:
        """Return the target.

        Raises ``ConfigurationInvalid`` if the environment lacks the address, or the address is not one of Kafka.
        """
        connection = find_connection(place.buffer, settings.connections)
        if connection.type != "kafka":
            raise ConfigurationInvalid(
                f"a {connection.type} buffer has no transactions, so rows could come twice",
                hint="name a topic of Kafka, such as kafka://HOST:9092/TOPIC, or another target",
            )
        return cls(sink, connection)

    def close(self) -> None:
        self._producer = None  # what it did not commit is never seen

    def check(self) -> None:
        self._find_topic_id()  # the claim makes a missing topic

    def look(self) -> Progress | None:
        stored = self._progress.read()
        return None if stored is None else stored.progress

    def inspect(self, columns: tuple[SinkColumn, ...]) -> None:  # noqa: ARG002 - a topic takes rows of any columns
        replaces = self._is_mirror and self.sink.to.replaces
        if not replaces and any(self._stored()):
            hint = "declare `existing: replace` in `to`, which deletes their keys with the first load, or another topic"
            raise Refused(
                f"{self.title} has messages already, which somebody else, or a dropped sink, wrote",
                hint=hint if self._is_mirror else "declare another topic, or delete this one: a log takes nothing back",
            )

    def claim(self, owner: Owner, *, generation: int) -> Progress:
        self._find_claim(owner, generation)  # who may not claim the topic fences nobody
        self._topic.open(create=True)
        self._progress.create()
        self._fence_others(limit_bytes=self._limit_bytes)
        claimed = self._find_claim(owner, generation)
        with self._writing(claimed):
            pass
        return claimed

    def load(self, before: Progress, after: Progress, rows: Iterator[pa.RecordBatch]) -> int:  # noqa: ARG002
        count = 0
        with self._writing(after):
            if self._is_mirror and self.sink.to.replaces:
                # Before all rows: another spelling of a key in JSON may be the key of one of them.
                self._send(SinkMessages.of_deletes(self._stored_keys()))
            for batch in rows:
                self._send(self._messages.of_rows(batch))
                count += batch.num_rows
        return count

    def mirror(self, before: Progress, after: Progress, deletes: pa.Table, upserts: pa.Table) -> None:  # noqa: ARG002
        with self._writing(after):
            for batch in deletes.to_batches():
                self._send(self._messages.of_deletes(batch))
            for batch in upserts.to_batches():
                self._send(self._messages.of_rows(batch))

    def append(self, before: Progress, after: Progress, updates: Iterator[pa.RecordBatch]) -> None:  # noqa: ARG002
        with self._writing(after):
            for batch in updates:
                self._send(self._messages.of_rows(batch))

    def forget(self, owner: Owner) -> None:
        if self._is_of(owner):
            self._fence_others()
            if self._is_of(owner):
                with self._claimed_producer.transaction():
                    self._send_progress(owner.sink, None)

    def describe(self) -> dict[str, Any]:
        return {"progress": self._progress.name}

    def _is_of(self, owner: Owner) -> bool:
        found = self.look()
        return found is not None and found.owner == owner

    def _fence_others(self, **limits: int) -> None:
        name = f"tidemark-sink-{self._topic.connection.topic}"
        self._producer = TransactionalProducer(self._topic, name, **limits)
        self._producer.begin()
        fail_point("sink.kafka-fenced")

    def _find_claim(self, owner: Owner, generation: int) -> Progress:
        """Return the progress that this run may write. Raises as ``claim``."""
        stored = self._progress.read()
        claimed = rules.claim(
            None if stored is None else stored.progress,
            owner,
            mode=self.sink.mode.value,
            generation=generation,
            replaces=self.sink.to.replaces,
            where=self.title,
        )
        if stored is None or claimed.time is None:
            return claimed
        if stored.topic_id != self._find_topic_id():
            raise NotPossible(
                f"{self.title} is not the one that the sink {owner.sink!r} wrote: that one was deleted",
                hint=f"drop the sink, delete the topic {self._progress.name!r}, and declare the sink again",
            )
        self._known_partitions = stored.partitions
        return claimed

    def _find_topic_id(self) -> str | None:
        try:
            return self._topic.open().identity
        except BufferMissing:
            return None

    @contextmanager
    def _writing(self, after: Progress) -> Iterator[None]:
        """Commit what is sent inside the block together with the progress."""
        with self._claimed_producer.transaction():
            yield
            stored = StoredProgress(after, self._state.identity, self._partitions)
            self._send_progress(after.owner.sink, stored.to_bytes())

    def _send(self, messages: SinkMessages) -> None:
        self._claimed_producer.send(self._topic.connection.topic, messages, headers=self._headers)

    def _send_progress(self, sink: str, value: bytes | None) -> None:
        self._claimed_producer.send(self._progress.name, SinkMessages([0], [sink.encode()], [value]))

    @property
    def _claimed_producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise TypeError(f"{self.title} was not claimed by this run")  # a bug in the caller
        return self._producer

    @cached_property
    def _limit_bytes(self) -> int:
        return self._topic.read_limit_bytes()

    @cached_property
    def _state(self) -> TopicState:
        return self._topic.open()

    @property
    def _partitions(self) -> tuple[int, ...]:
        return self._known_partitions or tuple(sorted(self._state.sequencer_ids))

    @cached_property
    def _messages(self) -> MessageMaker:
        return MessageMaker(
            self.sink.collection,
            self.sink.key_columns,
            self._partitions,
            title=self.title,
            limit_bytes=usable_bytes(self._limit_bytes),
        )

    def _stored(self) -> Iterator[list[Delivered]]:
        """Yield the messages that are committed, partition by partition; none if there is no topic."""
        try:
            reader = KafkaReader(self._topic)
        except BufferMissing:
            return
        with reader:
            for partition in sorted(reader.sequencer_ids()):
                earliest, end = reader.fetch_bounds(partition)
                yield from iterate_range(reader, partition, earliest, end)

    def _stored_keys(self) -> set[tuple[int, bytes]]:
        """Return the keys with a value in the topic, each with its partition."""
        kept: set[tuple[int, bytes]] = set()
        for delivered in self._stored():
            for each in delivered:
                partition = each.sequence.sequencer_id
                if not isinstance(each, BadMessage):
                    if each.key is not None:
                        kept.add((partition, each.key))
                elif each.message.payload is None and each.message.key is not None:
                    kept.discard((partition, each.message.key))
        return kept
