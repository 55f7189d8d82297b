"""Runs that stand still inside a COPY: no timeout of PostgreSQL ends them, and they hold the locks of the target."""

from __future__ import annotations

from typing import Any

import psycopg

_COPIES = """
SELECT copy.pid, copy.bytes_processed FROM pg_stat_progress_copy AS copy JOIN pg_stat_activity AS session USING (pid)
WHERE session.application_name = %s AND session.usename = current_user AND session.datname = current_database()
AND session.pid <> pg_backend_pid() AND session.wait_event = 'ClientRead'
"""


def list_waiting(connection: psycopg.Connection[Any], application: str) -> set[tuple[int, int]]:
    """Return the sessions of an application that wait for more rows, each with the bytes that it has taken so far."""
    return set(connection.execute(_COPIES, [application]).fetchall())


def end_sessions(connection: psycopg.Connection[Any], frozen: set[tuple[int, int]]) -> None:
    """End the sessions, whose transactions are rolled back."""
    connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) AS pid", [[pid for pid, _ in frozen]])
