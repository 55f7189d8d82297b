"""Ingests that die between any two steps, or race: every row comes once, and nothing is left over."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.support.crash import real_first, run_command, start_command
from tests.support.homes import Home
from tidemark import fail_points
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged.flush import flush_all
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.staging import files as file_staging
from tidemark.iceberg.staging.branches import drop_staged, find_abandoned
from tidemark.ingest import quarantine
from tidemark.ingest import stage as staging
from tidemark.ingest.partitions.state import Partitions
from tidemark.ingest.parts import steps
from tidemark.interval import Unit
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

LATER_MS = 10**15
BAD_LINE = b'{"id":"x"}'
# Of a run with bad rows: the columns of the quarantine are there, and two batches are staged and published.
POINTS = (
    *steps.FAIL_POINTS,
    *(f"{point}{which}" for point in file_staging.FAIL_POINTS for which in ("", ":2")),
    *(f"{point}{which}" for point in shard_commit.FAIL_POINTS for which in ("", ":2")),
)


@pytest.fixture
def declared(ingesting: Home) -> Home:
    """Both tokens are taken, and rows and bad rows wait."""
    ingesting.declare_reader()
    fill(ingesting, 2)
    ingesting.ingest()
    fill(ingesting, 2)
    return ingesting


def fill(ingesting: Home, sequencers: int) -> None:
    for sequencer_id in range(sequencers):
        ingesting.send_rows(sequencer_id, 2)
    ingesting.send(0, BAD_LINE)


@pytest.mark.parametrize(("point", "run"), real_first([*steps.FAIL_POINTS]))
def test_killed_ingest_is_done_once(declared: Home, point: str, run: Callable[..., int]) -> None:
    died = run(declared.settings, "buffer", "ingest", point=point)
    assert died == FAIL_POINT_EXIT, f"{point} was never reached"
    assert declared.ids() in ([0, 1, 2, 3], list(range(8))), "all of a run, or nothing"
    fill(declared, 2)
    declared.ingest()
    declared.ingest()
    assert declared.ids() == list(range(12))
    assert [offset for _, offset, _, _ in declared.bad()] == [2, 5, 8]
    assert declared.ledgers() == {"0": "0:9", "1": "0:6"}
    assert declared.branches() == set()


class Died(BaseException):
    """Stands for the end of the process where a new one for every step would take minutes."""


def ingest_and_die(ingesting: Home, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def die(_code: int) -> NoReturn:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(fail_points.os, "_exit", die)
        patched.setattr(fail_points, "_reached", Counter())
        patched.setenv("TIDEMARK_FAIL_POINT", point)
        with pytest.raises(Died):
            ingesting.ingest_all()


@pytest.mark.parametrize("sequencers", [1, 4, 16])
def test_every_row_of_many_partitions_comes_once(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sequencers: int
) -> None:
    ingesting = Home(home, tmp_path, sequencers=sequencers, now_ms=1_000_000)
    ingesting.declare_reader()
    fill(ingesting, sequencers)
    ingesting.ingest_all()
    for place, point in enumerate(POINTS, start=2):
        fill(ingesting, sequencers)
        ingest_and_die(ingesting, monkeypatch, point)
        ingesting.ingest_all()
        assert ingesting.ids() == list(range(2 * sequencers * place)), point
        assert len(ingesting.bad()) == place, point
        assert ingesting.branches() == set()
    assert sorted(ingesting.ledgers()) == sorted(map(str, range(sequencers)))


@pytest.mark.parametrize("point", [*steps.FAIL_POINTS, *shard_commit.FAIL_POINTS])
def test_a_killed_ingest_leaves_rows_and_the_state_of_partitions_together(
    ingesting: Home, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    ingesting.declare_reader(schema="id bigint, at date", event_time="at", lifecycle={"max_ahead": "30d"})

    def fill_day(day: int) -> None:
        for sequencer_id in range(2):
            ingesting.send(sequencer_id, f'{{"id":{ingesting.sent},"at":"1970-01-{day:02}"}}\n{{"id":0}}'.encode())
            ingesting.sent += 1

    def counted() -> int:
        found = Partitions.parse(ingesting.shard().load().table.properties, "at", Unit.DAY)
        return sum(partition.rows for partition in found.state.partitions.values())

    fill_day(1)
    ingesting.ingest_all()
    fill_day(2)
    ingest_and_die(ingesting, monkeypatch, point)
    assert counted() == len(ingesting.ids())
    report = ingesting.ingest()
    assert (counted(), len(ingesting.ids()), len(ingesting.bad())) == (4, 4, 4)
    ingesting.clock.step(3 * 86_400_000)
    closed = ingesting.ingest().details["closed"]
    assert [each["partition"] for each in closed] == ["1970-01-01", "1970-01-02"], report.details


@pytest.mark.parametrize("point", [*staging.FAIL_POINTS, *(f"{each}:2" for each in file_staging.FAIL_POINTS)])
def test_killed_staging_is_done_once(declared: Home, point: str) -> None:
    declared.switch(Mode.READ_ONLY)
    died = run_command(declared.settings, "buffer", "ingest", point=point)
    assert died == FAIL_POINT_EXIT, f"{point} was never reached"
    fill(declared, 2)
    declared.ingest()
    assert declared.ingest().outcome is Outcome.UNCHANGED
    assert (declared.ids(), len(declared.bad())) == (list(range(4)), 1)
    declared.switch(Mode.READ_WRITE)
    flush_all(declared.shards, deployment_of(declared.settings), [], clock=declared.clock)
    assert (declared.ids(), len(declared.bad())) == (list(range(12)), 3)
    assert declared.ledgers() == {"0": "0:9", "1": "0:6"}
    for name in declared.shards.names():  # as maintenance does
        shard = declared.shard(name)
        drop_staged(shard, find_abandoned(shard.load(), now_ms=LATER_MS, max_age_ms=0))
    assert declared.branches() == set()


@pytest.mark.parametrize(("point", "run"), real_first([*quarantine.FAIL_POINTS, *shard_commit.FAIL_POINTS]))
def test_killed_retry_is_done_once(declared: Home, point: str, run: Callable[..., int]) -> None:
    declared.declare_reader(source={"table": "t"})
    declared.send(1, b'{"id":100}')
    declared.ingest()
    arguments = ("buffer", "quarantine", "retry", "events", "--partition", "1", "--table", "t")
    before = declared.ids()
    assert run(declared.settings, *arguments, point=point) == FAIL_POINT_EXIT
    for _ in range(2):
        assert run_command(declared.settings, *arguments) == ExitCode.OK
    assert len(declared.ids()) == len(before) + 3
    assert declared.ids()[-1] == 100


def test_two_runs_at_once_stage_once(declared: Home) -> None:
    declared.switch(Mode.READ_ONLY)
    both = [start_command(declared.settings, "buffer", "ingest") for _ in range(2)]
    assert [process.exit_code() for process in both] == [ExitCode.OK, ExitCode.OK]
    declared.ingest()
    declared.switch(Mode.READ_WRITE)
    flush_all(declared.shards, deployment_of(declared.settings), [], clock=declared.clock)
    assert declared.ids() == list(range(8))
    assert [offset for _, offset, _, _ in declared.bad()] == [2, 5]
    fill(declared, 2)
    declared.ingest()
    assert declared.branches() == set()


def test_two_runs_at_once_ingest_once(declared: Home) -> None:
    both = [start_command(declared.settings, "buffer", "ingest") for _ in range(2)]
    assert [process.exit_code() for process in both] == [ExitCode.OK, ExitCode.OK]
    assert declared.ids() == list(range(8))
    assert [offset for _, offset, _, _ in declared.bad()] == [2, 5]
    assert declared.ingest().inserted == 0
    fill(declared, 2)
    declared.ingest()
    assert declared.branches() == set()
