"""Sinks into Kafka that are killed anywhere, or race, or whose broker dies: each update is there once, in order."""

from __future__ import annotations

import random
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.sinks.changes import change
from tests.support.crash import real_first, run_command, start_command
from tests.support.dying import interrupted_at
from tests.support.kafka_door import Commit, kafka_door
from tests.support.leases import wait_for
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.report import Outcome
from tidemark.sinks import carrying
from tidemark.sinks import run as sink_run
from tidemark.sinks.targets.kafka import target, transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sinks.kafka.conftest import Seen, Topic
    from tests.support.homes import Home
    from tools.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

KILLS = 20
AFTER_THE_COMMIT = {"sink.carried", "sink.moved", "sink.kafka-committed:2"}
# The first transaction of a run is its claim.
POINTS = (
    *sink_run.FAIL_POINTS,
    *carrying.FAIL_POINTS,
    *target.FAIL_POINTS,
    *(f"{point}{which}" for point in transaction.FAIL_POINTS for which in ("", ":2")),
)


def check_log(sinking: Home, topic: Topic) -> None:
    """Every update is there once, those of each key in the order of their times, and they add up to the contents."""
    check_order(topic.messages())
    assert topic.sums() == sinking.tuples("events")


def check_order(messages: list[Seen]) -> None:
    """Each update is there once, those of each key in the order of their times."""
    by_key: dict[int, list[tuple[int, int]]] = {}
    for seen in messages:
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
    """Each run dies, and no other one ever carries anything: what a reader sees between two kills has to grow."""
    sinking.declare_sink(to={"buffer": topic.uri}, mode="changes")
    chance = random.Random(11)  # noqa: S311 - a test
    kills = [(point, False) for point in POINTS if point != "sink.held"]  # which is passed before the first load alone
    kills += [("sink.moved", True) for _ in range(KILLS - len(kills) - 1)]
    chance.shuffle(kills)
    count = 0
    for number, (point, at_any_moment) in enumerate([("sink.held", False), *kills]):
        ids = chance.sample(range(9), 4)
        change(sinking, put=dict.fromkeys(ids[:3], f"{number}"), delete=(ids[3],))
        running = start_command(sinking.settings, "sink", "run", "copies", point=point)
        if at_any_moment:
            time.sleep(chance.uniform(0, 0.6))
            running.signal(signal.SIGKILL)
        code = running.exit_code()
        assert code in ({-signal.SIGKILL, FAIL_POINT_EXIT} if at_any_moment else {FAIL_POINT_EXIT}), point
        has_committed = code == FAIL_POINT_EXIT and point in AFTER_THE_COMMIT
        if has_committed:
            wait_for(topic.has_nothing_open)  # the broker tells its readers of a commit a moment later
            assert topic.sums() == sinking.tuples("events")
        seen = topic.messages()
        check_order(seen)
        assert len(seen) > count or not has_committed
        count = len(seen)
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
    wait_for(topic.has_nothing_open)
    check_log(sinking, topic)  # at least one of them got to the end
    assert run_command(sinking.settings, "sink", "run") == ExitCode.OK
    check_log(sinking, topic)


@dataclass
class Trouble:
    """What befalls a commit that is under way, whether it lands in any case, and whether the run waits for the end."""

    befall: Callable[[Commit, KafkaBroker], object]
    lands: bool = False
    run_waits: bool = True


def kill_after(delay_s: float, *, restarts: bool) -> Callable[[Commit, KafkaBroker], None]:
    """Let the broker have the request, and kill it so much later."""

    def befall(commit: Commit, broker: KafkaBroker) -> None:
        commit.pass_on()
        time.sleep(delay_s)
        kill(broker, restarts=restarts)

    return befall


def kill(broker: KafkaBroker, *, restarts: bool) -> None:
    broker.kill()
    if restarts:
        broker.start()


def lose_the_answer(commit: Commit, broker: KafkaBroker, *, restarts: bool) -> None:
    commit.pass_on_and_lose_the_answer()
    kill(broker, restarts=restarts)


def hang(commit: Commit, broker: KafkaBroker, *, seconds: float) -> None:
    """Let the broker stand still, with the request before it."""
    broker.suspend()
    commit.pass_on()
    time.sleep(seconds)
    broker.resume()


TROUBLES = {
    "it is killed before the request, and comes back": Trouble(lambda _, broker: kill(broker, restarts=True)),
    "it is killed before the request, and stays away": Trouble(
        lambda _, broker: kill(broker, restarts=False), run_waits=False
    ),
    "it is killed with the request": Trouble(kill_after(0.0, restarts=True)),
    "it is killed 2 ms later": Trouble(kill_after(0.002, restarts=True)),
    "it is killed 10 ms later": Trouble(kill_after(0.01, restarts=True)),
    "the answer is lost, and it comes back": Trouble(partial(lose_the_answer, restarts=True), lands=True),
    "the answer is lost, and it stays away": Trouble(
        partial(lose_the_answer, restarts=False), lands=True, run_waits=False
    ),
    "it hangs for a second": Trouble(partial(hang, seconds=1.0), lands=True),
    "it hangs for longer than a run waits": Trouble(partial(hang, seconds=6.0), run_waits=False),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_broker_that_is_lost_while_it_commits(
    sinking: Home, topic: Topic, kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, trouble: Trouble
) -> None:
    with kafka_door(kafka) as door:
        sinking.declare_sink(to={"buffer": topic.uri.replace(kafka.address, door.address)}, mode="changes")
        assert sinking.run_sink().inserted == 3
        change(sinking, put={1: "B", 4: "d"})
        monkeypatch.setattr(transaction, "_COMMIT_S", 60.0 if trouble.run_waits else 3.0)
        over = threading.Event()

        def befall(commit: Commit) -> None:
            try:
                trouble.befall(commit, kafka)
            finally:
                over.set()

        with interrupted_at("sink.kafka-sent:2", lambda: door.arm(befall)):
            report = sinking.run_sink()
        assert over.wait(60), "no commit went by"
        if not kafka.is_running:
            kafka.start()
        assert report.error is None or report.error.exit_code in {ExitCode.TRANSIENT, ExitCode.UNREACHABLE}
        following = sinking.run_sink()
        assert following.error is None
        assert following.outcome is Outcome.UNCHANGED or not trouble.lands
        check_log(sinking, topic)
        assert len(topic.messages()) == 6
