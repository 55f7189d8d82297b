"""Bad rows wait in the quarantine until they are rows after all; then they are appended once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.collections.apply.execute import alter_columns
from tidemark.collections.apply.plan import Drop
from tidemark.collections.deployment import Mode
from tidemark.errors import ReadOnly, UnknownCollection, UsageError
from tidemark.ingest.quarantine import Chosen, list_quarantined, retry
from tidemark.report import CollectionReport, Outcome

if TYPE_CHECKING:
    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration


POINTS = b"application/vnd.influxdata.line-protocol"

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def retry_now(ingesting: Home, declaration: Declaration, **more: object) -> CollectionReport:
    deployment = deployment_of(ingesting.settings, clock=ingesting.clock)
    chosen = Chosen(**{name: more.pop(name) for name in ("partition", "offset") if name in more})  # type: ignore[arg-type]
    return retry(ingesting.shards, deployment, declaration, clock=ingesting.clock, chosen=chosen, **more)  # type: ignore[arg-type]


@pytest.fixture
def declared(ingesting: Home) -> Declaration:
    """Entry 0 lacks its table in one row, entry 1 has a name that is no text, twice, and entry 2 is no entry."""
    declaration = ingesting.declare_reader(source={"table": "t"})
    ingesting.send(0, b'{"id":1,"_table":"t"}\n{"id":2}')
    ingesting.send(0, b'{"id":3,"name":5,"_table":"t"}\n{"id":4,"name":[],"_table":"t"}', None)
    assert ingesting.ingest().inserted == 1
    return declaration


def waiting(ingesting: Home) -> list[tuple[int, int]]:
    return [(row.offset, row.place) for row in list_quarantined(ingesting.shards, "events")]


def test_what_waits_is_listed(ingesting: Home, declared: Declaration) -> None:
    assert waiting(ingesting) == [(0, 1), (1, 0), (1, 1), (2, -1)]
    (first, *_) = list_quarantined(ingesting.shards, "events", Chosen(partition=0, offset=0))
    assert (first.raw, first.reason, first.topic) == (b'{"id":2}', "table-missing", str(ingesting.buffer_folder))
    assert list_quarantined(ingesting.shards, "events", Chosen(partition=1)) == []
    with pytest.raises(UnknownCollection):
        list_quarantined(ingesting.shards, "event")


def test_rows_that_fit_by_now_are_appended_once(ingesting: Home, declared: Declaration) -> None:
    report = retry_now(ingesting, declared)
    assert (report.outcome, report.details["still_bad"]) == (Outcome.UNCHANGED, 4)
    report = retry_now(ingesting, declared, table="t")
    assert (report.outcome, report.inserted, report.details["still_bad"]) == (Outcome.APPENDED, 1, 3)
    assert ingesting.ids() == [1, 2]
    alter_columns(ingesting.shard(), [Drop("events", "name")])  # then nothing is wrong with a name any more
    assert retry_now(ingesting, declared, offset=2).outcome is Outcome.UNCHANGED
    assert retry_now(ingesting, declared).inserted == 2
    for _ in range(2):
        assert retry_now(ingesting, declared, table="t").outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), waiting(ingesting)) == ([1, 2, 3, 4], [(2, -1)])
    assert ingesting.ingest().outcome is Outcome.UNCHANGED, "the ledgers of retries are none of the log's"


def test_rows_that_fit_do_not_wait_for_other_rows_of_their_entry(ingesting: Home) -> None:
    declaration = ingesting.declare_reader(source={"table": "t"})
    ingesting.send(0, b'{"id":1}\n{"id":2,"name":5}\n{"id":3}', b'{"id":4}')
    ingesting.ingest()
    assert waiting(ingesting) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    report = retry_now(ingesting, declaration, table="t")
    assert (report.inserted, report.details["still_bad"]) == (3, 1)
    assert retry_now(ingesting, declaration, table="t").outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), waiting(ingesting)) == ([1, 3, 4], [(0, 1)])
    alter_columns(ingesting.shard(), [Drop("events", "name")])
    assert retry_now(ingesting, declaration, table="t").inserted == 1
    assert retry_now(ingesting, declaration, table="t").outcome is Outcome.UNCHANGED
    assert (ingesting.ids(), waiting(ingesting)) == ([1, 2, 3, 4], [])
    assert ingesting.ingest().outcome is Outcome.UNCHANGED


def test_point_without_a_time_has_the_time_of_its_producer_after_a_retry_too(ingesting: Home) -> None:
    declaration = ingesting.declare_reader(schema="id bigint, name string, time bigint", source={"table": "p"})
    written_ms = ingesting.clock.now_ms()
    ingesting.send(0, b"p id=1i\np id=2i,name=5", headers=(("content-type", POINTS),))
    assert ingesting.ingest().details["quarantined"] == 1
    ingesting.clock.step(3_600_000)
    alter_columns(ingesting.shard(), [Drop("events", "name")])
    assert retry_now(ingesting, declaration).inserted == 1
    rows = ingesting.shard().load().table.scan(selected_fields=("id", "time")).to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert {row["time"] for row in rows} == {written_ms * 1_000_000}


def test_rows_are_not_lost_to_a_table_that_is_mistyped(ingesting: Home, declared: Declaration) -> None:
    with pytest.raises(UsageError, match="takes the rows of the table 't', not of 'tt'"):
        retry_now(ingesting, declared, table="tt")
    assert len(waiting(ingesting)) == 4


def test_nothing_is_retried_in_a_read_only_deployment(ingesting: Home, declared: Declaration) -> None:
    ingesting.switch(Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        retry_now(ingesting, declared, table="t")
