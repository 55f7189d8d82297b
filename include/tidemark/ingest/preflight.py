"""What is asked before anything is started, all at once: the catalog, the warehouse, every buffer that has a name."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from tidemark.errors import TidemarkError, Unreachable
from tidemark.iceberg.shard.state_reader import check_reachable
from tidemark.write_buffer.address import VARIABLE_PREFIX, find_connection
from tidemark.write_buffer.registry import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tidemark.settings import Settings
    from tidemark.write_buffer.back_end import Connection


_PATIENCE_S = 1.0  # beyond what each check may take itself, before it counts as failed
Unanswered = dict[str, TidemarkError]


def check_at_start(settings: Settings) -> Unanswered:
    """Check all at once, within 5 s; return the named buffers that do not answer, in upper case.

    Raises:
        Unreachable: If the catalog or the warehouse does not answer; the message names both if both do not.
    """
    names = [name.removeprefix(VARIABLE_PREFIX) for name in settings.connections if name.startswith(VARIABLE_PREFIX)]
    found: Unanswered = {}
    troubles: dict[str, TidemarkError] = {}
    asked = [
        _start(lambda: check_reachable(settings), troubles, "catalog"),
        _start(lambda: check_warehouse(settings.warehouse), troubles, "warehouse"),
        _start(lambda: found.update(check_named(names, settings)), troubles, "buffers"),
    ]
    until = time.monotonic() + settings.connect_timeout_s + _PATIENCE_S
    for what, thread in zip(("catalog", "warehouse", "buffers"), asked, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            troubles[what] = Unreachable(f"the {what} did not answer in time", hint="is the network there?")
    troubles.pop("buffers", None)  # each collection finds out by itself
    if troubles:
        first, *others = troubles.values()
        if not others:
            raise first
        raise Unreachable("; ".join(str(trouble) for trouble in troubles.values()), hint=first.hint) from first
    return found


def check_named(names: Iterable[str], settings: Settings) -> Unanswered:
    """Return which of the buffers, as declarations name them, do not answer, in upper case; asked all at once."""
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

    Raises:
        Unreachable: If not.
    """
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"}:
        folder = Path(unquote(parts.path))
        present = next(path for path in (folder, *folder.parents) if path.exists())
        if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
            raise Unreachable(
                f"the warehouse {uri} cannot be written", hint="check TIDEMARK_WAREHOUSE and who may write"
            )
        return
    from pyarrow import fs  # noqa: PLC0415 -- object stores only

    try:
        filesystem, path = fs.FileSystem.from_uri(f"{uri}/{uuid4()}")
        filesystem.get_file_info(path)  # nothing is there, which is an answer
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise Unreachable(
            f"the warehouse {uri} cannot be reached: {reason}", hint="check TIDEMARK_WAREHOUSE"
        ) from error


def unanswered(buffer: str, found: Mapping[str, TidemarkError]) -> TidemarkError | None:
    """Return what is wrong with a buffer as a declaration names it, if anything is."""
    return found.get(buffer.upper())


def _start(check: Callable[[], None], troubles: dict[str, TidemarkError], what: str) -> Thread:
    def run() -> None:
        try:
            check()
        except TidemarkError as error:
            troubles[what] = error

    thread = Thread(target=run, name=f"check {what}", daemon=True)  # a silent store must not hold up the exit
    thread.start()
    return thread


def check_buffers(connections: Mapping[str, Connection]) -> dict[str, TidemarkError | None]:
    """Return for each buffer what is wrong with it, ``None`` if it answers; a bad one does not hold up the others.

    This takes as long as the slowest answer: with a broker that is down, its connection's timeout.
    """
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
