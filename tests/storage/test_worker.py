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
    StatisticsUpdate,
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
    ReportDropped,
    ReportFrontier,
    ReportStatistics,
    ReportStatus,
    StartDataflow,
    StopDataflow,
    Warn,
)
from tidemark.storage.order import Row, Sender
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
    assert worker.report()[0] == ReportFrontier("a", EMPTY)
    assert worker.handle_internal(row(1, create(a=EMPTY, b=EMPTY))) == [StopDataflow("a")]


def test_a_drop_comes_after_the_create_that_is_pending() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    assert worker.turn(external=DROPS) == [PassThrough(DropDataflow(("a",)))]
    assert worker.turn(answers=[create(), DropDataflow(("a",))])[2:] == [
        Broadcast(create()),
        Broadcast(DropDataflow(("a",))),
    ]
    assert worker.turn(internal=[row(0, create()), row(1, DropDataflow(("a",)))]) == [
        StartDataflow(create()),
        StopDataflow("a"),
    ]


def test_a_drop_is_acknowledged_when_it_is_decided() -> None:
    worker, _ = connected(1, RunIngestion("a", A))
    worker.turn(internal=[row(0, create())], external=DROPS)
    assert worker.report() == [ReportDropped("b"), ReportDropped("a")]
    assert "a" in worker.dataflows
    assert worker.report() == []


def test_a_failed_dataflow_is_restarted_once_and_from_fresh_points() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.handle_internal(row(0, create()))
    (told,) = worker.fail("a", "broken")
    assert told == Broadcast(SuspendAndRestart("a", "broken", 0))
    assert worker.handle_internal(row(1, told.command)) == [StopDataflow("a"), AskResumePoints("a", A)]
    (warning,) = worker.handle_internal(row(2, told.command))  # another worker saw the same failure
    assert isinstance(warning, Warn)
    worker.handle_internal(row(3, create()))
    (warning,) = worker.handle_internal(row(4, told.command))
    assert isinstance(warning, Warn)
    assert ReportStatus("a", "stalled", "broken") in worker.report()


def test_what_was_dropped_is_not_restarted() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.turn(internal=[row(0, create())], external=DROPS)
    assert worker.handle_internal(row(1, SuspendAndRestart("a", "", 0))) == [StopDataflow("a")]
    (warning,) = worker.handle_internal(row(2, SuspendAndRestart("a", "", 0)))
    assert isinstance(warning, Warn)


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
    assert worker.report() == []


def test_frontiers_are_reported_if_they_advanced_and_the_controller_asked_for_them() -> None:
    worker, _ = connected(1)
    worker.handle_internal(row(0, create()))  # it overtook the external command
    worker.advance("a", 5)
    assert worker.report() == []
    worker.handle_external(RunIngestion("a", A))
    assert worker.report()[0] == ReportFrontier("a", 5)
    worker.advance("a", 4)
    worker.handle_external(RunIngestion("a", ALTERED))  # what was told stays told
    assert worker.report() == []


def test_a_controller_that_goes_before_its_end_marker_changes_nothing() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.connect()
    assert worker.turn(external=[RunSink("s", sink(), 0), AllowWrites(), *DROPS]) == []
    worker.disconnect()
    assert (worker.descriptions, worker.may_write) == ({"a": A}, False)
    worker.connect()
    assert worker.turn(external=[RunIngestion("a", A), InitializationComplete()]) == []


def test_after_the_end_marker_only_what_differs_is_restarted() -> None:
    worker, _ = connected(0, RunIngestion("a", A), RunSink("s", sink(), 0), RunSink("t", sink(), 0))
    worker.turn(internal=[row(0, create()), row(1, RunSinkDataflow("s", sink(), 0))])
    worker.advance("s", 7)
    assert ReportFrontier("s", 7) in worker.report()
    worker.disconnect()
    worker.connect()
    wanted = [RunIngestion("a", ALTERED), RunSink("s", sink(), 0), InitializationComplete()]
    assert worker.turn(external=wanted) == [PassThrough(DropDataflow(("t",))), AskResumePoints("a", ALTERED)]
    reports = worker.report()
    assert ReportFrontier("s", 7) in reports, "the new controller knows nothing"
    assert ReportStatus("s", "running") in reports
    assert ReportDropped("t") not in reports


def test_a_change_that_is_not_possible_changes_nothing() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    worker.connect()
    with pytest.raises(IncompatibleChange):
        worker.turn(external=[RunSink("a", sink(), 0), InitializationComplete()])
    assert worker.descriptions == {"a": A}


def test_an_object_whose_resume_points_cannot_be_read_is_tried_again_by_the_next_controller() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    assert worker.handle_answer(Failed("a", "damaged")) == []
    assert worker.report() == [ReportStatus("a", "stalled", "damaged")]
    worker.connect()
    assert worker.turn(external=[RunIngestion("a", A), InitializationComplete()]) == [AskResumePoints("a", A)]


def test_a_worker_that_starts_anew_asks_for_a_restart_of_what_runs() -> None:
    worker = Worker(0)
    effects = worker.replay([row(0, create()), row(1, UpdateConfiguration({"x": "1"})), row(5, create(2))])
    restart = SuspendAndRestart("a", "worker 0 was started anew", 5)
    assert effects == [Configure({"x": "1"}), Broadcast(restart)]
    worker.connect()
    assert worker.turn(external=[RunIngestion("a", ALTERED), InitializationComplete()]) == []
    assert worker.handle_internal(row(6, restart)) == [StopDataflow("a"), AskResumePoints("a", ALTERED)]


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


def test_statistics_are_summed_over_the_workers_for_what_runs() -> None:
    worker, _ = connected(0, RunIngestion("a", A))
    (told,) = worker.measure({"a": {"rows": 2.0}})
    worker.turn(internal=[row(0, create()), row(1, told.command), row(2, StatisticsUpdate(1, {"a": {"rows": 3.0}}))])
    assert worker.report()[-1] == ReportStatistics({"a": {"rows": 5.0}})
    assert worker.report() == []


def test_two_workers_see_one_restart_of_an_altered_ingestion() -> None:
    cluster = Cluster([("want", "a", ingestion(1, "a"))], workers=2)
    cluster.settle()
    cluster.reconnect(0)
    cluster.reconnect(1)
    cluster.settle()
    assert len(cluster.log.rows) == 1, "the description is the same"
    cluster.script = [("want", "a", ingestion(2, "a"))]
    cluster.settle()
    cluster.reconnect(0)
    cluster.settle()
    assert len(cluster.log.rows) == 2
