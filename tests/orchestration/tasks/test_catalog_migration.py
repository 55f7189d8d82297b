"""The tasks of both migration DAGs as functions: what they hand on, refuse, and say; no scheduler, and no JVM."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from spark_apps.copy_catalog import main as copy_catalog
from tests.conftest import settings_in
from tests.support.catalog.interventions import put_garbage
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.catalog.opening.protocol import FENCE_PERSIST
from tidemark.errors import NotLed, Unreachable
from tidemark.iceberg.log import LogUpdate
from tidemark.orchestration.approval import PlanApprovalOperator, check_approval
from tidemark.orchestration.tasks import catalog_migration as tasks

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again


class Run:
    """The tasks of one DAG, one after the other; results as XComs are, JSON."""

    def __init__(self, home: Home, direction: Direction) -> None:
        self.home, self.direction = home, direction.value
        self.results: dict[str, Any] = {}
        self.pushed: dict[str, Any] = {}
        self.dag_run = SimpleNamespace(triggering_user_name="ann")

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value

    def approve(self, *, approved: bool = True) -> None:
        operator = PlanApprovalOperator(task_id="approve", subject="", body="", plan_digest="")
        event = {
            "chosen_options": ["Approve" if approved else "Reject"],
            "params_input": {},
            "responded_at": datetime(2026, 1, 1, tzinfo=UTC),
            "responded_by_user": {"id": "7", "name": "bob"},
        }
        shown = self.results["plan"]["plan_digest"]
        self.results["approve"] = operator.execute_complete({}, event, plan_digest=shown)

    def run(self, *names: str) -> Any:
        for name in names:
            result = self._run(name)
            self.results[name] = json.loads(json.dumps(result))
        return self.results[names[-1]]

    def run_all(self) -> Any:
        self.run("check_back_ends", "plan")
        self.approve()
        flips = ["flip"] if self.direction == "migrate" else []
        return self.run("fence", "read_tombstone", "copy", "verify", *flips, "announce", "check_after")

    def _run(self, name: str) -> Any:
        found, direction = self.results, self.direction
        if name == "copy":
            path = self.home.settings.home / "report.json"
            code = copy_catalog([*self.pushed[tasks.ARGUMENTS], "--report", str(path)])
            report = json.loads(path.read_text())
            assert code == report["exit_code"]
            return report
        functions = {
            "check_back_ends": tasks.check_back_ends.function,
            "plan": lambda: tasks.make_plan.function(direction),
            "is_to_be_done": lambda: tasks.is_to_be_done.function(found["plan"], params={"plan_only": False}),
            "fence": lambda: tasks.fence_both.function(
                direction, found["plan"], found.get("approve"), dag_run=self.dag_run
            ),
            "read_tombstone": lambda: tasks.read_tombstone.function(direction, found["plan"], found["fence"], ti=self),
            "verify": lambda: tasks.verify_copy.function(direction, found["plan"], found["fence"], found["copy"]),
            "flip": lambda: tasks.flip_truth.function(found["fence"], found["verify"]),
            "announce": lambda: tasks.announce_leader.function(
                direction, found["fence"], found["read_tombstone"], found["approve"], dag_run=self.dag_run
            ),
            "check_after": lambda: tasks.check_after.function(direction, {}),
        }
        return functions[name]()


@pytest.fixture
def home(installation: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    installation.mkdir()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    home = Home(settings_in(installation))
    home.open(ROLLBACK, add=["row"])
    return home


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_the_tasks_take_the_catalog_there_and_say_who_wanted_it(home: Home, direction: Direction) -> None:
    if direction is ROLLBACK:
        home.open(MIGRATE, add=["acknowledged"])
    rows = home.setting_names()
    run = Run(home, direction)
    after = run.run_all()
    truth = "persist" if direction is MIGRATE else "stash"
    assert (after["truth"], home.truth(), home.setting_names()) == (truth, truth, rows)
    copied = run.results["copy"]["collections"]["system.catalog"]
    assert (copied["outcome"], copied["strategy"]) == ("corrected", "driver")
    with home.catalog.join() as task:
        events = [json.loads(text) for text in task.snapshot().of_kind(AUDIT_EVENT.name).values()]
    assert events[-1]["operation"] == direction.value
    assert events[-1]["who"] == "ann, approved by bob, through Airflow"


def test_a_plan_is_written_down_and_shown(home: Home) -> None:
    plan = Run(home, MIGRATE).run("plan")
    written = json.loads((home.settings.reports / "plans" / plan["path"].rpartition("/")[2]).read_text())
    assert written["plan_digest"] == plan["plan_digest"]
    assert plan["plan_digest"] in plan["text"]
    assert "| setting | 1 |" in plan["text"]
    assert home.setting_names() == {"row"}


def test_a_plan_says_for_how_long_nobody_can_work(home: Home) -> None:
    text = Run(home, MIGRATE).run("plan")["text"]
    assert "takes some seconds, and 190 minutes at most" in text
    assert "`wait_for_tasks` waits for up to 6 hours" in text


def test_tasks_go_on_after_a_copy_that_failed_for_good(home: Home) -> None:
    run = Run(home, MIGRATE)
    assert tasks.lead_again.function("migrate", None, None) is False, "nobody was fenced"
    run.run("plan")
    run.approve()
    run.run("fence", "read_tombstone")
    with pytest.raises(NotLed):
        home.catalog.join()
    assert tasks.lead_again.function("migrate", run.results["fence"], None) is True
    assert home.setting_names() == {"row"}
    run.run("fence", "read_tombstone", "copy", "verify", "flip", "announce")  # as cleared after the repair
    assert (home.truth(), home.setting_names()) == ("persist", {"row"})


def test_a_plan_tells_of_garbage_that_says_nothing_consistent_and_all_of_it_goes(home: Home) -> None:
    home.open(MIGRATE)
    home.open(ROLLBACK)
    twice = LogUpdate("config", '"data_version"', "1", 1)
    put_garbage(home, twice, LogUpdate("setting", '{"name":"row"}', '{"value":"v","version":1}', 1))
    run = Run(home, MIGRATE)
    assert "2 rows there say nothing consistent; all of them are replaced." in run.run("plan")["text"]
    assert run.run_all()["truth"] == "persist"
    assert home.setting_names_of("persist") == {"row"}


def test_there_is_nothing_to_ask_if_it_was_done_or_only_the_plan_is_wanted(home: Home) -> None:
    run = Run(home, MIGRATE)
    run.run("plan")
    assert run.run("is_to_be_done") is True
    assert tasks.is_to_be_done.function(run.results["plan"], params={"plan_only": True}) is False
    home.open(MIGRATE)
    run.run("plan")
    assert run.run("is_to_be_done") is False
    home.die_after(MIGRATE, FENCE_PERSIST)
    run.run("plan")
    assert run.run("is_to_be_done") is True, "the truth is there, but nobody leads"


@pytest.mark.parametrize("approved", [None, False])
def test_nobody_is_fenced_without_an_approval(home: Home, *, approved: bool | None) -> None:
    run = Run(home, MIGRATE)
    run.run("plan")
    if approved is not None:
        run.results["approve"] = {"approved": approved, "plan_digest": run.results["plan"]["plan_digest"]}
    before = home.dumps()
    with pytest.raises(AirflowFailException, match=r"Refused, exit code 65.*was not approved.*ask again"):
        run.run("fence")
    assert home.dumps() == before


def test_an_approval_is_of_one_plan(home: Home) -> None:
    run = Run(home, MIGRATE)
    run.run("plan")
    run.approve()
    home.open(add=["late"])
    epochs = home.epochs()
    with pytest.raises(AirflowFailException, match=r"exit code 65.*not what it was when the plan was approved.*ask"):
        run.run("fence")
    run.run("plan")  # cleared alone, with the old answer still there
    with pytest.raises(AirflowFailException, match=r"exit code 65.*another plan was approved"):
        run.run("fence")
    assert home.epochs() == epochs
    run.approve()
    run.run("fence", "read_tombstone", "copy", "verify", "flip", "announce")
    assert (home.truth(), home.setting_names()) == ("persist", {"row", "late"})


def test_an_answer_names_who_gave_it_to_what() -> None:
    answer = {"approved": True, "plan_digest": "a", "answered_by": "bob"}
    assert check_approval(answer, plan_digest="a") == "bob"


@pytest.mark.parametrize("direction", [MIGRATE, ROLLBACK])
def test_stale_fences_end_a_task_for_good_and_say_what_to_clear(home: Home, direction: Direction) -> None:
    if direction is ROLLBACK:
        home.open(MIGRATE)
    run = Run(home, direction)
    run.run("plan")
    run.approve()
    run.run("fence", "read_tombstone")
    home.open()
    run.results |= {"copy": {}, "verify": run.results["fence"]}
    flips = ["flip"] if direction is MIGRATE else []
    for name in ("read_tombstone", "verify", *flips, "announce"):
        with pytest.raises(AirflowFailException, match=r"FencedByEpoch, exit code 77: .*\(start over from the task"):
            run.run(name)
    report = run.run("copy")
    assert (report["exit_code"], report["error"]["kind"]) == (77, "FencedByEpoch")
    assert "start over" in report["error"]["hint"]
    policy = tasks.FENCES_ARE_FINAL
    assert policy.rules[0].action.value == "fail"


def test_a_part_before_its_turn_is_refused(home: Home) -> None:
    run = Run(home, MIGRATE)
    run.run("plan")
    run.approve()
    run.run("fence", "read_tombstone")
    with pytest.raises(AirflowFailException, match="NotPossible, exit code 76"):
        run.run("announce")


def test_a_stash_that_does_not_answer_is_asked_again(home: Home) -> None:
    (home.settings.home / "stash.db").rename(home.settings.home / "away.db")
    (home.settings.home / "stash.db").mkdir()
    with pytest.raises(Unreachable):
        Run(home, MIGRATE).run("check_back_ends")


def test_a_catalog_that_nobody_opened_is_not_planned_for(installation: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"NotWritable, exit code 76.*opening writable"):
        tasks.make_plan.function("migrate")


def test_a_late_leader_change_is_found_after_the_migration(home: Home) -> None:
    run = Run(home, MIGRATE)
    run.run_all()
    with home.catalog.join() as task:
        put(task, "acknowledged")
    home.open(ROLLBACK)
    with pytest.raises(AirflowFailException, match="somebody went back since"):
        run.run("check_after")
