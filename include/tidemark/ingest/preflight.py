"""Checks before anything is started, all at once: the catalog, the warehouse, and every buffer that has a name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Thread
from uuid import uuid4

from tidemark.errors import TidemarkError, Unreachable
from tidemark.iceberg.shard.state_reader import check_reachable
from tidemark.locations import to_path
from tidemark.settings import Settings
from tidemark.write_buffer.address import VARIABLE_PREFIX, find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.registry import open_reader

_PATIENCE_S = 1.0  # beyond the timeout of a check, before the check counts as failed
Unanswered = dict[str, TidemarkError]


def check_at_start(settings: Settings) -> Unanswered:
    """Check all at once, within 5 s; return the named buffers that do not answer, in upper case.

    Raises ``Unreachable`` if the catalog or the warehouse does not answer; the message names both if both do not.
    """
    names = [name.removeprefix(VARIABLE_PREFIX) for name in settings.connections if name.startswith(VARIABLE_PREFIX)]
    silent: Unanswered = {}
    errors: dict[str, TidemarkError] = {}
    threads = {
        "catalog": _start(lambda: check_reachable(settings), errors, "catalog"),
        "warehouse": _start(lambda: check_warehouse(settings.warehouse), errors, "warehouse"),
        "buffers": _start(lambda: silent.update(check_named(names, settings)), errors, "buffers"),
    }
    until = time.monotonic() + settings.connect_timeout_s + _PATIENCE_S
    for what, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            errors[what] = Unreachable(f"the {what} did not answer in time", hint="is the network there?")
    errors.pop("buffers", None)  # every collection checks its own buffer
    if errors:
        first, *others = errors.values()
        if not others:
            raise first
        raise Unreachable("; ".join(str(error) for error in errors.values()), hint=first.hint) from first
    return silent


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


def check_warehouse(uri: str) -> None:
    """Check that files can be written below ``uri``.

    Raises ``Unreachable`` if not.
    """
    if (folder := to_path(uri)) is not None:
        present = next(path for path in (folder, *folder.parents) if path.exists())
        if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
            raise Unreachable(
                f"the warehouse {uri} cannot be written", hint="check TIDEMARK_WAREHOUSE and who may write"
            )
        return
    from pyarrow import fs  # noqa: PLC0415 -- object stores only

    try:
        filesystem, path = fs.FileSystem.from_uri(f"{uri}/{uuid4()}")
        filesystem.get_file_info(path)  # "not found" is an answer
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise Unreachable(
            f"the warehouse {uri} cannot be reached: {reason}", hint="check TIDEMARK_WAREHOUSE"
        ) from error


def _start(check: Callable[[], None], errors: dict[str, TidemarkError], what: str) -> Thread:
    def run() -> None:
        try:
            check()
        except TidemarkError as error:
            errors[what] = error

    thread = Thread(target=run, name=f"check {what}", daemon=True)  # a silent store must not hold up the exit
    thread.start()
    return thread


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
