"""An upgrade without a pause: of two Airflows on one set of stores the old one leads until the new one takes over.

Every step of the promotion is killed. At the end everything equals its source: no row twice, none lost.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.conftest import settings_in
from tests.live.conftest import (
    APPEND,
    FLUSH,
    INGEST,
    LIFECYCLE,
    MAINTAIN,
    MIGRATED,
    PROMOTE,
    RECONCILE,
    RUN_SECONDS,
    SINKS,
    WORKERS,
    load,
    make_airflow,
    working_on,
)
from tests.live.task_logs import said
from tests.sinks.foreign_readers import arrow_rows, files_of, read_manifest
from tests.support.crash import run_command
from tests.support.declared import EVENTS, HEAD, PLANES
from tests.support.durable import everything
from tests.support.homes import Home
from tidemark.clock import SystemClock
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.collections.staged.batches import list_batches
from tidemark.deployment.readiness import read_readiness
from tidemark.errors import NotCaughtUp
from tidemark.iceberg.reading.invariant import check_invariant
from tools.local_airflow.client import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.postgres_server import PostgresServer
    from tests.support.warm_driver.start import WarmSpark
    from tools.local_airflow.client import AirflowClient
    from tools.local_airflow.standalone import Standalone

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.crash]

DAYS = [date(2026, 1, day) for day in (1, 2)]
MIDNIGHT, HOUR = datetime(2013, 1, 1, tzinfo=UTC), timedelta(hours=1)
ORDERS_AND_HOURS = """
  orders: {kind: append-only, schema: "id bigint, name string", source: {buffer: "BUFFER"}}
  hours:
    kind: append-only
    schema: "at timestamp, value bigint"
    source: {format: parquet, path: hours, where: "at >= '{start}' AND at < '{end}'"}
    intervals: {start: 2013-01-01, end: 2013-01-01T03:00, every: hour}
sinks:
  copies: {from: orders, to: {path: out}, mode: changes}
"""
DECLARATIONS = HEAD + EVENTS + PLANES + PLANES.replace("planes", "seats") + ORDERS_AND_HOURS
STANDS_BY = (RECONCILE, MAINTAIN, APPEND, INGEST, LIFECYCLE, SINKS, WORKERS)
# Where the tries of each task of the promotion die, one after the other; see `policy`.
DEATHS = {
    "check": ["after"],
    "wait_until_caught_up": ["after"],
    "plan": ["after"],
    "is_to_be_done": ["after"],
    "promote": ["mode.after-open", "after"],
    "list_staged": ["before"],
    "flush_with_spark": ["flush-corrections.after-publish", "after"],
    "verify_flush": ["after"],
    "check_after": ["after"],
}
# An answer that comes while the process which asked is still ending fails that try, and the next one asks again.
ANSWER_AFTER_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Upgrade:
    """The Airflow of deployment 1 and that of deployment 2, and the home of both as each of the two sees it."""

    old: AirflowClient
    new: AirflowClient
    leader: Home
    newer: Home
    promotion: str  # the run, which waits from the beginning


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """What deployment 1 has declared; nothing of it is stored yet."""
    folder = tmp_path_factory.mktemp("upgrade")
    home = Home(settings_in(folder / "home"), folder)
    home.clock = SystemClock()  # type: ignore[assignment]  # that of the Airflows
    (folder / "hours").mkdir()
    times = pa.array([MIDNIGHT + number * HOUR for number in range(10)], pa.timestamp("us", "UTC"))
    hours = pa.table({"at": times, "value": pa.array(range(10), pa.int64())})
    parquet.write_table(hours, folder / "hours" / "2013.parquet")
    write_sources(home, 100)
    home.send_rows(0, 3)
    home.declare(DECLARATIONS.replace("BUFFER", home.buffer_folder.as_uri()))
    return home


@pytest.fixture(scope="module")
def newest(home: Home, migrated: PostgresServer, dags: Path, warm: WarmSpark) -> Standalone:
    """The Airflow of deployment 2, which is not started yet."""
    deaths = json.dumps({f"{PROMOTE}.{task}": points for task, points in DEATHS.items()})
    database = migrated.create_database("upgrade_airflow", template=MIGRATED)
    more = {"TIDEMARK_GENERATION": "2", "TESTS_DEATHS": deaths, "AIRFLOW__CORE__MAX_TASK_RETRY_DELAY": "1"}
    return make_airflow(home.folder / "airflow", database, home.settings, warm, dags, **more)


@pytest.fixture(scope="module")
def upgrade(client: AirflowClient, home: Home, newest: Standalone) -> Iterator[Upgrade]:
    """Deployment 1, in the Airflow of all live tests, has stored everything once; deployment 2 is there."""
    with working_on(client, home.settings):
        for dag_id in (RECONCILE, INGEST, APPEND):
            client.unpause(dag_id)
        begun = [start(client, RECONCILE), start(client, INGEST), start_hours(client, 0, 3)]
        with newest, newest.client() as new:
            load(new)
            new.unpause(PROMOTE)
            promotion = new.trigger(PROMOTE)
            finish(client, begun)
            yield Upgrade(old=client, new=new, leader=home, newer=home.of_generation(2), promotion=promotion)


def write_sources(home: Home, seats: int, *names: str) -> None:
    for name in names or ("events", "planes", "seats"):
        rows = source_of(name, seats)
        home.write_lines(name, ",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows))


def source_of(name: str, seats: int) -> list[dict[str, Any]]:
    if name == "events":
        return [{"day": day, "id": id_, "value": f"v{seats}"} for day in DAYS for id_ in (1, 2)]
    return [{"tailnum": f"N{number}", "seats": seats + number} for number in range(5)]


def start(client: AirflowClient, dag_id: str, *, logical_date: datetime | None = None, **conf: Any) -> tuple[str, str]:
    return dag_id, client.trigger(dag_id, conf=conf, logical_date=logical_date)


def after(day: date) -> datetime:
    """Return the logical date of the run that is about ``day``."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


