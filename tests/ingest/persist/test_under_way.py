"""Two passes at once: what a living one persists is left to it, and what a dead one left is anybody's."""

from __future__ import annotations

import signal
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from tests.ingest.event_rows import at, declare, partitions_by, send
from tests.ingest.persist.test_persist import old, persist, stored, young
from tests.support.dying import Crash, dying_at
from tests.support.leases import leased, leases_of, wait_for
from tidemark.iceberg.leases.holding import seems_alive, writer_id
from tidemark.ingest.persist import persist as persisting

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.homes import Home
    from tidemark.report import CollectionReport

pytestmark = pytest.mark.slow

HOUR_FIVE, HOUR_SIX = "2013-01-03T05", "2013-01-03T06"


@pytest.fixture
def aging(hourly: Home) -> Home:
    """A collection whose rows are persisted half an hour after they came."""
    declare(hourly, persist_when_cold=False)
    at(hourly, 60)
    send(hourly, 0, 50)
    hourly.ingest()
    at(hourly, 80)
    return hourly


def during(home: Home, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> tuple[CollectionReport, Any]:
    """Make a pass, and let another thread ``act`` before its files are written; return what came of both."""
    write, found = persisting._write, []

    def act_first(run: Any) -> None:
        monkeypatch.undo()
        thread = Thread(target=lambda: found.append(act()))
        thread.start()
        thread.join()
        write(run)

    monkeypatch.setattr(persisting, "_write", act_first)
    return persist(home), found[0]


def test_a_pass_leaves_the_partition_of_a_living_one_alone_and_goes_on_with_others(
    aging: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(aging, 0, 61)
    aging.ingest()
    at(aging, 91)

    def persist_later() -> CollectionReport:
        at(aging, 111)
        return persist(aging)

    first, second = during(aging, monkeypatch, persist_later)
    assert (first.strategy, second.strategy) == ("persisted", "persisted")
    assert [each["partition"] for each in second.details["decisions"]] == [HOUR_SIX]
    (other,) = second.details["under_way"]
    (begun,) = first.details["decisions"]
    assert other == {
        "partition": HOUR_FIVE,
        "operation": begun["operation"],
        "by": writer_id(),
        "since": "2013-01-03 06:31:00",
    }
    assert "given_up" not in second.details
    assert stored(aging) == [old(50), old(61)]
    assert partitions_by(aging).under_way == {}


def test_a_partition_whose_rows_lie_in_a_file_of_a_living_pass_waits_for_it(
    aging: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(aging, 0, 55, 61)
    aging.ingest()
    at(aging, 91)

    def persist_later() -> CollectionReport:
        at(aging, 111)
        return persist(aging)

    first, second = during(aging, monkeypatch, persist_later)
    assert (first.strategy, second.strategy) == ("persisted", "unchanged")
    assert (second.details["left"], second.details["decisions"]) == ([HOUR_SIX], [])
    assert stored(aging) == [old(50, 55), young(61)]
    assert persist(aging).strategy == "persisted"
    assert aging.ids() == [0, 1, 2]


def test_a_pass_merges_no_files_that_a_living_one_has_read(aging: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for minute in range(51, 57):
        send(aging, 0, minute)
        aging.ingest()
    declare(aging, persist_when_cold=False, open_rows=1)
    at(aging, 91)
    first, second = during(aging, monkeypatch, lambda: persist(aging))
    assert (first.strategy, second.strategy) == ("persisted", "unchanged")


def test_who_asks_for_all_rows_takes_those_of_a_living_pass_too(aging: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    at(aging, 91)
    first, second = during(aging, monkeypatch, lambda: persist(aging, now=True))
    assert (first.strategy, second.strategy) == ("discarded", "persisted")
    assert second.details["given_up"] == [HOUR_FIVE]
    assert (stored(aging), aging.ids()) == ([old(50)], [0])


def test_what_a_killed_process_had_under_way_is_given_up_at_once(aging: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    at(aging, 91)
    with leased(aging.settings, "persist", ("events",)) as process:
        (lease,) = leases_of(aging.settings)
        monkeypatch.setattr(persisting, "find_lease", lambda *_: lease.id)
        with pytest.raises(Crash), dying_at("persist.after-begin"):
            persist(aging)
        monkeypatch.undo()
        report = persist(aging)
        assert (report.strategy, report.details["under_way"][0]["by"]) == ("unchanged", lease.writer)
        process.signal(signal.SIGKILL)
        wait_for(lambda: not seems_alive(lease, lease.renewed_ms))
        report = persist(aging)
    assert (report.strategy, report.details["given_up"]) == ("persisted", [HOUR_FIVE])
