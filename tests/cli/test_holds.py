"""`tidemark hold`, and where else an overdue hold is shown."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.events import create_events, switch
from tests.support.homes import Home
from tests.support.sinks import declare_sink
from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.cli.app import app
from tidemark.clock import SystemClock
from tidemark.collections.deployment import Mode
from tidemark.collections.maintenance import maintain
from tidemark.collections.maintenance.dropped_tables import remove_dropped
from tidemark.collections.maintenance.maintain import maintain_all
from tidemark.exit_codes import ExitCode
from tidemark.iceberg.commit.holds import hold
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shard.state import NEVER
from tidemark.interval import DAY_MS, HOUR_MS
from tidemark.orchestration.status_page.observed import Observer
from tidemark.orchestration.status_page.status import show_status

if TYPE_CHECKING:
    from pathlib import Path

    from tidemark.iceberg.shard.shard import Shard
    from tidemark.settings import Settings


class CommandLine:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.code = ExitCode.OK

    def __call__(self, *arguments: str) -> str:
        self._capture.readouterr()
        self.code = ExitCode(app(list(arguments)))
        return " ".join(self._capture.readouterr().out.split())

    def json(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self(*arguments, "--json"))
        return answer


@pytest.fixture
def tidemark(home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TIDEMARK_HOME", str(home.home))
    monkeypatch.setenv("COLUMNS", "300")
    switch(home, Mode.READ_WRITE)
    return CommandLine(capsys)


@pytest.fixture
def events(home: Settings) -> Shard:
    """A collection whose history starts three days ago."""
    shard = create_events(home)
    Writer.lead(shard, 1).advance(lower=0, new_upper=SystemClock().now_ms() - 3 * DAY_MS)
    return shard


def test_a_hold_is_taken_listed_renewed_and_released(tidemark: CommandLine, events: Shard) -> None:
    before = SystemClock().now_ms()
    taken = tidemark.json("hold", "take", "events", "report", "--since", "1970-01-01T00:00:07")
    assert (taken["collection"], taken["reader"], taken["since"]) == ("events", "report", 7_000)
    assert before + 7 * DAY_MS <= taken["expires_at"] <= SystemClock().now_ms() + 7 * DAY_MS
    assert tidemark.json("hold", "take", "events", "report", "--for", "12h")["since"] == 7_000, "renewed where it was"
    assert tidemark.json("hold", "take", "events", "lasting", "--since", "9", "--durable")["expires_at"] is None
    lasting, report = tidemark.json("hold", "list")["holds"]
    assert (lasting["reader"], lasting["since"], lasting["expires_at"], lasting["overdue"]) == (
        "lasting",
        9,
        None,
        False,
    )
    assert (report["reader"], report["live"], report["warn_after_ms"]) == ("report", True, 7 * DAY_MS)
    assert tidemark.json("show", "events")["error"]["kind"] == "UnknownObject", "a table that nobody declared"
    assert "events lasting 9 (1970-01-01 00:00:00 UTC) never" in tidemark("hold", "list", "events")
    assert tidemark.json("hold", "release", "events", "lasting")["released"] is True
    assert tidemark("hold", "release", "events", "lasting").endswith("nothing was released; who holds some: report")
    assert set(events.load().state.holds) == {"report"}
    assert tidemark("hold", "release", "events", "report") == "events: 'report' holds no history any more"
    assert tidemark("hold", "list") == "Nobody holds history."


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["take", "events", "sink-out"], 64, "UsageError"),
        (["take", "events", "a b"], 64, "UsageError"),
        (["take", "events", "r", "--for", "1w"], 64, "UsageError"),
        (["take", "events", "r", "--for", "0d"], 64, "UsageError"),
        (["take", "events", "r", "--for", "1d", "--durable"], 64, "UsageError"),
        (["take", "event", "r"], 64, "UnknownCollection"),
        (["release", "event", "r"], 64, "UnknownCollection"),
        (["list", "event"], 64, "UnknownCollection"),
    ],
)
def test_what_cannot_be_meant_is_refused(tidemark: CommandLine, arguments: list[str], code: int, kind: str) -> None:
    assert tidemark.json("hold", *arguments)["error"]["kind"] == kind
    assert tidemark.code == code


def test_history_that_is_gone_cannot_be_held(tidemark: CommandLine, home: Settings, events: Shard) -> None:
    maintain_all(None, deployment_of(home), ["events"])
    assert tidemark.json("hold", "take", "events", "late", "--since", "5")["error"]["kind"] == "AsOfBeforeSince"
    assert tidemark.code == ExitCode.NOT_POSSIBLE
    assert events.load().state.holds == {}


def test_a_read_only_deployment_holds_for_a_time_only(tidemark: CommandLine, home: Settings, events: Shard) -> None:
    switch(home, Mode.READ_ONLY)
    assert tidemark.json("hold", "take", "events", "r", "--durable")["error"]["kind"] == "ReadOnly"
    assert tidemark.code == ExitCode.FENCED
    tidemark("hold", "take", "events", "r", "--for", "1h")
    assert (tidemark.code, set(events.load().state.holds)) == (ExitCode.OK, {"r"})


def test_the_hold_of_a_sink_goes_with_the_sink(tidemark: CommandLine, home: Settings, events: Shard) -> None:
    declare_sink(home, "out", "events")
    hold(events, "sink-out", expires_at_ms=NEVER)
    hold(events, "sink-gone", expires_at_ms=NEVER)
    refused = tidemark.json("hold", "release", "events", "sink-out")["error"]
    assert (refused["kind"], tidemark.code) == ("UsageError", ExitCode.USAGE)
    assert "drop the sink" in refused["hint"]
    assert tidemark.json("hold", "release", "events", "sink-gone")["released"] is True


def test_the_hold_of_a_sink_that_is_gone_is_listed_and_released_by_the_maintenance_that_leads(
    tidemark: CommandLine, home: Settings, events: Shard
) -> None:
    declare_sink(home, "out", "events")
    for reader in ("a-job", "sink-out", "sink-gone"):
        hold(events, reader, expires_at_ms=NEVER)
    (finding,) = [each for each in tidemark.json("doctor")["checks"] if each["note"] == "dead"]
    assert (finding["subject"], finding["ok"], "'sink-gone'" in finding["message"]) == ("events: holds", True, True)
    switch(home, Mode.READ_ONLY)
    maintain_all(None, deployment_of(home), ["events"])
    assert set(events.load().state.holds) == {"a-job", "sink-out", "sink-gone"}
    switch(home, Mode.READ_WRITE)
    report = maintain_all(None, deployment_of(home), ["events"])
    assert report.collections["events"].details["released_holds"] == ["sink-gone"]
    assert set(events.load().state.holds) == {"a-job", "sink-out"}
    assert not any(each["note"] == "dead" for each in tidemark.json("doctor")["checks"])


def test_an_overdue_hold_is_shown_everywhere(
    tidemark: CommandLine,
    home: Settings,
    events: Shard,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hold(events, "mirror", expires_at_ms=NEVER)
    in_three_days = SystemClock().now_ms() + 3 * DAY_MS
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: in_three_days)
    (listed,) = tidemark.json("hold", "list", "events")["holds"]
    assert (listed["overdue"], round(listed["age_ms"] / HOUR_MS)) == (True, 72)
    assert tidemark("hold", "list").endswith("OVERDUE")
    checks = tidemark.json("doctor")["checks"]
    (finding,) = [each for each in checks if each["subject"] == "events: holds"]
    assert (finding["ok"], finding["message"], finding["hint"]) == (False, listed["warning"], listed["hint"])
    assert "tidemark hold release events mirror" in finding["hint"]
    others_fail = not all(each["ok"] for each in checks if each is not finding)
    assert tidemark.code == (ExitCode.CONFIGURATION if others_fail else ExitCode.TRANSIENT), "the mildest finding"
    assert shown_holds(home) == [listed]
    monkeypatch.setattr(maintain, "store_now_ms", lambda _: in_three_days)
    with caplog.at_level(logging.WARNING):
        report = maintain_all(None, deployment_of(home), ["events"])
    assert listed["warning"] in caplog.text
    assert report.collections["events"].details["overdue_holds"] == [listed]


def shown_holds(settings: Settings) -> list[dict[str, Any]]:
    """Return the holds on the one collection, as the status page shows them."""
    clock = SystemClock()
    (collection,) = show_status(Observer(settings, clock), now_ms=clock.now_ms())["collections"]
    found: list[dict[str, Any]] = collection["holds"]
    return found


def test_the_status_page_needs_no_catalog_for_the_holds_of_sinks(
    tidemark: CommandLine, home: Settings, events: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_sink(home, "out", "events", warn_after="5d")
    hold(events, "sink-out", expires_at_ms=NEVER)
    in_three_days = SystemClock().now_ms() + 3 * DAY_MS
    monkeypatch.setattr(SystemClock, "now_ms", lambda _: in_three_days)
    assert tidemark.json("hold", "list")["holds"][0]["overdue"] is False, "its owner looks after five days"
    assert shown_holds(home)[0]["overdue"] is False
    (home.home / "stash.db").unlink()
    assert shown_holds(home)[0]["overdue"] is True, "nobody knows better than the default"


def test_the_holds_of_a_dropped_collection_are_listed_and_released(
    tidemark: CommandLine, home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Home(home, tmp_path)
    place.declare('version: 1\ncollections:\n  facts: {kind: append-only, schema: "id bigint"}\n')
    hold(place.shard("facts"), "nightly", expires_at_ms=NEVER)
    hold(place.shard("facts"), "weekly", expires_at_ms=SystemClock().now_ms() + DAY_MS)
    assert "facts weekly 0 (the beginning)" in tidemark("hold", "list", "facts")
    assert "nightly" in tidemark("drop", "facts", "--yes")

    for names in ([], ["facts"], ["dropped.facts_1"]):
        listed = tidemark.json("hold", "list", *names)["holds"]
        assert [(held["collection"], held["reader"]) for held in listed] == [
            ("dropped.facts_1", "nightly"),
            ("dropped.facts_1", "weekly"),
        ]
    monkeypatch.setattr("tidemark.collections.holds.WARN_AFTER_MS", -1)
    checked = tidemark("doctor")
    assert "held by nightly until `tidemark hold release dropped.facts_1 nightly`" in checked
    assert "the hold of 'nightly' on 'dropped.facts_1' keeps" in checked
    assert "OVERDUE" in tidemark("hold", "list", "facts")

    def remove() -> str:
        report = remove_dropped(place.shards, place.deployment, clock=SystemClock(), grace_ms=0)
        return str(report.collections["dropped.facts_1"].strategy)

    assert remove() == "dropped", "a durable hold keeps the table"
    switch(home, Mode.READ_ONLY)
    tidemark("hold", "release", "dropped.facts_1", "nightly")
    assert tidemark.code == ExitCode.FENCED
    switch(home, Mode.READ_WRITE)
    assert "holds no history any more" in tidemark("hold", "release", "dropped.facts_1", "nightly")
    assert "holds no history any more" in tidemark("hold", "release", "dropped.facts_1", "weekly")
    assert remove() == "removed"
    tidemark("hold", "release", "dropped.facts_1", "nightly")
    assert tidemark.code == ExitCode.USAGE
