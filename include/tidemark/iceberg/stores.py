"""Asks the stores whether they answer, all at once, within 5 s and before anything is started."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from uuid import uuid4

from tidemark.errors import ConfigurationInvalid, TidemarkError, Unreachable
from tidemark.iceberg.shard.state_reader import check_reachable
from tidemark.locations import to_path
from tidemark.settings import Settings

PATIENCE_S = 1.0  # beyond the timeout of a check, before the check counts as failed


def check_stores(settings: Settings, *, writes: bool = True) -> None:
    """Check that the SQL catalog answers, and that files can be written to the warehouse, or read without ``writes``.

    Raises:
        Unreachable: If not; the message names both if both do not answer.
        ConfigurationInvalid: As ``check_warehouse``.
    """
    checks: dict[str, Callable[[], None]] = {
        "catalog": partial(check_reachable, settings),
        "warehouse": partial(check_warehouse, settings.warehouse, writes=writes),
    }
    errors: dict[str, TidemarkError] = {}
    threads = {what: _start(check, errors, what) for what, check in checks.items()}
    until = time.monotonic() + settings.connect_timeout_s + PATIENCE_S
    for what, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            errors[what] = Unreachable(f"the {what} did not answer in time", hint="is the network there?")
    if errors:
        first, *others = errors.values()
        if not others:
            raise first
        raise Unreachable("; ".join(str(error) for error in errors.values()), hint=first.hint) from first


def check_warehouse(uri: str, *, writes: bool = True) -> None:
    """Check that files can be written below ``uri``, or that it answers at all.

    Raises:
        Unreachable: If not.
        ConfigurationInvalid: If nothing can be stored at such a location.
    """
    if (folder := to_path(uri)) is not None:
        present = next(path for path in (folder, *folder.parents) if path.exists())
        needed = os.R_OK | os.X_OK | (os.W_OK if writes else 0)
        if not present.is_dir() or not os.access(present, needed):
            raise Unreachable(
                f"the warehouse {uri} cannot be {'written' if writes else 'read'}",
                hint="check TIDEMARK_WAREHOUSE and who may write",
            )
        return
    from pyarrow import fs  # noqa: PLC0415 -- object stores only

    try:
        filesystem, path = fs.FileSystem.from_uri(f"{uri}/.tidemark-check-{uuid4()}")
        filesystem.get_file_info(path)  # "not found" is an answer
        if writes:  # only a write shows what a login may do
            with filesystem.open_output_stream(path) as stream:
                stream.write(b"written to see whether it can be, and removed\n")
            with suppress(OSError):
                filesystem.delete_file(path)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise Unreachable(
            f"the warehouse {uri} cannot be {'written' if writes else 'reached'}: {reason}",
            hint="check TIDEMARK_WAREHOUSE, and who may write",
        ) from error
    except ValueError as error:
        raise ConfigurationInvalid(f"TIDEMARK_WAREHOUSE: nothing can be stored at {uri}: {error}") from error


def _start(check: Callable[[], None], errors: dict[str, TidemarkError], what: str) -> Thread:
    def run() -> None:
        try:
            check()
        except TidemarkError as error:
            errors[what] = error

    thread = Thread(target=run, name=f"check {what}", daemon=True)  # a silent store must not hold up the exit
    thread.start()
    return thread
