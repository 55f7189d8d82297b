"""One worker, or two, step by step: the scenarios of the reference (§12); every order of them is in the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.storage import Cluster, ingestion, sink
from tidemark.errors import IncompatibleChange
from tidemark.frontier import EMPTY
from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    Command,
    CreateIngestionDataflow,
    DropDataflow,
    InitializationComplete,
    ResumePoint,
    RunIngestion,
    RunSink,
    RunSinkDataflow,
    SuspendAndRestart,
    UpdateConfiguration,
)
from tidemark.storage.effects import (
    AskResumePoints,
    Broadcast,
    Configure,
    Effect,
    Failed,
    PassThrough,
    PermitWrites,
    ReportStatus,
    StartDataflow,
    StopDataflow,
    Warn,
)
from tidemark.storage.order import CONTROLLER, Row, Sender
from tidemark.storage.worker import Worker

if TYPE_CHECKING:
    from tidemark.storage.commands import External

A, ALTERED = ingestion(1, "a", "b"), ingestion(2, "a", "b")
DROPS = [AllowCompaction("b", EMPTY), AllowCompaction("a", EMPTY)]


def create(version: int = 1, **uppers: int | type[EMPTY]) -> CreateIngestionDataflow:
    points = {id_: ResumePoint(uppers.get(id_, 0)) for id_ in "ab"}
    return CreateIngestionDataflow("a", ingestion(version, "a", "b"), 0, points)


def row(index: int, command: Command) -> Row:
    return Row(index, Sender("worker-0", 1), index, command)


def said(index: int, command: Command, life: int = 1) -> Row:
    return Row(index, Sender(CONTROLLER, life), index, command)


def connected(index: int, *commands: External) -> tuple[Worker, list[Effect]]:
    worker = Worker(index)
    worker.connect()
    return worker, worker.turn(external=[*commands, InitializationComplete()])


def test_external_commands_start_nothing_and_worker_0_asks_for_resume_points() -> None:
    worker, effects = connected(0, RunIngestion("a", A))
    assert effects == [AskResumePoints("a", A)]
    assert worker.handle_answer(create()) == [Broadcast(create())]
    assert worker.handle_internal(row(0, create())) == [StartDataflow(create())]
    assert connected(1, RunIngestion("a", A))[1] == []


def test_all_workers_run_the_description_of_worker_0() -> None:
    worker, _ = connected(1, RunIngestion("a", A))
    assert worker.handle_internal(row(0, create(2))) == [StartDataflow(create(2))]


def test_what_is_finished_is_not_run() -> None:
    worker, _ = connected(1, RunIngestion("a", A))
    (effect,) = worker.handle_internal(row(0, create(a=EMPTY)))
    assert isinstance(effect, StartDataflow) and effect.start.description == ingestion(1, "b")  # noqa: PT018
    assert worker.frontiers == {"a": EMPTY, "b": 0}
    assert worker.handle_internal(row(1, create(a=EMPTY, b=EMPTY))) == [StopDataflow("a")]


def test_a_drop_comes_after_the_create_that_is_pending() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    assert worker.turn(external=DROPS) == [PassThrough(DropDataflow(("a",)))]
    assert worker.turn(answers=[create(), DropDataflow(("a",))]) == [
        Broadcast(create()),
        Broadcast(DropDataflow(("a",))),
    ]
    assert worker.turn(internal=[row(0, create()), row(1, DropDataflow(("a",)))]) == [
        StartDataflow(create()),
        StopDataflow("a"),
    ]


def test_a_drop_is_decided_before_the_dataflow_is_gone() -> None:
    worker, _ = connected(1, RunIngestion("a", A))
    worker.turn(internal=[row(0, create())], external=DROPS)
    assert worker.frontiers == {}
    assert "a" in worker.dataflows


def test_a_failed_dataflow_is_restarted_once_and_from_fresh_points() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.handle_internal(row(0, create()))
    (told,) = worker.fail("a", "broken")
    assert told == Broadcast(SuspendAndRestart("a", "broken", 0))
    assert worker.handle_internal(row(1, told.command)) == [StopDataflow("a"), AskResumePoints("a", A, 0)]
    assert worker.handle_internal(row(2, told.command)) == []  # another worker saw the same failure
    worker.handle_internal(row(3, create()))
    assert worker.handle_internal(row(4, told.command)) == []
    assert ReportStatus("a", "stalled", "broken") in worker.report()


def test_what_was_dropped_is_not_restarted() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.turn(internal=[row(0, create())], external=DROPS)
    assert worker.handle_internal(row(1, SuspendAndRestart("a", "", 0))) == [StopDataflow("a")]
    (warning,) = worker.handle_internal(row(2, SuspendAndRestart("a", "", 0)))
    assert warning == Warn("a is not known: its suspension is left out")


def test_a_sink_restarts_from_the_time_up_to_which_its_collection_may_be_compacted() -> None:
    worker, effects = connected(0, RunSink("s", sink(), 3))
    assert effects == [PassThrough(RunSinkDataflow("s", sink(), 3))]
    worker.turn(internal=[row(0, RunSinkDataflow("s", sink(), 3))], external=[AllowCompaction("s", 9)])
    again = worker.handle_internal(row(1, SuspendAndRestart("s", "", 0)))
    assert again == [StopDataflow("s"), PassThrough(RunSinkDataflow("s", sink(), 9))]


@pytest.mark.parametrize("since", [4, EMPTY])
def test_a_compaction_of_what_nobody_knows_is_left_out(since: int) -> None:
    worker, _ = connected(0)
    (warning,) = worker.handle_external(AllowCompaction("x", since))
    assert isinstance(warning, Warn)
    assert worker.frontiers == {}


def test_frontiers_are_reported_if_the_controller_asked_for_them() -> None:
    worker, _ = connected(1)
    worker.handle_internal(row(0, create()))  # of an earlier controller
    worker.advance("a", 5)
    assert worker.frontiers == {}
    worker.handle_external(RunIngestion("a", A))
    worker.advance("a", 4)
    assert worker.frontiers == {"a": 5, "b": 0}
    worker.handle_external(RunIngestion("a", ALTERED))
    assert worker.frontiers == {"a": 5, "b": 0}, "an update keeps them"
    worker.connect()
    assert worker.frontiers == {}, "a new controller has not said what it wants"


def test_a_controller_that_goes_before_its_end_marker_changes_nothing() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.connect()
    assert worker.turn(external=[RunSink("s", sink(), 0), AllowWrites(), *DROPS]) == []
    assert (worker.descriptions, worker.may_write) == ({"a": A}, False)
    worker.connect()
    assert worker.turn(external=[RunIngestion("a", A), InitializationComplete()]) == []


def test_after_the_end_marker_only_what_differs_is_restarted() -> None:
    worker, _ = connected(0, RunIngestion("a", A), RunSink("s", sink(), 0), RunSink("t", sink(), 0))
    worker.turn(internal=[row(0, create()), row(1, RunSinkDataflow("s", sink(), 0))])
    worker.advance("s", 7)
    assert {*worker.report()} == {ReportStatus("a", "running"), ReportStatus("s", "running")}
    assert worker.report() == []
    worker.connect()
    wanted = [RunIngestion("a", ALTERED), RunSink("s", sink(), 0), InitializationComplete()]
    assert worker.turn(external=wanted) == [PassThrough(DropDataflow(("t",))), AskResumePoints("a", ALTERED)]
    assert worker.frontiers == {"a": 0, "b": 0, "s": 7}
    assert ReportStatus("s", "running") in worker.report(), "the new controller knows nothing"


def test_a_change_that_is_not_possible_changes_nothing() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.connect()
    with pytest.raises(IncompatibleChange):
        worker.turn(external=[RunSink("a", sink(), 0), InitializationComplete()])
    assert worker.descriptions == {"a": A}


def test_resume_points_that_cannot_be_read_are_asked_for_again_and_waited_for_the_longer() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    assert worker.handle_answer(Failed("a", "damaged")) == [AskResumePoints("a", A, 0)]
    assert worker.report() == [ReportStatus("a", "stalled", "damaged")]
    assert worker.handle_answer(Failed("a", "damaged")) == [AskResumePoints("a", A, 1)]
    assert worker.report() == []
    assert worker.handle_external(RunIngestion("a", ALTERED)) == [AskResumePoints("a", ALTERED, 0)]
    assert worker.handle_answer(Failed("a", "damaged")) == [], "the last question has no answer yet"
    assert worker.handle_answer(create(2)) == [Broadcast(create(2))]


def test_what_was_dropped_is_not_asked_for_again() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.turn(external=DROPS)
    assert worker.handle_answer(Failed("a", "gone")) == []
    assert worker.report() == []


def test_an_object_that_fails_without_any_progress_is_restarted_ever_later() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    counts = []
    for number in range(4):
        if number == 3:
            worker.advance("b", 7)
        worker.turn(internal=[row(2 * number, create())])
        worker.advance("b", 7 if number == 2 else 0)
        (_, asked) = worker.handle_internal(row(2 * number + 1, SuspendAndRestart("a", "broken", 2 * number)))
        assert isinstance(asked, AskResumePoints)
        counts.append(asked.restarts)
    assert counts == [0, 1, 0, 1]


def test_the_point_from_which_an_ingestion_goes_on_is_no_progress() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    for number in range(3):
        start = create(b=7)
        worker.turn(internal=[row(2 * number, start)])
        worker.advance("b", 7)
        (_, asked) = worker.handle_internal(row(2 * number + 1, SuspendAndRestart("a", "broken", 2 * number)))
        assert asked == AskResumePoints("a", A, number)


def test_a_sink_that_fails_without_any_progress_is_restarted_ever_later() -> None:
    worker, _ = connected(0, RunSink("s", sink(), 0))
    start = RunSinkDataflow("s", sink(), 0)
    for number in range(3):
        worker.handle_internal(row(2 * number, start))
        failed = worker.handle_internal(row(2 * number + 1, SuspendAndRestart("s", "broken", 2 * number)))
        assert failed == [StopDataflow("s"), PassThrough(start, number)]


def test_a_worker_that_comes_and_a_person_who_asks_make_nobody_wait() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    for number in range(3):
        worker.turn(internal=[row(2 * number, create())])
        asked = SuspendAndRestart("a", "a worker came", 2 * number, is_failure=False)
        assert worker.handle_internal(row(2 * number + 1, asked))[-1] == AskResumePoints("a", A, 0)
    replayed = Worker(1)
    (said,) = [effect for effect in replayed.replay([row(0, create())]) if isinstance(effect, Broadcast)]
    assert isinstance(said.command, SuspendAndRestart)
    assert not said.command.is_failure


def test_what_runs_is_not_restarted_because_an_earlier_question_failed() -> None:
    worker, _ = connected(0, RunIngestion("a", A), RunIngestion("a", ALTERED))
    worker.turn(external=[RunIngestion("a", A)])
    assert worker.handle_answer(Failed("a", "broken")) == []
    worker.turn(answers=[create()], internal=[row(0, create())])
    worker.connect()
    assert worker.turn(external=[RunIngestion("a", A), InitializationComplete()]) == []


def test_what_runs_again_under_its_id_does_not_get_the_status_from_before_its_drop() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.turn(internal=[row(0, create()), row(1, SuspendAndRestart("a", "broken", 0)), row(2, create())])
    worker.turn(external=DROPS)
    worker.handle_internal(row(3, SuspendAndRestart("a", "broken anew", 2)))
    worker.turn(external=[RunIngestion("a", A)], internal=[row(4, DropDataflow(("a",)))])
    assert worker.report() == []
    worker.connect()
    worker.turn(external=[RunIngestion("a", A), InitializationComplete()])
    assert worker.report() == []


def test_a_status_waits_until_the_controller_asks_for_the_object_and_worker_0_alone_tells_it() -> None:
    for index, told in ((0, [ReportStatus("a", "running")]), (1, [])):
        worker, _ = connected(index)
        worker.handle_internal(row(0, create()))
        assert worker.report() == []
        worker.handle_external(RunIngestion("a", A))
        assert worker.report() == told


def test_a_worker_that_starts_anew_asks_for_a_restart_of_what_runs() -> None:
    worker = Worker(0)
    effects = worker.replay([row(0, create()), row(1, UpdateConfiguration({"x": "1"})), row(5, create(2))])
    restart = SuspendAndRestart("a", "worker 0 was started anew", 5, is_failure=False)
    assert effects == [Configure({"x": "1"}), Broadcast(restart)]
    assert worker.turn(external=[RunIngestion("a", ALTERED), InitializationComplete()]) == []
    assert worker.handle_internal(row(6, restart)) == [StopDataflow("a"), AskResumePoints("a", ALTERED)]


def test_a_new_life_knows_what_the_last_controller_wants() -> None:
    rows = [
        said(0, RunSink("t", sink(), 0)),
        said(1, InitializationComplete()),
        row(2, RunSinkDataflow("t", sink(), 0)),
        said(3, RunIngestion("a", A), life=2),
        said(4, RunSink("s", sink(), 0), life=2),
        said(5, InitializationComplete(), life=2),
        said(6, AllowWrites(), life=2),
        row(7, create()),
        said(8, UpdateConfiguration({"x": "1"}), life=2),
        said(9, AllowCompaction("s", 4), life=2),
        said(10, RunSink("u", sink(), 0), life=3),
    ]
    worker = Worker(0)
    effects = worker.replay(rows)
    assert worker.descriptions == {"a": A, "s": sink()}
    assert worker.as_ofs == {"s": 4}
    assert (worker.may_write, worker.controller_life, worker.frontiers) == (True, 3, {})
    assert effects == [
        Broadcast(SuspendAndRestart("t", "worker 0 was started anew", 2, is_failure=False)),
        Broadcast(SuspendAndRestart("a", "worker 0 was started anew", 7, is_failure=False)),
        PassThrough(DropDataflow(("t",))),
        Broadcast(UpdateConfiguration({"x": "1"})),
        PassThrough(RunSinkDataflow("s", sink(), 4)),
        PermitWrites(),
    ]
    worker.take(said(11, InitializationComplete(), life=3))
    assert worker.descriptions == {"u": sink()}


def test_a_row_of_the_log_is_told_apart_by_its_sender() -> None:
    worker, settings = Worker(0), UpdateConfiguration({"x": "1"})
    assert worker.take(said(0, InitializationComplete())) == []
    assert worker.take(said(1, settings)) == [Broadcast(settings)]
    assert worker.take(row(2, settings)) == [Configure({"x": "1"})]
    assert worker.take(row(3, RunIngestion("a", A))) == []
    assert worker.take(said(4, RunIngestion("a", A))) == [AskResumePoints("a", A)]
    assert worker.take(row(5, create())) == [StartDataflow(create())]


def test_a_new_life_of_the_controller_changes_nothing_before_its_end_marker() -> None:
    worker = Worker(1)
    for each in (said(0, RunIngestion("a", A)), said(1, InitializationComplete()), row(2, create())):
        worker.take(each)
    assert worker.take(said(3, RunSink("s", sink(), 0), life=2)) == []
    assert worker.take(said(4, RunIngestion("a", ALTERED), life=3)) == []
    assert worker.descriptions == {"a": A}
    worker.take(said(5, InitializationComplete(), life=3))
    assert worker.descriptions == {"a": ALTERED}, "and nothing of life 2"


def test_settings_take_effect_in_the_order_of_all_workers() -> None:
    settings = UpdateConfiguration({"every": "5s"})
    worker, effects = connected(0, settings)
    assert effects == [Broadcast(settings)]
    assert worker.configuration == {}
    assert worker.handle_internal(row(0, settings)) == [Configure({"every": "5s"})]


def test_permission_to_write_is_given_once() -> None:
    worker, effects = connected(1, AllowWrites())
    assert effects == [PermitWrites()]
    assert worker.handle_external(AllowWrites()) == []


def test_two_workers_see_one_restart_of_an_altered_ingestion() -> None:
    cluster = Cluster([("want", "a", ingestion(1, "a"))], workers=2)
    cluster.settle()
    cluster.restart()
    cluster.settle()
    assert cluster.reads == 1, "the description is the same"
    cluster.script = [("want", "a", ingestion(2, "a"))]
    cluster.settle()
    cluster.restart()
    cluster.settle()
    assert cluster.reads == 2