def start_hours(client: AirflowClient, first: int, end: int) -> tuple[str, str]:
    times = {name: (MIDNIGHT + hour * HOUR).isoformat() for name, hour in (("start", first), ("end", end))}
    return start(client, APPEND, collections=["hours"], **times)


def end_of(client: AirflowClient, dag_id: str, run_id: str) -> str:
    return client.wait(dag_id, run_id, timeout_s=RUN_SECONDS)


def finish(client: AirflowClient, runs: list[tuple[str, str]]) -> None:
    assert {run: end_of(client, *run) for run in runs} == dict.fromkeys(runs, "success")


def rest(client: AirflowClient, *dag_ids: str) -> None:
    """Wait until no run of these DAGs is under way, whoever started the run."""
    client.wait_until(
        lambda: all(run["state"] in FINISHED for dag_id in dag_ids for run in client.runs(dag_id)),
        what=f"the end of all runs of {dag_ids}",
        timeout_s=RUN_SECONDS,
    )


def carry(client: AirflowClient) -> None:
    """Run the sinks; afterwards no asset starts them."""
    client.unpause(SINKS)
    run = start(client, SINKS)
    finish(client, [run])
    rest(client, SINKS)
    client.unpause(SINKS, paused=True)


def carried(home: Home) -> list[int]:
    out = home.folder / "out"
    return sorted(row["id"] for row in arrow_rows(files_of(out, read_manifest(out))))


def values(home: Home) -> list[int]:
    return sorted(row["value"] for row in home.user_rows("hours"))


def states(client: AirflowClient, run_id: str) -> dict[str, str]:
    return {label: str(instance["state"]) for label, instance in client.tasks(PROMOTE, run_id).items()}


def test_runs_of_the_new_deployment_change_nothing_that_the_old_one_owns(upgrade: Upgrade, newest: Standalone) -> None:
    old, new, home = upgrade.old, upgrade.new, upgrade.leader
    new.wait_until(
        lambda: states(new, upgrade.promotion)["wait_until_caught_up"] == "deferred",
        what="the promotion to wait",
        timeout_s=RUN_SECONDS,
    )
    waits = said(newest.home, PROMOTE, upgrade.promotion, "wait_until_caught_up")
    assert "planes: no run of this deployment has looked at it yet" in waits
    rest(old, RECONCILE, APPEND, INGEST)
    carry(old)
    write_sources(home, 200)
    home.send_rows(1, 4)
    before = everything(home)
    for dag_id in STANDS_BY:
        new.unpause(dag_id)
    runs = [start(new, RECONCILE, logical_date=after(day), collections=["events"]) for day in DAYS]
    runs += [start(new, dag_id) for dag_id in (INGEST, SINKS, LIFECYCLE, WORKERS)] + [start_hours(new, 2, 5)]
    finish(new, runs)
    rest(new, *STANDS_BY)
    assert {run["state"] for dag_id in STANDS_BY for run in new.runs(dag_id)} == {"success"}, "scheduled ones too"
    assert everything(home) == before
    sinks = dict(runs)[SINKS]
    assert new.tasks(SINKS, sinks)["run_sink[copies]"]["state"] == "skipped"
    assert (home.user_rows("planes"), carried(home)) == (source_of("planes", 100), [0, 1, 2])

    staged = list_batches(upgrade.newer.shards, ())
    assert {batch.generation for batch in staged} == {2}
    assert sorted(batch.collection for batch in staged) == ["events", "events", "hours", "orders", "planes", "seats"]


