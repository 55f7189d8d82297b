"""The one table of all objects: from the catalog, the tables and what was recorded."""

from __future__ import annotations

import pytest

from tests.support.homes import Home
from tests.support.recorded import DOWN, NOW_MS, OK, record
from tidemark.collections.deployment import CatalogObject
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


def test_a_dropped_object_is_shown_to_who_names_it(seen: Home) -> None:
    known = seen.registry.objects()["planes"]
    other = CatalogObject(known.kind, known.id + 1)
    record_drops(seen.deployment, {"gone": other}, who="ada", clock=seen.clock)
    assert [each.name for each in read_status_table(seen.deployment)] == ["planes"]
    (gone,) = read_status_table(seen.deployment, ["gone"])
    assert (gone.status, gone.since_ms, gone.rows) == ("dropped", NOW_MS, None)
    with pytest.raises(UnknownCollection, match="plane"):
        read_status_table(seen.deployment, ["plane"])
