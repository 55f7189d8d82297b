"""A replay from a real broker: transactions leave holes, old records are deleted, and processes are killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ingest.replay.test_replay import contents, delete, replay, replayed
from tests.ingest.test_kafka_ingest import Topic
from tests.support.crash import run_command
from tests.support.homes import Home
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher
from tidemark.ingest.replay import replay as replaying

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka


def test_rows_come_back_from_a_broker_as_far_as_it_has_them(
    home: Settings, tmp_path: Path, kafka: KafkaBroker, unique_name: str
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    admin.create_topics([NewTopic(unique_name, num_partitions=2)])[unique_name].result()
    ingesting = Home(home, tmp_path, now_ms=10**8)
    ingesting.declare_reader(
        source={"buffer": f"kafka://{kafka.address}/{unique_name}"}, schema="id bigint, at timestamp", event_time="at"
    )
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": unique_name, "log_level": "0"})
    producer.init_transactions(30)
    for transaction in range(3):
        producer.begin_transaction()
        for number in range(4):
            row = {"id": 4 * transaction + number, "at": f"1970-01-01T0{number}:00:00"}
            producer.produce(unique_name, value=json.dumps(row).encode(), partition=number % 2)
        producer.commit_transaction(30)
    assert ingesting.ingest().inserted == 12
    before = contents(ingesting)
    assert {row[3] for row in before} == {0, 1, 3, 4, 6, 7}, "each transaction ends with a number without a row"
    delete(ingesting, "id in (0, 5, 10, 11)")
    assert (replayed(ingesting).inserted, contents(ingesting)) == (12, before)

    delete(ingesting, "id in (0, 8)")
    lost = TopicPartition(unique_name, 0, 4)
    admin.delete_records([lost])[lost].result()
    refused = replay(ingesting)
    assert (refused.error and refused.error.kind, refused.exit_code) == ("NoLongerExists", ExitCode.INPUT_MISSING)
    assert replayed(ingesting, skips_lost=True).details["lost"] == 4
    assert before - contents(ingesting) == {row: 1 for row in before if row[0] == 0}


def test_a_replay_that_is_killed_between_two_steps_loses_and_doubles_nothing(
    home: Settings, tmp_path: Path, kafka: KafkaBroker, unique_name: str
) -> None:
    topic = Topic(kafka, unique_name, 2)
    ingesting = Home(home, tmp_path, now_ms=10**8)
    ingesting.declare_reader(source={"buffer": topic.uri}, schema="id bigint, at timestamp", event_time="at")
    producer = Producer({"bootstrap.servers": kafka.address, "log_level": "0"})
    for number in range(12):
        row = {"id": number, "at": f"1970-01-01T{number:02}:00:00"}
        producer.produce(unique_name, value=json.dumps(row).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    assert ingesting.ingest().inserted == 12
    before = contents(ingesting)
    lost = TopicPartition(unique_name, 0, 1)
    topic.admin.delete_records([lost])[lost].result()  # so that each replay has a loss to record
    for point in (*replaying.FAIL_POINTS, *publisher.FAIL_POINTS):
        delete(ingesting, "id in (3, 6, 11)")
        damaged = contents(ingesting)
        died = run_command(ingesting.settings, "buffer", "replay", "events", "--skip-lost", point=point)
        assert died == FAIL_POINT_EXIT, f"{point} was never reached"
        assert contents(ingesting) in (damaged, before)
        replayed(ingesting, skips_lost=True)
        assert contents(ingesting) == before, point
    assert ingesting.branches() == set()
