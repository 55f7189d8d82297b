"""Finds the target of a sink by the form of its declaration; a client library is loaded only where it is needed."""

from __future__ import annotations

from tidemark.collections.declarations.sink import BufferTopic, DatabaseTable, FileFolder, IcebergTable, SinkDeclaration
from tidemark.errors import NotPossible
from tidemark.settings import Settings
from tidemark.sinks.target import Target


def open_target(sink: SinkDeclaration, settings: Settings) -> Target:
    """Return the target of ``sink``; nothing is connected yet.

    Raises ``ConfigurationInvalid`` if the environment lacks its connection.
    """
    if isinstance(sink.to, DatabaseTable):
        from tidemark.sinks.targets.postgres.target import PostgresTarget  # noqa: PLC0415

        return PostgresTarget.of(sink, sink.to, settings)
    if isinstance(sink.to, BufferTopic):
        from tidemark.sinks.targets.kafka.target import KafkaTarget  # noqa: PLC0415

        return KafkaTarget.of(sink, sink.to, settings)
    if isinstance(sink.to, FileFolder):
        from tidemark.sinks.targets.files.target import FilesTarget  # noqa: PLC0415

        return FilesTarget.of(sink, sink.to)
    if isinstance(sink.to, IcebergTable):
        from tidemark.sinks.targets.iceberg.target import IcebergTarget  # noqa: PLC0415

        return IcebergTarget.of(sink, sink.to, settings)
    raise NotPossible(
        f"{sink.to} is no target that this Tidemark can write",
        hint="use a table of PostgreSQL or of Iceberg, a topic of Kafka, or files",
    )