def test_the_old_deployment_goes_on_writing(upgrade: Upgrade) -> None:
    old, new, home = upgrade.old, upgrade.new, upgrade.leader
    maintain_all(None, home.deployment, ["planes"], clock=home.clock)  # which leaves the contents alone
    write_sources(home, 300, "seats")
    home.send_rows(0, 2)  # a run ingests them together with those that deployment 2 has staged
    runs = [start(old, RECONCILE, collections=["seats"]), start(old, INGEST), start_hours(old, 2, 5)]
    finish(old, runs)
    write_sources(home, 400, "seats")
    home.send_rows(1, 3)
    before = everything(home)
    runs = [start(new, INGEST), start_hours(new, 4, 6)]
    finish(new, runs)
    assert everything(home) == before
    assert home.user_rows("seats") == source_of("seats", 300)
    assert home.ids("orders") == [*range(9)]
    stale = {each.name: each.stale for each in read_readiness(upgrade.newer.deployment, clock=home.clock).objects}
    assert (stale["planes"], stale["seats"]) == (0, 1)


def test_a_promotion_that_is_killed_at_every_step_loses_nothing(upgrade: Upgrade) -> None:
    old, new, home, run_id = upgrade.old, upgrade.new, upgrade.leader, upgrade.promotion
    new.wait_until(
        lambda: states(new, run_id)["approve"] == "awaiting_input", what="the question", timeout_s=RUN_SECONDS
    )
    asked = time.monotonic()
    home.send_rows(0, 2)
    finish(old, [start(old, INGEST)])  # the old one leads until the answer
    assert home.ids("orders") == [*range(home.sent)]
    home.send_rows(1, 2)
    finish(new, [start(new, INGEST)])  # which has staged what the old one will never read
    time.sleep(max(0, asked + ANSWER_AFTER_SECONDS - time.monotonic()))
    new.answer(PROMOTE, run_id, "approve", "Approve")
    assert end_of(new, PROMOTE, run_id) == "success"

    tasks = new.tasks(PROMOTE, run_id)
    assert {task: tasks[task]["try_number"] for task in DEATHS} == {
        task: len(deaths) + 1 for task, deaths in DEATHS.items()
    }
    results = {label for label in tasks if label.startswith("show_result")}
    assert results == {f"show_result[{name}]" for name in ("events", "hours", "orders", "planes", "seats")}
    assert new.xcom(PROMOTE, run_id, "check_after")["state"] == "is-leader"
    for name, seats in (("events", 200), ("planes", 200), ("seats", 400)):
        assert upgrade.newer.user_rows(name) == sorted(source_of(name, seats), key=repr)
        assert check_invariant(home.shard(name)).holds
    assert home.ids("orders") == [*range(home.sent)]
    assert values(home) == [*range(6)]
    assert not home.branches()


def test_the_new_deployment_leads_and_the_old_one_is_fenced(upgrade: Upgrade, airflow: Standalone) -> None:
    old, new, home = upgrade.old, upgrade.new, upgrade.leader
    home.send_rows(1, 3)
    fenced = [start(old, RECONCILE), start(old, INGEST), start_hours(old, 6, 9)]
    new.unpause(FLUSH)
    again, *runs = [start(new, dag_id) for dag_id in (PROMOTE, FLUSH, INGEST)] + [start_hours(new, 6, 8)]
    finish(new, [again, *runs])
    assert home.ids("orders") == [*range(home.sent)]
    new.wait_until(
        lambda: carried(home) == home.ids("orders"), what="the rows in the sink's target", timeout_s=RUN_SECONDS
    )
    rest(new, SINKS)
    assert values(home) == [*range(8)]

    assert [end_of(old, *run) for run in fenced] == ["failed"] * len(fenced)
    for dag_id, run_id in fenced:
        assert "FencedByGeneration, exit code 77" in said(airflow.home, dag_id, run_id, "wait_until_led")

    found = states(new, again[1])
    assert {task for task, state in found.items() if state == "success"} == {
        "check",
        "wait_until_caught_up",
        "plan",
        "is_to_be_done",
    }
    assert {*found.values()} == {"success", "skipped"}


def test_the_way_back_is_a_larger_number(upgrade: Upgrade, newest: Standalone) -> None:
    new, home = upgrade.new, upgrade.leader
    back = home.of_generation(3)
    assert run_command(back.settings, "deployment", "promote", "--yes") == NotCaughtUp.exit_code
    assert run_command(back.settings, "deployment", "promote", "--yes", "--force", "--why", "the new one is wrong") == 0
    home.send_rows(0, 2)
    fenced = new.trigger(INGEST)
    assert run_command(back.settings, "buffer", "ingest") == 0
    assert home.ids("orders") == [*range(home.sent)]
    assert end_of(new, INGEST, fenced) == "failed"
    assert "FencedByGeneration, exit code 77" in said(newest.home, INGEST, fenced, "wait_until_led")
