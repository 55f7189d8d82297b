"""A clock that was ahead once: what is known of partitions is given up, and counted anew from the rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.ingest.event_rows import at, declare, partitions_by, send
from tests.ingest.persist.test_persist import old, persist, stored
from tests.ingest.persist.test_when_persisted import all_ids
from tidemark.cli.app import app
from tidemark.collections.deployment import Mode
from tidemark.errors import ReadOnly
from tidemark.exit_codes import ExitCode
from tidemark.ingest.partitions.recount import Counted, look, recount
from tidemark.ingest.partitions.state import PROPERTY
from tidemark.ingest.partitions.status import read_partitions

if TYPE_CHECKING:
    from tests.support.homes import Home

pytestmark = pytest.mark.slow

FIVE, SIX = "2013-01-03T05", "2013-01-03T06"


def give_up(home: Home) -> Counted:
    return recount(home.shard(), home.registry.get("events"), deployment=home.deployment, clock=home.clock)


def states(home: Home) -> dict[str, str]:
    shown = read_partitions(home.settings, home.registry.get("events"), now_ms=home.clock.now_ms())
    assert "watermark_ahead" not in shown
    return {each["partition"]: each["state"] for each in shown["partitions"]}


def test_after_a_clock_was_ahead_the_watermark_comes_back(hourly: Home) -> None:
    """Hour 5 is persisted and closed by right, hour 6 is open and closed by the wrong clock."""
    send(hourly, 0, 10)
    hourly.ingest()
    at(hourly, 66)
    persist(hourly)
    assert [each["partition"] for each in hourly.ingest().details["closed"]] == [FIVE]
    at(hourly, 66 + 600)
    send(hourly, 0, 61)
    hourly.ingest()
    at(hourly, 72 + 600)
    assert [each["partition"] for each in hourly.ingest().details["closed"]] == [SIX]
    at(hourly, 67)
    send(hourly, 0, 62)
    assert hourly.ingest().details["late_rows"] == 1, "of an hour that has just begun"
    assert persist(hourly, now=False).strategy == "unchanged"
    at(hourly, 90)
    assert persist(hourly).strategy == "unchanged", "rows of the future are never old enough"
    found = give_up(hourly)
    assert (found.partitions, found.watermark) == (2, "2013-01-03 16:07:00")
    hourly.ingest()
    at(hourly, 96)
    report = hourly.ingest()
    assert [each["partition"] for each in report.details["closed"]] == [FIVE], "once more"
    assert report.details["watermark"] == "2013-01-03 06:31:00"
    assert states(hourly) == {FIVE: "closed", SIX: "open until 2013-01-03 07:00:00"}
    assert stored(hourly)[0] == old(10), "what is persisted stays so"
    at(hourly, 126)
    report = hourly.ingest()
    assert report.details["closed"] == [{"partition": SIX, "rows": 2, "late_rows": 0}]
    assert persist(hourly).strategy == "persisted"
    assert (stored(hourly), hourly.ids()) == ([old(10), old(61, 62)], [0, 1, 2])


def test_rows_that_wait_stay_so_until_they_are_persisted(hourly: Home) -> None:
    declare(hourly, visible="when-persisted")
    at(hourly, 600)
    send(hourly, 0, 10)
    hourly.ingest()
    at(hourly, 66)
    give_up(hourly)
    assert "closed" not in hourly.ingest().details
    assert (hourly.ids(), all_ids(hourly)) == ([], [0])
    at(hourly, 72)
    assert persist(hourly).inserted == 1
    assert [each["partition"] for each in hourly.ingest().details["closed"]] == [FIVE]


def test_a_pass_at_work_gives_way(hourly: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.ingest.persist import persist as persisting

    send(hourly, 0, 10)
    hourly.ingest()
    at(hourly, 6)
    write = persisting._write

    def give_up_first(run: object) -> None:
        monkeypatch.undo()
        assert give_up(hourly).under_way == 1
        write(run)  # type: ignore[arg-type]

    monkeypatch.setattr(persisting, "_write", give_up_first)
    assert persist(hourly).strategy == "discarded"
    hourly.ingest()
    at(hourly, 12)
    assert persist(hourly).strategy == "persisted"
    assert (stored(hourly), hourly.ids()) == ([old(10)], [0])


def test_a_damaged_state_is_given_up_too(hourly: Home) -> None:
    send(hourly, 0, 10)
    hourly.ingest()
    table = hourly.shards.iceberg.load_table(("collections", "events"))
    with table.transaction() as transaction:
        transaction.set_properties({PROPERTY: "?"})
    assert "is damaged" in look(hourly.shard(), hourly.registry.get("events")).damage
    give_up(hourly)
    hourly.ingest()
    assert partitions_by(hourly).state.partitions[FIVE].rows == 1


def test_repair_says_what_is_known_and_forgets_it_on_request(
    hourly: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEMARK_HOME", str(hourly.settings.home))
    send(hourly, 0, 10)
    hourly.ingest()

    def ask(*arguments: str) -> str:
        assert app(["repair", "events", "--partitions", *arguments]) == ExitCode.OK
        return capsys.readouterr().out

    told = {"watermark": "2013-01-03 04:55:00", "partitions": 1, "closed": 0, "under_way": 0, "damage": ""}
    assert "tidemark repair events --partitions --yes" in ask()
    assert json.loads(ask("--json")) == {"collection": "events", "done": False, **told}
    assert partitions_by(hourly).state.partitions
    assert json.loads(ask("--yes", "--json")) == {"collection": "events", "done": True, **told}
    assert partitions_by(hourly).state.partitions == {}
    hourly.switch(Mode.READ_ONLY)
    with pytest.raises(ReadOnly):
        give_up(hourly)
