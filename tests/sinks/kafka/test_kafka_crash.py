"""Sinks into Kafka that are killed anywhere, or race, or whose broker dies: each update is there once, in order."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.support.crash import real_first, run_command, start_command
from tests.support.dying import interrupted_at
from tests.support.leases import wait_for
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.report import Outcome
from tidemark.sinks import carrying
from tidemark.sinks import run as sink_run
from tidemark.sinks.targets.kafka import target, transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sinks.kafka.conftest import Topic
    from tests.support.homes import Home
    from tools.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

KILLS = 20
# The first transaction of a run is its claim.
POINTS = (
    *sink_run.FAIL_POINTS,
    *carrying.FAIL_POINTS,
    *target.FAIL_POINTS,
    *(f"{point}{which}" for point in transaction.FAIL_POINTS for which in ("", ":2")),
)


def check_log(sinking: Home, topic: Topic) -> None:
    """Every update is there once, those of each key in the order of their times, and they add up to the contents."""
    assert topic.sums() == sinking.tuples("events")
    by_key: dict[int, list[tuple[int, int]]] = {}
    for seen in topic.messages():
        by_key.setdefault(seen.value["id"], []).append((seen.value["_time"], seen.value["_diff"]))
    for updates in by_key.values():
        assert updates == sorted(set(updates))


@pytest.mark.parametrize(("point", "run"), real_first(POINTS))
def test_killed_sink_carries_each_update_once(sinking: Home, topic: Topic, point: str, run: Callable[..., int]) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    assert run(sinking.settings, "sink", "run", point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    change(sinking, put={1: "B", 3: "c"}, delete=(0,))
    assert sinking.run_sink().error is None
    check_log(sinking, topic)


def test_twenty_kills_lose_and_double_nothing(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    chance = random.Random(11)  # noqa: S311 - a test
    for number in range(KILLS):
        ids = chance.sample(range(9), 4)
        change(sinking, put=dict.fromkeys(ids[:3], f"{number}"), delete=(ids[3],))
        running = start_command(sinking.settings, "sink", "run", "copies", point=chance.choice(POINTS))
        if chance.random() < 0.3:
            running.signal(signal.SIGKILL)
        running.exit_code()
    assert sinking.run_sink().error is None
    check_log(sinking, topic)


@pytest.mark.parametrize("point", ["sink.held", "sink.kafka-sent:2"])  # before the rows are sent, and after
def test_the_later_of_two_runs_fences_the_earlier_one(sinking: Home, topic: Topic, point: str) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    outcomes = list[Outcome]()
    with interrupted_at(point, lambda: outcomes.append(sinking.run_sink().outcome)):
        report = sinking.run_sink()
    assert outcomes == [Outcome.CARRIED]
    assert (report.error.kind, report.error.exit_code) == ("FencedByEpoch", ExitCode.FENCED)
    check_log(sinking, topic)
    assert sinking.run_sink().outcome is Outcome.UNCHANGED


def test_a_transaction_that_takes_too_long_is_told_and_leaves_nothing_open(sinking: Home, topic: Topic) -> None:
    limits = "&producer.transaction.timeout.ms=3000&producer.message.timeout.ms=3000"
    sinking.declare_sink(to={"buffer": topic.uri + limits}, mode="changes")
    with interrupted_at("sink.kafka-sent:2", lambda: wait_for(topic.has_nothing_open)):
        report = sinking.run_sink()
    assert (report.error.kind, report.error.exit_code) == ("ConfigurationInvalid", ExitCode.CONFIGURATION)
    assert "took longer than 3 s" in report.error.message
    assert "`transaction.max.timeout.ms`" in report.error.hint
    assert topic.messages() == []
    assert sinking.run_sink().inserted == 3
    check_log(sinking, topic)


def test_three_at_once_carry_each_update_once(sinking: Home, topic: Topic) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    runs = [start_command(sinking.settings, "sink", "run") for _ in range(3)]
    assert {run.exit_code() for run in runs} <= {ExitCode.OK, ExitCode.FENCED, ExitCode.TRANSIENT}
    assert run_command(sinking.settings, "sink", "run") == ExitCode.OK
    check_log(sinking, topic)


def test_a_broker_that_dies_in_mid_commit_is_asked_by_the_next_run(
    sinking: Home, topic: Topic, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    sinking.run_sink()
    change(sinking, put={1: "B", 4: "d"})
    monkeypatch.setattr(transaction, "_COMMIT_S", 3.0)
    with interrupted_at("sink.kafka-sent:2", kafka.kill):
        report = sinking.run_sink()
    kafka.start()
    assert report.error.exit_code in {ExitCode.TRANSIENT, ExitCode.UNREACHABLE}
    assert sinking.run_sink().error is None
    check_log(sinking, topic)
