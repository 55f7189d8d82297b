"""Checks before anything is started, all at once: the catalog, the warehouse, and every buffer that has a name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread

from tidemark.errors import TidemarkError, Unreachable
from tidemark.iceberg.stores import PATIENCE_S, check_stores
from tidemark.settings import Settings
from tidemark.write_buffer.address import VARIABLE_PREFIX, find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.registry import open_reader

Unanswered = dict[str, TidemarkError]


def check_at_start(settings: Settings) -> Unanswered:
    """Check all at once, within 5 s; return the named buffers that do not answer, in upper case.

    Raises as ``check_stores``.
    """
    names = [name.removeprefix(VARIABLE_PREFIX) for name in settings.connections if name.startswith(VARIABLE_PREFIX)]
    silent: Unanswered = {}
    # Every collection checks its own buffer: one that hangs must not fail the others.
    asking = Thread(target=lambda: silent.update(check_named(names, settings)), name="check buffers", daemon=True)
    asking.start()
    until = time.monotonic() + settings.connect_timeout_s + PATIENCE_S
    check_stores(settings)
    asking.join(max(0.0, until - time.monotonic()))
    return dict(silent)


def check_named(names: Iterable[str], settings: Settings) -> Unanswered:
    """Ask the named buffers all at once; return those that do not answer, by their names in upper case."""
    connections = {}
    for name in names:
        try:
            connection = find_connection(name, settings.connections)
            connections[name.upper()] = replace(connection, timeout_s=settings.connect_timeout_s)
        except TidemarkError:  # the collection that reads it says what is wrong with its address
            continue
    return {name: error for name, error in check_buffers(connections).items() if isinstance(error, Unreachable)}


def check_buffers(connections: Mapping[str, Connection]) -> dict[str, TidemarkError | None]:
    """Return the error of each buffer, ``None`` if it answers; takes as long as the slowest answer."""
    if not connections:
        return {}
    with ThreadPoolExecutor(max_workers=len(connections)) as pool:
        asked = {name: pool.submit(_check, connection) for name, connection in connections.items()}
        return {name: answer.result() for name, answer in asked.items()}


def _check(connection: Connection) -> TidemarkError | None:
    try:
        with open_reader(connection) as reader:
            for sequencer_id in reader.sequencer_ids():
                reader.fetch_high_watermark(sequencer_id)
    except TidemarkError as error:
        return error
    return None
