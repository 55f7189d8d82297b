"""The one table of all objects: from the catalog, the tables and what was recorded."""

from __future__ import annotations

import pytest

from tests.support.homes import Home
from tests.support.recorded import DAY_MS, DOWN, GUARDED, NOW_MS, OK, record, statuses
from tidemark.collections.declarations.append_only import Retention
from tidemark.collections.deployment import CatalogObject
from tidemark.collections.maintenance.retain import retain
from tidemark.collections.system.declarations import STATUS
from tidemark.collections.system.recorder import record_drops
from tidemark.collections.system.status_table import read_status_table
from tidemark.errors import UnknownCollection, Unreachable
from tidemark.report import CollectionReport, ErrorReport, Outcome


def test_what_never_ran_is_there(seen: Home) -> None:
    (planes,) = read_status_table(seen.deployment)
    assert (planes.name, planes.kind, planes.status, planes.since_ms) == ("planes", "collection", None, None)
    assert (planes.rows, planes.upper, planes.seconds, planes.last_run_ms) == (0, 0, None, None)


def test_since_is_the_first_time_of_the_status_whatever_its_reasons(seen: Home) -> None:
    seen.apply(seen.declaration("engines"))
    record(seen, OK)
    record(seen, DOWN)
    other = ErrorReport.of(Unreachable("another reason", hint="wait"))
    record(seen, CollectionReport(outcome=Outcome.FAILED, error=other, seconds=2.0))
    record(seen, OK, operation="maintain")
    engines, planes = read_status_table(seen.deployment)
    assert engines.status is None
    assert (planes.status, planes.since_ms, planes.reason) == ("stalled", NOW_MS + 2_000, "Unreachable: another reason")
    assert (planes.hint, planes.seconds, planes.last_run_ms) == ("wait", 2.0, NOW_MS + 3_000)
    assert [each.name for each in read_status_table(seen.deployment, ["planes"])] == ["planes"]


@pytest.mark.slow  # stores that are really written, again and again
def test_a_clock_that_was_ahead_hides_no_later_status(seen: Home) -> None:
    def is_shown_as(status: str) -> bool:
        return read_status_table(seen.deployment, ["planes"])[0].status == status

    record(seen, OK)
    seen.clock.step(30 * DAY_MS)
    record(seen, DOWN)
    seen.clock.step(-30 * DAY_MS)
    record(seen, OK)
    assert is_shown_as("running")
    assert read_status_table(seen.deployment)[0].last_run_ms == seen.clock.now_ms()
    record(seen, OK)
    record(seen, DOWN)
    assert is_shown_as("stalled"), "as it was by the clock that was ahead, and yet news"
    known = seen.registry.objects()
    seen.deployment.objects.drop(seen.deployment.objects.look(["planes"]))
    record_drops(seen.deployment, known, who="ada", clock=seen.clock)
    assert is_shown_as("dropped")
    seen.apply(seen.declaration("planes"))
    record(seen, OK)
    assert is_shown_as("running")
    expected = ["running", "stalled", "running", "stalled", "dropped", "running"]
    assert [status for status, _ in statuses(seen)] == expected, "in the order of their times"


def test_retention_keeps_what_was_recorded_last_whatever_the_clock_said(seen: Home) -> None:
    seen.clock.step(30 * DAY_MS)
    record(seen, GUARDED)
    seen.clock.step(-30 * DAY_MS)
    for result in (OK, DOWN, OK):
        record(seen, result)
    kept = Retention.model_validate({"last_n": 2, "key": ["object"], "order_by": ["occurred_at"]})
    retain(seen.shard(STATUS), kept, deployment=seen.deployment, now_ms=seen.clock.now_ms())
    assert [status for status, _ in statuses(seen)] == ["stalled", "running"]


def test_a_dropped_object_is_shown_to_who_names_it(seen: Home) -> None:
    known = seen.registry.objects()["planes"]
    other = CatalogObject(known.kind, known.id + 1)
    record_drops(seen.deployment, {"gone": other}, who="ada", clock=seen.clock)
    assert [each.name for each in read_status_table(seen.deployment)] == ["planes"]
    (gone,) = read_status_table(seen.deployment, ["gone"])
    assert (gone.status, gone.since_ms, gone.rows) == ("dropped", NOW_MS, None)
    with pytest.raises(UnknownCollection, match="plane"):
        read_status_table(seen.deployment, ["plane"])
