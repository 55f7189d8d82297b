"""Ingests of changes that die between any two steps, or race: all of a commit or nothing, and nothing is left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import real_first, run_command, start_command
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.reading.invariant import check_invariant
from tidemark.iceberg.staging import files as file_staging
from tidemark.ingest.latest import commit, ingest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home

pytestmark = pytest.mark.crash

# Of a run with bad rows: one batch is staged, and two are published.
POINTS = (
    *ingest.FAIL_POINTS,
    *commit.FAIL_POINTS,
    *file_staging.FAIL_POINTS,
    *(f"{point}{which}" for point in shard_commit.FAIL_POINTS for which in ("", ":2")),
)
BEFORE, AFTER = [(0, "a"), (1, "a"), (2, "a")], [(0, "b"), (2, "a"), (3, "b")]


@pytest.fixture
def changing(ingesting: Home) -> Home:
    """Rows are there, and changes and bad rows wait."""
    ingesting.declare_latest(delete_when={"op": "d"})
    send(ingesting, *({"id": id_, "name": "a"} for id_ in range(3)), {"name": "bad"})
    ingesting.ingest()
    send(ingesting, {"id": 0, "name": "b"}, {"id": 1, "op": "d"}, {"id": 3, "name": "b"}, {"name": "bad"})
    return ingesting


def send(home: Home, *rows: dict[str, object]) -> None:
    for row in rows:
        home.send(0, json.dumps(row).encode())


@pytest.mark.parametrize(("point", "run"), real_first(POINTS))
def test_killed_ingest_is_done_once(changing: Home, point: str, run: Callable[..., int]) -> None:
    died = run(changing.settings, "buffer", "ingest", point=point)
    assert died == FAIL_POINT_EXIT, f"{point} was never reached"
    is_published = changing.ledgers() == {"0": "0:8"}
    assert changing.tuples("events") == (AFTER if is_published else BEFORE), "all of a commit, or nothing"
    assert check_invariant(changing.shard()).holds
    send(changing, {"id": 9, "name": "c"})
    changing.ingest()
    assert changing.tuples("events") == [*AFTER, (9, "c")]
    assert [row[1] for row in changing.bad()] == [3, 7]
    assert changing.ledgers() == {"0": "0:9"}
    assert changing.branches() == set()
    assert check_invariant(changing.shard()).holds


def test_two_at_once_ingest_each_change_once(changing: Home) -> None:
    runs = [start_command(changing.settings, "buffer", "ingest") for _ in range(3)]
    assert {run.exit_code() for run in runs} == {ExitCode.OK}
    assert run_command(changing.settings, "buffer", "ingest") == ExitCode.OK
    assert changing.tuples("events") == AFTER
    assert [row[1] for row in changing.bad()] == [3, 7]
    assert changing.branches() == set()
    assert check_invariant(changing.shard()).holds
