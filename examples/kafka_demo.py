"""Watch weather come through a real Kafka broker into a table, exactly once, although the broker is killed meanwhile.

``make demo-kafka`` runs a broker of its own on a loopback port, from the jars of the set-up. The exit status is 0 only
if every observation is there once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from examples.buffer_shown import COLLECTION, TABLE, show_buffer
from examples.steps import console, say, tidemark
from tidemark.errors import StaleState, TidemarkError
from tidemark.exit_codes import ExitCode
from tidemark.settings import PROJECT_ROOT, Settings
from tools.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = PROJECT_ROOT / ".demo" / "kafka"


def run_demo(folder: Path) -> None:
    """Do all of it.

    Raises:
        StaleState: If an observation is missing or there twice, or the broker's death goes unnoticed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {"TIDEMARK_HOME": str(folder / "home")}
    console.rule("a Kafka broker starts")
    broker = KafkaBroker(folder / "broker", Settings.load(os.environ).jars)
    try:
        broker.start()
        address = f"kafka://{broker.address}/{TABLE}"
        say(f"{address}")
        tidemark(environment, "init")

        def kill_and_restart() -> None:
            broker.kill()
            say("The broker was killed. Nobody loses anything:")
            down = ingest_as_person(environment)
            if down.returncode != ExitCode.UNREACHABLE:
                raise StaleState(f"a broker that is down was not noticed: exit code {down.returncode}")
            say(f"exit code {down.returncode}: {result_of(down.stdout)['error']['message']}")
            broker.start()
            say("The broker is back, on the same port, with the same topic.")

        show_buffer(environment, folder, address, ingest=lambda: ingest(environment), interrupt=kill_and_restart)
    finally:
        broker.kill()


def ingest(environment: dict[str, str]) -> dict[str, Any]:
    """Ingest all that waits, and return what became of the collection."""
    return result_of(tidemark(environment, "buffer", "ingest", COLLECTION, "--json", shown=False))


def ingest_as_person(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Ingest where it may fail."""
    command = [sys.executable, "-m", "tidemark", "buffer", "ingest", COLLECTION, "--json"]
    environ = {**os.environ, **environment}
    return subprocess.run(command, cwd=PROJECT_ROOT, env=environ, capture_output=True, text=True, check=False)


def result_of(report: str) -> dict[str, Any]:
    """Return the collection's part of a report."""
    found: dict[str, Any] = json.loads(report)["collections"][COLLECTION]
    return found


def main() -> int:
    """Run it in ``.demo/kafka``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the broker ends with the demo
    try:
        run_demo(FOLDER)
    except TidemarkError as error:
        say(f"{error.kind}: {error}")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
