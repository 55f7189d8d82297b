"""Sinks into a topic of Kafka: a mirror is the table, a log of changes adds up to it, and others can read both."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, ResourceType
from pyiceberg.types import IntegerType

from tests.sinks.changes import change
from tidemark.errors import ConfigurationInvalid, FencedByGeneration
from tidemark.exit_codes import ExitCode
from tidemark.report import Outcome
from tidemark.sinks.targets.registry import open_target
from tidemark.write_buffer.partitioner import choose_sequencer, hash_key

if TYPE_CHECKING:
    from tests.sinks.kafka.conftest import Topic
    from tests.support.homes import Home

pytestmark = pytest.mark.kafka


def test_a_mirror_is_the_last_message_of_each_key(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    loaded = sinking.run_sink()
    assert (loaded.outcome, loaded.inserted, loaded.upper) == (Outcome.CARRIED, 3, sinking.upper("events"))
    first = topic.messages()
    assert sorted((seen.key["id"], seen.value["name"]) for seen in first) == [(0, "a"), (1, "b"), (2, None)]
    assert {tuple(seen.headers.items()) for seen in first} == {
        (("content-type", b"application/x-ndjson; version=1"), ("tidemark-table", b"events"))
    }
    for seen in first:
        assert seen.partition == choose_sequencer(hash_key("events", [seen.key["id"]]), range(3)), "as other writers do"
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    carried = sinking.run_sink()
    assert (carried.inserted, carried.retracted, carried.lower) == (2, 1, loaded.upper)
    added = topic.messages()
    assert len(added) == 6
    assert [seen.value for seen in added if seen.key == {"id": 0}] == [{"id": 0, "name": "a"}, None]
    assert topic.contents() == sinking.tuples("events") == [(1, "B"), (2, None), (3, "c")]
    assert sinking.run_sink().outcome is Outcome.UNCHANGED
    assert len(topic.messages()) == 6


def test_changes_are_every_update_once_in_order_per_key(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    sinking.run_sink()
    chance = random.Random(5)  # noqa: S311 - a test
    for _ in range(6):
        ids = chance.sample(range(6), 3)
        change(sinking, put={id_: chance.choice("xyz") for id_ in ids[:2]}, delete=(ids[2],))
        if chance.random() < 0.5:
            assert sinking.run_sink().error is None
    assert sinking.run_sink().error is None
    assert topic.sums() == sinking.tuples("events")
    by_key: dict[int, list[tuple[int, int]]] = {}
    for seen in topic.messages():
        assert seen.key == {"id": seen.value["id"]}
        by_key.setdefault(seen.value["id"], []).append((seen.value["_time"], seen.value["_diff"]))
    for updates in by_key.values():
        assert updates == sorted(updates), "by time, retractions before insertions"
        assert len(set(updates)) == len(updates), "each once"


def test_another_collection_ingests_a_mirror(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    sinking.declare_latest("copied", source={"buffer": topic.uri, "table": "events"})
    sinking.ingest("copied")
    assert sinking.tuples("copied") == sinking.tuples("events")
    change(sinking, put={1: "B", 3: 'ü "\n\\'}, delete=(0, 2))
    sinking.run_sink()
    assert sinking.ingest("copied").error is None
    assert sinking.tuples("copied") == sinking.tuples("events") == [(1, "B"), (3, 'ü "\n\\')]
    assert sinking.bad("copied") == [], "markers of transactions are no messages"


def test_a_mirror_makes_a_topic_that_keeps_the_last_message_of_each_key(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    for name in (topic.name, f"{topic.name}.progress"):
        resource = ConfigResource(ResourceType.TOPIC, name)
        assert topic.admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "compact"
    assert len(topic.admin.list_topics(topic.name, timeout=10).topics[topic.name].partitions) == 3


def test_rows_of_others_are_left_alone_or_replaced(sinking: Home, topic: Topic) -> None:
    topic.admin.create_topics([NewTopic(topic.name, num_partitions=1)])[topic.name].result()
    topic.write(
        ('{"id": 2}', '{"id": 2, "name": "old"}'), ('{"id":77}', '{"id": 77}'), ('{"id":8}', None), (None, "{}")
    )
    sinking.declare_sink(to={"buffer": topic.uri})
    report = sinking.run_sink()
    assert (report.error.kind, report.error.exit_code) == ("Refused", ExitCode.REFUSED)
    assert len(topic.messages()) == 4
    sinking.declare_sink(to={"buffer": topic.uri, "existing": "replace"})
    assert sinking.run_sink().inserted == 3
    left = {str(seen.key): seen.value for seen in topic.messages() if seen.key is not None}
    assert (left.pop("{'id': 77}"), left.pop("{'id': 8}")) == (None, None)
    assert sorted(value["id"] for value in left.values()) == [0, 1, 2]


def test_a_log_cannot_take_back_what_it_said(sinking: Home, topic: Topic) -> None:
    topic.admin.create_topics([NewTopic(topic.name, num_partitions=1)])[topic.name].result()
    topic.write(("1", "{}"))
    sinking.declare_sink(to={"buffer": topic.uri, "existing": "replace"}, mode="changes")
    report = sinking.run_sink()
    assert report.error.kind == "Refused"
    assert "another topic" in report.error.hint


def test_the_topic_of_another_sink_is_refused_and_that_sink_goes_on(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    sinking.declare_sink("thief", to={"buffer": topic.uri, "existing": "replace"})
    report = sinking.run_sink("thief")
    assert (report.error.kind, report.error.exit_code) == ("NotPossible", ExitCode.NOT_POSSIBLE)
    assert "belongs to the sink 'copies'" in report.error.message
    change(sinking, put={5: "e"})
    assert sinking.run_sink().inserted == 1


def test_a_topic_that_was_made_anew_is_noticed(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    topic.admin.delete_topics([topic.name])[topic.name].result()
    change(sinking, put={5: "e"})
    report = sinking.run_sink()
    assert (report.error.kind, report.error.exit_code) == ("NotPossible", ExitCode.NOT_POSSIBLE)
    assert f"delete the topic '{topic.name}.progress'" in report.error.hint
    assert topic.name not in topic.admin.list_topics(timeout=10).topics, "it was not made behind the owner's back"


def test_keys_stay_where_they_are_when_partitions_are_added(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    sinking.run_sink()
    topic.admin.create_partitions([NewPartitions(topic.name, 12)])[topic.name].result()
    change(sinking, put=dict.fromkeys(range(10), "later"))
    assert sinking.run_sink().error is None
    assert {seen.partition for seen in topic.messages()} <= {0, 1, 2}
    assert topic.sums() == sinking.tuples("events")


def test_a_forgotten_topic_is_free_for_another_sink(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    sink = sinking.registry.read().sinks["copies"]
    with open_target(sink.declaration, sinking.settings) as target:
        owner = target.look().owner
        target.forget(owner._replace(sink_id=99))
        assert target.look().owner == owner, "that of another sink stays"
        target.forget(owner)
        assert target.look() is None
    sinking.declare_sink("heir", to={"buffer": topic.uri, "existing": "replace"})
    change(sinking, delete=(0,))
    assert sinking.run_sink("heir").inserted == 2
    assert topic.contents() == sinking.tuples("events")


def test_a_newer_deployment_is_not_disturbed_by_an_older_one(sinking: Home, topic: Topic) -> None:
    declared = sinking.declare_sink(to={"buffer": topic.uri})
    sinking.run_sink()
    with open_target(declared, sinking.settings) as newer, open_target(declared, sinking.settings) as older:
        owner = newer.look().owner
        claimed = newer.claim(owner, generation=2)
        with pytest.raises(FencedByGeneration):
            older.claim(owner, generation=1)
        gone = pa.table({"id": pa.array([0], pa.int64())})
        newer.mirror(
            claimed, claimed, gone, pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
        )
    assert [row[0] for row in topic.contents()] == [1, 2]


def test_a_row_that_no_message_can_hold_is_refused_and_nothing_is_written(sinking: Home, topic: Topic) -> None:
    uri = topic.uri + "&topic.max.message.bytes=2000"
    sinking.declare_sink(to={"buffer": uri})
    change(sinking, put=dict.fromkeys(range(200), "of many"))
    assert sinking.run_sink().inserted == 200, "in batches that the topic takes"
    change(sinking, put={1: "B", 7: "x" * 2_000})
    report = sinking.run_sink()
    assert (report.error.kind, report.error.exit_code) == ("EntryTooLarge", ExitCode.REFUSED)
    assert len(topic.messages()) == 200


def test_only_kafka_has_transactions(sinking: Home) -> None:
    sinking.declare_sink(to={"buffer": sinking.buffer_folder.as_uri()})
    report = sinking.run_sink()
    assert (report.error.kind, report.error.exit_code) == (ConfigurationInvalid.__name__, ExitCode.CONFIGURATION)


def test_columns_that_come_and_go_are_members_that_come_and_go(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    sinking.run_sink()
    sinking.declare_latest(schema="id bigint, name string, size int", delete_when={"op": "d"})
    with sinking.shard().load().table.update_schema() as update:
        update.add_column("size", IntegerType())
    change(sinking, put={9: "new"})
    assert sinking.run_sink().error is None
    assert [seen.value.get("size", "none") for seen in topic.messages() if seen.key == {"id": 9}] == [None]


def test_appended_rows_come_without_a_key_in_the_order_of_their_commits(carrying: Home, topic: Topic) -> None:
    carrying.declare_reader("logged")
    carrying.declare_sink(collection="logged", to={"buffer": topic.uri}, mode="changes")
    for number in range(4):
        carrying.clock.step(1_000)
        carrying.send(0, b'{"id": 1, "name": "same"}', f'{{"id": 2, "name": "{number}"}}'.encode())
        carrying.ingest("logged")
        if number != 1:
            assert carrying.run_sink().error is None
    seen = topic.messages()
    assert {each.key for each in seen} == {None}
    same = [each for each in seen if each.value["id"] == 1]
    assert len({each.partition for each in same}) == 1, "equal rows have an order, too"
    times = [each.value["_time"] for each in same]
    assert times == sorted(set(times))
    assert topic.sums() == carrying.tuples("logged")
