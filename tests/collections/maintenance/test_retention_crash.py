"""Processes that die at every point of a retention, and of staging corrections: a rerun does the rest, once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.collections.maintenance.test_maintain import declare
from tests.support.crash import die_at, real_first, run_command
from tests.support.events import CLOCK, switch
from tests.support.leases import forget_leases
from tests.support.leftovers import leftovers
from tests.support.rows import SCHEMA, contents, correction
from tests.support.statuses import Status, Statuses
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.deployment import Mode
from tidemark.collections.staged import batches
from tidemark.collections.staged.batches import list_batches
from tidemark.collections.staged.flush import flush_all
from tidemark.exit_codes import ExitCode
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit import publisher as shard_commit
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.maintenance import row_removal
from tidemark.iceberg.maintenance.orphans import remove_orphans
from tidemark.iceberg.shard.ledger import Ledger, Range
from tidemark.iceberg.shards import Shards
from tidemark.iceberg.staging import correction_branches as corrections_branch
from tidemark.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings

pytestmark = pytest.mark.crash

LATER_MS = 10**15


@pytest.mark.parametrize(("point", "run"), real_first([*row_removal.FAIL_POINTS, *shard_commit.FAIL_POINTS]))
def test_killed_retention_is_all_or_nothing_and_done_by_the_next(
    home: Settings, point: str, run: Callable[..., int]
) -> None:
    statuses = Statuses(home)
    rows = [Status(1, None, name, number) for number, name in enumerate("abcd")]
    statuses.append(*rows[:2])  # goes whole
    statuses.append(*rows[2:])  # goes in part
    declare(home, "statuses", retention={"last_n": 1, "key": ["id"], "order_by": ["at"]})
    assert run(home, "retain", "statuses", point=point) == FAIL_POINT_EXIT, f"{point} was never reached"
    published = point.endswith(("after-commit", "after-publish"))
    assert statuses.rows() == Counter(rows[3:] if published else rows)
    assert run_command(home, "retain", "statuses") == ExitCode.OK
    assert statuses.rows() == Counter(rows[3:])
    head = statuses.shard.load()
    assert (head.row_count, head.state.ledgers) == (1, {"p": Ledger((Range(1, 3),))})
    forget_leases(home)
    remove_orphans(statuses.shard, older_than_ms=LATER_MS)
    assert statuses.rows() == Counter(rows[3:])
    assert leftovers(home, statuses.shard) == set()


@pytest.fixture
def planes(home: Settings) -> Shard:
    switch(home, Mode.READ_WRITE)
    shard = Shards.connect(home).create("planes", schema=SCHEMA, key=["id"])
    batch = correction(shard.load(), insert=[(1, "a"), (2, "b")], time=1)
    Writer.raise_token(shard, 1).publish(batch, lower=0, new_upper=5)
    switch(home, Mode.READ_ONLY)
    return shard


def stage(settings: Settings) -> None:
    shard = Shards.connect(settings).open("planes")
    batch = correction(shard.load(), insert=[(3, "c")], retract=[(1, "a")], time=7)
    branch = batches.corrections_branch(1, None)
    corrections_branch.stage_whole(shard, batch, branch=branch, lower=5, time=7, digest=b"after", digest_note="m")


@pytest.mark.parametrize("point", corrections_branch.FAIL_POINTS)
def test_killed_staging_of_corrections_leaves_one_whole_staging(planes: Shard, home: Settings, point: str) -> None:
    assert die_at(point, stage, home) == FAIL_POINT_EXIT, f"{point} was never reached"
    [staged] = list_batches(Shards.connect(home), []) or [None]
    assert (staged is not None) is point.endswith("after-commit")
    assert die_at(point, stage, home) == FAIL_POINT_EXIT, "what is staged already is replaced"
    assert die_at("", stage, home) == 0
    assert [each.rows for each in list_batches(Shards.connect(home), [])] == [2]
    assert contents(planes.load()) == Counter([(1, "a"), (2, "b")])
    switch(home, Mode.READ_WRITE)
    assert (
        flush_all(Shards.connect(home), deployment_of(home), [], clock=CLOCK).collections["planes"].outcome
        is Outcome.FLUSHED
    )
    assert contents(planes.load()) == Counter([(2, "b"), (3, "c")])
    remove_orphans(planes, older_than_ms=LATER_MS)
    assert leftovers(home, planes) == set()
