"""Real worker processes on a real broker: killed at random, while the broker restarts and declarations change."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.support.exploration import draw_seed, is_soak
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.storage.view import read_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 8
KILLS = 20 if is_soak() else 4
PER_SECOND = 200


class Producing(threading.Thread):
    """Writes rows with ids of their own to all partitions, until it is told to stop."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic, self.sent, self.ends = topic, 0, threading.Event()
        self.producer = Producer(
            {"bootstrap.servers": broker.address, "log_level": "0", "enable.idempotence": True, "linger.ms": 20}
        )

    def run(self) -> None:
        while not self.ends.wait(0.05):
            for _ in range(PER_SECOND // 20):
                row = {"id": self.sent, "name": f"s{self.sent % 7}"}
                self.producer.produce(self.topic, json.dumps(row).encode(), partition=self.sent % PARTITIONS)
                self.sent += 1
            self.producer.poll(0)

    def finish(self) -> None:
        self.ends.set()
        self.join()
        assert self.producer.flush(60) == 0


@pytest.fixture
def produced(kafka: KafkaBroker, unique_name: str) -> Iterator[Producing]:
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    admin.create_topics([NewTopic(unique_name, num_partitions=PARTITIONS)])[unique_name].result()
    found = Producing(kafka, unique_name)
    found.start()
    yield found
    found.ends.set()


@pytest.fixture
def declared(home: Settings, tmp_path: Path, kafka: KafkaBroker, produced: Producing) -> Home:
    found = Home(home, tmp_path)
    found.clock = SystemClock()  # type: ignore[assignment]  # other processes have this one
    found.declare_reader(source={"buffer": f"kafka://{kafka.address}/{produced.topic}", "every": "1s"})
    found.declare_sink(mode="changes", to={"path": str(tmp_path / "out")}, every="1s")
    return found


@pytest.fixture
def workers(declared: Home, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tidemark", "storage", "run", "--workers", "2"]
    environ = os.environ | {"TIDEMARK_HOME": str(declared.settings.home)}
    with (tmp_path / "workers.log").open("wb") as output:
        process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(120)


def test_every_row_comes_once_whoever_dies(
    declared: Home, produced: Producing, workers: subprocess.Popen[bytes], kafka: KafkaBroker, tmp_path: Path
) -> None:
    draw = random.Random(draw_seed())  # noqa: S311 - not a secret
    wait_until(lambda: len(declared.ids()) > 100, 60)
    for number in range(KILLS):
        time.sleep(draw.uniform(0.5, 3.0))
        kill_one_worker(declared.settings, draw)
        if number == KILLS // 4:
            kafka.kill()
            time.sleep(draw.uniform(0, 3))
            kafka.start()
        if number == KILLS // 2:
            source = {"buffer": f"kafka://{kafka.address}/{produced.topic}", "every": "2s", "most_entries": 300}
            declared.declare_reader(source=source)
            declared.declare_reader("others", source=source)
        if number == KILLS // 2 + 1:
            declared.deployment.objects.drop(declared.deployment.objects.look(["others"]))
    produced.finish()
    wait_until(lambda: len(declared.ids()) >= produced.sent, 90)
    assert declared.ids() == list(range(produced.sent))
    wait_until(lambda: len(carried(tmp_path / "out")) >= produced.sent, 60)
    assert carried(tmp_path / "out") == list(range(produced.sent))
    wait_until(lambda: len(running(declared.settings)) == 2, 60)  # the exit code tells of one that is not back
    workers.terminate()
    assert workers.wait(120) == 0
    assert not running(declared.settings)


def running(settings: Settings) -> list[dict[str, Any]]:
    """Return the workers that run, as the view has them."""
    return [each for each in read_view(settings)["workers"] if each["state"] == "running"]


def kill_one_worker(settings: Settings, draw: random.Random) -> None:
    if found := running(settings):
        with suppress(ProcessLookupError):
            os.kill(int(str(draw.choice(found)["process"]).rpartition(":")[2]), signal.SIGKILL)


def carried(folder: Path) -> list[int]:
    """Return the ids that a sink has carried."""
    if not (folder / "_tidemark" / "manifest.json").exists():
        return []
    return sorted(row["id"] for row in arrow_rows(files_of(folder, read_manifest(folder))))


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.25)
