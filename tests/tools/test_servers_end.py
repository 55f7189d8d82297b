"""Servers of the tests end with the process that started them, however that process ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

# Without an `except`, SIGTERM and SIGKILL end Python at once; SIGINT runs what `finally` says.
POSTGRES = """
import sys, time
from pathlib import Path
from tests.support.postgres_server import running_postgres
with running_postgres(Path(sys.argv[1], "data")) as server:
    print(server.port, flush=True)
    time.sleep(600)
"""
KAFKA = """
import sys, time
from pathlib import Path
from tools.kafka_broker import KafkaBroker
broker = KafkaBroker(Path(sys.argv[1]), Path(sys.argv[2]))
broker.start()
print(broker.port, flush=True)
time.sleep(600)
"""
ENDED_WITHIN_S = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not below ``tmp_path``, which is shut to the user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix="tidemark-servers-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def end_a_process_with_its_server(program: str, *arguments: str, by: signal.Signals) -> None:
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        assert listens(port)
        process.send_signal(by)
        process.wait()
    deadline = time.monotonic() + ENDED_WITHIN_S
    while listens(port):
        assert time.monotonic() < deadline, "the server outlives the process that started it"
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.postgres
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_postgres_ends_with_its_starter(folder: Path, by: signal.Signals) -> None:
    end_a_process_with_its_server(POSTGRES, str(folder), by=by)


@pytest.mark.kafka
def test_a_broker_ends_with_its_starter(folder: Path, settings: Settings) -> None:
    end_a_process_with_its_server(KAFKA, str(folder), str(settings.jars), by=signal.SIGKILL)
