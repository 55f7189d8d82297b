"""Opens buffers of every type. A new type is a module with a ``BACK_END``, and a line in ``MODULES``.

A module is imported when the first address of its type is read: who uses files does not load Kafka's client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

from tidemark.clock import Clock
from tidemark.errors import ConfigurationInvalid
from tidemark.write_buffer.back_end import BackEnd, Connection
from tidemark.write_buffer.ranges import NumberRange, iterate_batches
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.writer import Writer

if TYPE_CHECKING:
    import pyarrow as pa

MODULES = {
    "memory": "tidemark.write_buffer.memory",
    "file": "tidemark.write_buffer.file.buffer",
    "kafka": "tidemark.write_buffer.kafka.buffer",
}


def find_back_end(type_name: str) -> BackEnd:
    """Return the back end of a type.

    Raises ``ConfigurationInvalid`` if the type is unknown; the hint lists the known types.
    """
    if type_name not in MODULES:
        raise ConfigurationInvalid(f"Unknown write buffer type: {type_name}", hint=f"known are: {', '.join(MODULES)}")
    back_end: BackEnd = import_module(MODULES[type_name]).BACK_END
    return back_end


def open_writer(connection: Connection, *, clock: Clock, create: bool = False) -> Writer:
    """Open a writer; with ``create`` a missing buffer is created as the connection says.

    Raises:
        ConfigurationInvalid: If the connection names an unknown memory buffer, or has settings that are refused.
        BufferMissing: If there is no such buffer.
        BufferUnreachable: If the buffer does not answer within the connection's timeout.
    """
    return find_back_end(connection.type).open_writer(connection, clock=clock, create=create)


def open_reader(connection: Connection, *, create: bool = False) -> Reader:
    """Open a reader; everything else as ``open_writer``."""
    return find_back_end(connection.type).open_reader(connection, create=create)


def read_batches(
    connection: Connection, part: NumberRange, names: tuple[str, ...], reader: Reader | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ``part`` in the order of their numbers, with the columns ``names``; holes are skipped.

    ``reader`` is an open one of the same buffer, for who reads many small parts. Raises as ``open_reader`` and
    ``iterate_batches``.
    """
    from tidemark.write_buffer.formats.arrow_messages import MessageColumns  # noqa: PLC0415 -- most need no Arrow

    with open_reader(connection) if reader is None else nullcontext(reader) as opened:
        yield from iterate_batches(opened, part, MessageColumns(part.sequencer_id, names))


def check_shared(connection: Connection) -> None:
    """Refuse a buffer that Spark's tasks cannot open.

    Raises ``ConfigurationInvalid`` if the buffer is in the memory of one process.
    """
    if not find_back_end(connection.type).shared:
        raise ConfigurationInvalid(
            f"Spark cannot read a {connection.type} buffer",
            hint="its entries are in the memory of one process: ingest fewer at once (`--max-entries`)",
        )
