"""Dry runs of an open: on savepoints of both back ends, which leave no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.clock import SteppedClock
from tests.support.homes import MIGRATE, ROLLBACK, Home, put
from tidemark.catalog.back_end import OpenMode
from tidemark.errors import NotWritable

if TYPE_CHECKING:
    from tidemark.catalog.opening.opening import Direction

pytestmark = pytest.mark.slow  # stores that are really written, again and again


@pytest.mark.parametrize(("start", "direction"), [(ROLLBACK, MIGRATE), (MIGRATE, ROLLBACK), (MIGRATE, MIGRATE)])
def test_a_dry_run_leaves_every_byte_where_it_is_and_says_what_would_change(
    any_home: Home, start: Direction, direction: Direction
) -> None:
    any_home.open(MIGRATE)
    any_home.open(start, add=["new"])
    task = any_home.catalog.join()
    before = any_home.dumps()
    report = any_home.catalog.dry_run(direction)
    assert any_home.dumps() == before
    put(task, "not fenced")
    task.close()
    assert report.truth == ("persist" if direction is MIGRATE else "stash")
    moves = start is not direction
    assert (report.truth_before == report.truth, report.counts["setting"]) == (not moves, 1)
    assert ({"change": "insert", "kind": "setting", "key": '{"name":"new"}', "value": '{"value":"v","version":1}'}
            in report.differing) is moves  # fmt: skip
    assert bool(report.inserted) is moves
    any_home.open(direction)
    assert any_home.setting_names() == {"new", "not fenced"}


def test_a_dry_run_where_the_persist_catalog_was_never_initialised(any_home: Home) -> None:
    any_home.open_stash(add=["row"])
    before = any_home.dumps()
    assert any_home.catalog.dry_run(ROLLBACK).counts["setting"] == 1
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        any_home.catalog.dry_run(MIGRATE)
    assert any_home.dumps() == before
    any_home.open(ROLLBACK)
    assert any_home.setting_names() == {"row"}


def test_a_dry_run_where_the_stash_was_never_initialised(any_home: Home) -> None:
    with any_home.ends.persist.open(OpenMode.WRITABLE, generation=1, clock=SteppedClock()) as handle:
        put(handle, "row")
    before = any_home.dumps()
    assert any_home.catalog.dry_run(MIGRATE).counts["setting"] == 1
    with pytest.raises(NotWritable, match="can be recovered by opening writable"):
        any_home.catalog.dry_run(ROLLBACK)
    assert any_home.dumps() == before
