"""Readers of a real broker stay open through new partitions, the death of the broker, and a topic that is made anew."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import NewPartitions

from tests.ingest.parts.rounds import take_round, workers
from tests.ingest.test_kafka_ingest import Topic
from tests.support.homes import Home
from tidemark.errors import InputsGone
from tidemark.write_buffer.errors import BufferUnreachable

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.ingest.parts import Ingesting
    from tidemark.settings import Settings
    from tools.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka

PATIENCE_S = 60


def wait_for(home: Home, runs: list[Ingesting], rows: int) -> None:
    """Take rounds until so many rows are there."""
    until = time.monotonic() + PATIENCE_S
    while len(home.ids()) < rows:
        assert time.monotonic() < until
        try:
            report = take_round(runs, measures=False)
        except (InputsGone, BufferUnreachable):
            continue
        assert report.error is None or report.error.kind == "BufferUnreachable"


def test_rounds_go_on_with_readers_that_are_open(
    home: Settings, tmp_path: Path, kafka: KafkaBroker, unique_name: str
) -> None:
    topic, opened = Topic(kafka, unique_name, 4), Home(home, tmp_path, now_ms=1_000_000)
    declaration = opened.declare_reader(source={"buffer": topic.uri, "on_recreated": "earliest"})
    with workers(opened, declaration, 2) as runs:
        topic.write(*range(4), 0, 0)
        assert take_round(runs, measures=False).inserted == 6
        readers = [run.reader for run in runs]
        assert topic.told("tidemark.events") == [-1001] * 4, "nobody was told"
        topic.write(1, 2)
        assert take_round(runs).inserted == 2
        assert topic.told("tidemark.events") == [3, 2, 2, 1]
        assert [run.reader for run in runs] == readers
        topic.admin.create_partitions([NewPartitions(topic.name, 5)])[topic.name].result()
        topic.write(4, 4, 0)
        wait_for(opened, runs, 11)
        assert opened.ledgers()["4"] == "0:2"
        kafka.kill()
        with pytest.raises(BufferUnreachable):
            take_round(runs)
        kafka.start()
        topic.write(4, 0, 1)
        wait_for(opened, runs, 14)
        topic.delete()
        topic.create(5)
        topic.write(*[0] * 9)
        wait_for(opened, runs, 23)
    assert opened.ids() == list(range(23))
    assert opened.branches() == set()
