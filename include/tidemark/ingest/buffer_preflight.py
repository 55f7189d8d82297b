"""Asks all buffers at once whether they are there, before anything is started on them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidemark.errors import TidemarkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemark.write_buffer.address import Connection
    from tidemark.write_buffer.registry import BufferFactory


def check_buffers(factory: BufferFactory, connections: Mapping[str, Connection]) -> dict[str, TidemarkError | None]:
    """Return for each buffer what is wrong with it, ``None`` if it answers; a bad one does not hold up the others.

    This takes as long as the slowest answer: with a broker that is down, the factory's timeout.
    """
    if not connections:
        return {}
    with ThreadPoolExecutor(max_workers=len(connections)) as pool:
        asked = {name: pool.submit(_check, factory, connection) for name, connection in connections.items()}
        return {name: answer.result() for name, answer in asked.items()}


def _check(factory: BufferFactory, connection: Connection) -> TidemarkError | None:
    try:
        with factory.open_reader(connection) as reader:
            for sequencer_id in reader.sequencer_ids():
                reader.fetch_high_watermark(sequencer_id)
    except TidemarkError as error:
        return error
    return None
