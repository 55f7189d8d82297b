"""A real broker, and processes that are killed at any moment: what is there in the end is the last write."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.ingest.test_kafka_ingest import Topic
from tests.support.crash import run_command, start_command
from tests.support.exploration import draw_seed
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher
from tidemark.iceberg.reading.arrow import read_arrow
from tidemark.iceberg.staging import files as file_staging
from tidemark.ingest.parts import steps
from tidemark.ingest.persist import persist as persisting

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka

KILLS, MOST_KILLS, PARTITIONS = 15, 60, 2
COMMANDS = {
    ("buffer", "ingest", "events"): (*steps.FAIL_POINTS, *file_staging.FAIL_POINTS, *publisher.FAIL_POINTS),
    ("buffer", "persist", "events", "--now"): (*persisting.FAIL_POINTS, *publisher.FAIL_POINTS),
}
HOURS = [datetime(2013, 1, 3, 5, tzinfo=UTC) + timedelta(minutes=minutes) for minutes in (0, 59, 60, 61)]


class Stream:
    """Rows with few keys and times, each key in a partition of its own; the last one of both wins."""

    def __init__(self, topic: Topic, draws: random.Random) -> None:
        self.topic, self.draws = topic, draws
        self.sent = 0
        self.last: dict[tuple[int, datetime], int] = {}

    def write(self, messages: int, *, bad: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.topic.broker.address, "log_level": "0"})
        for _ in range(messages):
            rows = [self._draw() for _ in range(self.draws.randint(1, 3))]
            key = rows[0]["k"]
            lines = (json.dumps({**row, "k": key, "at": row["at"].isoformat()}) for row in rows)
            producer.produce(self.topic.name, value="\n".join(lines).encode(), partition=key % PARTITIONS)
            self.last |= {(key, row["at"]): row["id"] for row in rows}
        for _ in range(bad):
            producer.produce(self.topic.name, value=b"{", partition=self.draws.randrange(PARTITIONS))
        assert producer.flush(30) == 0

    def _draw(self) -> dict[str, Any]:
        self.sent += 1
        return {"id": self.sent, "k": self.draws.randrange(4), "at": self.draws.choice(HOURS)}


@pytest.fixture
def stream(kafka: KafkaBroker, unique_name: str) -> Stream:
    return Stream(Topic(kafka, unique_name, PARTITIONS), random.Random(draw_seed()))  # noqa: S311 - not a secret


@pytest.fixture
def reading(home: Settings, tmp_path: Path) -> Home:
    return Home(home, tmp_path, now_ms=SystemClock().now_ms())


def declare(home: Home, stream: Stream, *, on_recreated: str = "fail", **lifecycle: object) -> None:
    home.declare_reader(
        source={"buffer": stream.topic.uri, "on_recreated": on_recreated},
        schema="id bigint, k bigint, at timestamp",
        event_time="at",
        partition="hour",
        key=["k"],
        lifecycle=lifecycle,
    )


def all_ids(home: Home) -> list[int]:
    found = read_arrow(home.shard(), with_open=True).column("id").to_pylist()
    assert max(Counter(found).values(), default=1) == 1, "a row is there twice"
    return sorted(found)


@pytest.mark.parametrize("visible", ["at-once", "when-persisted"])
def test_the_last_write_wins_whatever_is_killed(reading: Home, stream: Stream, visible: str) -> None:
    declare(reading, stream, visible=visible)
    left = {command: deque(points) for command, points in COMMANDS.items()}
    for place in range(MOST_KILLS):
        if place >= KILLS and not any(left.values()):
            break
        stream.write(3, bad=1)
        for command, points in left.items():
            if place % 3:
                point = points[0] if points else stream.draws.choice(COMMANDS[command])
                code = run_command(reading.settings, *command, point=point)
                if points and code == FAIL_POINT_EXIT:
                    points.popleft()
                else:
                    points.rotate(-1)  # there was nothing to do at that point: it comes again
            else:
                process = start_command(reading.settings, *command)
                time.sleep(stream.draws.uniform(0, 1))
                process.signal(signal.SIGKILL)
                code = process.exit_code()
            assert code in {FAIL_POINT_EXIT, -signal.SIGKILL, ExitCode.OK}
            assert set(all_ids(reading)) <= set(range(1, stream.sent + 1))
    assert not any(left.values()), f"never reached: {left}"
    assert run_command(reading.settings, "buffer", "ingest", "events") == ExitCode.OK
    present = set(all_ids(reading))
    assert present >= set(stream.last.values()), "the last of each key and time"
    assert run_command(reading.settings, "buffer", "persist", "events", "--now") == ExitCode.OK
    assert reading.ids() == all_ids(reading) == sorted(stream.last.values())
    assert run_command(reading.settings, "buffer", "ingest", "events") == ExitCode.OK
    assert reading.ids() == sorted(stream.last.values())


def test_of_a_topic_that_is_made_anew_the_last_write_wins(reading: Home, stream: Stream) -> None:
    declare(reading, stream)
    stream.write(60)
    assert reading.ingest().error is None
    stream.topic.delete()
    until = time.monotonic() + 30
    stream.topic.create(PARTITIONS)
    stream.write(6)  # their numbers are those of the first messages before
    while (report := reading.ingest()).error is None or report.error.kind != "LogRecreated":
        assert time.monotonic() < until, report
    declare(reading, stream, on_recreated="earliest")
    assert reading.ingest().error is None
    assert run_command(reading.settings, "buffer", "persist", "events", "--now") == ExitCode.OK
    assert reading.ids() == sorted(stream.last.values())


def test_above_the_hard_limit_what_waits_stays_in_the_topic(reading: Home, stream: Stream) -> None:
    declare(reading, stream, hard_limit=4, visible="when-persisted")
    stream.write(10)
    for _ in range(20):
        code = run_command(reading.settings, "buffer", "ingest", "events", "--max-entries", "1")
        if code != ExitCode.OK:
            break
    assert code == ExitCode.TRANSIENT
    report = reading.ingest()
    assert report.error is not None
    assert report.error.kind == "HardLimit"
    waiting = sum(each["sequence_number_lag"] for each in report.details["sequencers"].values())
    numbers = sum(int(each.rpartition(":")[2]) for each in reading.ledgers().values())
    assert waiting == 10 - numbers > 0
    before = all_ids(reading)
    assert len(before) >= 4
    for _ in range(20):
        assert run_command(reading.settings, "buffer", "persist", "events", "--now") == ExitCode.OK
        if reading.ingest(max_entries=1).inserted == 0:
            break
    assert run_command(reading.settings, "buffer", "persist", "events", "--now") == ExitCode.OK
    assert reading.ids() == sorted(stream.last.values())
