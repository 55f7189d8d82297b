"""Opens the writer or the reader that a connection describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.failing import FailingReader, FailingWriter
from tidemark.write_buffer.file.buffer import FileReader, FileWriter
from tidemark.write_buffer.file.folder import open_folder
from tidemark.write_buffer.kafka.reader import KafkaReader
from tidemark.write_buffer.kafka.topic import DEFAULT_TIMEOUT_S, Creation, KafkaTopic
from tidemark.write_buffer.kafka.writer import KafkaWriter
from tidemark.write_buffer.memory.buffer import MemoryReader, MemoryWriter

if TYPE_CHECKING:
    from tidemark.clock import Clock
    from tidemark.write_buffer.address import Connection
    from tidemark.write_buffer.memory.state import MemoryState
    from tidemark.write_buffer.reader import Reader
    from tidemark.write_buffer.writer import Writer


class BufferFactory:
    """Knows the memory buffers of this process by their names; everything else is in the connections."""

    def __init__(self, clock: Clock, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._clock, self._timeout_s = clock, timeout_s
        self._memory: dict[str, MemoryState | None] = {}  # None: the one that always fails

    def register(self, name: str, state: MemoryState) -> None:
        """Let ``memory:NAME`` mean ``state``.

        Raises:
            ValueError: If the name is taken.
        """
        self._add(name, state)

    def register_failing(self, name: str) -> None:
        """Let ``memory:NAME`` mean a buffer that always fails.

        Raises:
            ValueError: If the name is taken.
        """
        self._add(name, None)

    def open_writer(self, connection: Connection, *, create: bool = False) -> Writer:
        """Open a writer; with ``create`` a buffer that is not there is made, as the connection says.

        Raises:
            ConfigurationInvalid: If the connection names an unknown memory buffer, or settings that are refused.
            BufferMissing: If there is no such buffer.
            BufferUnreachable: If it does not answer within seconds.
        """
        if connection.type == "memory":
            state = self._find(connection.place)
            return FailingWriter() if state is None else MemoryWriter(state, clock=self._clock)
        if connection.type == "file":
            folder = open_folder(Path(connection.place), sequencers=connection.sequencers if create else None)
            return FileWriter(folder, clock=self._clock, limit_bytes=connection.limit_bytes)
        creation = _creation(connection) if create else None
        return KafkaWriter(self._topic(connection), clock=self._clock, creation=creation)

    def open_reader(self, connection: Connection, *, create: bool = False) -> Reader:
        """Open a reader; everything else as ``open_writer``."""
        if connection.type == "memory":
            state = self._find(connection.place)
            return FailingReader() if state is None else MemoryReader(state)
        if connection.type == "file":
            return FileReader(open_folder(Path(connection.place), sequencers=connection.sequencers if create else None))
        return KafkaReader(self._topic(connection), creation=_creation(connection) if create else None)

    def _topic(self, connection: Connection) -> KafkaTopic:
        return kafka_topic(connection, timeout_s=self._timeout_s)

    def _add(self, name: str, state: MemoryState | None) -> None:
        if name in self._memory:
            raise ValueError(f"a memory buffer named {name!r} is registered already")
        self._memory[name] = state

    def _find(self, name: str) -> MemoryState | None:
        try:
            return self._memory[name]
        except KeyError:
            known = ", ".join(sorted(self._memory)) or "none"
            raise ConfigurationInvalid(
                f"Unknown memory buffer: {name}", hint=f"registered in this process are: {known}"
            ) from None


def kafka_topic(connection: Connection, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> KafkaTopic:
    """Return the topic of a connection of the type ``kafka``.

    Raises:
        ConfigurationInvalid: If it sets what may not be set.
    """
    return KafkaTopic(
        bootstrap=connection.place,
        topic=connection.topic,
        client=connection.client,
        producer=connection.producer,
        consumer=connection.consumer,
        timeout_s=timeout_s,
    )


def _creation(connection: Connection) -> Creation:
    return Creation(
        sequencers=connection.sequencers, replication=connection.replication, options=connection.topic_options
    )
