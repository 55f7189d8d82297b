"""The progress of the sink of a topic: the last record of a compacted topic beside it, written with the rows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from tidemark.sinks.progress import Progress
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import BufferMissing
from tidemark.write_buffer.formats.entry import BadMessage
from tidemark.write_buffer.kafka.buffer import BACK_END
from tidemark.write_buffer.kafka.reader import KafkaReader
from tidemark.write_buffer.kafka.topic import KafkaTopic
from tidemark.write_buffer.ranges import read_range

_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "1048576"}  # small: every run reads it whole


class StoredProgress(NamedTuple):
    """The progress, and where the rows are: in which topic, and in which of its partitions.

    A topic that is made anew under its name has another id. Partitions that are added later stay empty: the messages of
    a key would go on in another one.
    """

    progress: Progress
    topic_id: str
    partitions: tuple[int, ...]

    def to_bytes(self) -> bytes:
        place = {"topic_id": self.topic_id, "partitions": self.partitions}
        return json.dumps({**self.progress.to_json(), **place}, ensure_ascii=False).encode()


class ProgressLog:
    """The topic ``TOPIC.progress``: by the name of a sink its progress, as JSON."""

    def __init__(self, connection: Connection, *, title: str) -> None:
        self._topic = KafkaTopic(replace(BACK_END.beside(connection, "progress"), topic_options=_OPTIONS))
        self._title = title

    @property
    def name(self) -> str:
        """The topic at its brokers."""
        return self._topic.connection.topic

    def create(self) -> None:
        """Make the topic if it is missing. Raises as ``KafkaTopic.open``."""
        self._topic.open(create=True)

    def read(self) -> StoredProgress | None:
        """Return what was committed last; None if no sink ever wrote, or the last one was forgotten.

        Raises:
            CorruptState: If somebody else wrote there.
            Unreachable: If no broker answers.
        """
        try:
            reader = KafkaReader(self._topic)
        except BufferMissing:
            return None
        with reader:
            written = read_range(reader, 0, 0)
        kept: dict[bytes | None, bytes] = {}
        for each in written:
            if isinstance(each, BadMessage):  # no value: forgotten
                kept.pop(each.message.key, None)
            else:
                kept[each.key] = each.entry.payload
        if not kept:
            return None
        try:
            last = json.loads([*kept.values()][-1])
        except ValueError:
            last = None
        progress = Progress.parse(last, where=f"the topic {self.name!r} beside {self._title}")
        return StoredProgress(progress, str(last.get("topic_id")), tuple(last.get("partitions") or ()))
