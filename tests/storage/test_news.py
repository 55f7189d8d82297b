"""What a dataflow tells after its rounds: how much waits, since when, and whether it is idle. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from tidemark.report import CollectionReport, ErrorReport, Outcome
from tidemark.storage.dataflows.dataflow import CONTENTS, HELD, News

ERROR = ErrorReport(kind="Unreachable", message="a test")


def after(news: News, now_ms: int, outcome: Outcome = Outcome.APPENDED, **fields: Any) -> News:
    details = fields.pop("details", {})
    return news.after(CollectionReport(outcome=outcome, details=details, **fields), now_ms=now_ms, behind_ms=0)


def test_the_lag_grows_from_one_measure_to_the_next_while_entries_wait() -> None:
    news = after(News(), 10_000, details={"waiting": 5, "sequencers": {"0": {"lag_ms": 700}, "1": {"lag_ms": 900}}})
    assert news.lag_ms == 900
    news = after(news, 12_000, details={"waiting": 3})
    assert news.lag_ms == 2_900
    news = after(news, 13_000, Outcome.FAILED, error=ERROR)
    assert (news.waiting, news.lag_ms) == (3, 3_900)
    news = after(news, 14_000, Outcome.UNCHANGED, details={"waiting": 0})
    assert (news.waiting, news.lag_ms) == (0, 0)


def test_entries_that_nobody_measured_wait_since_they_were_first_seen() -> None:
    news = after(News(), 10_000, details={"waiting": 5})
    assert after(news, 11_000, details={"waiting": 9}).lag_ms == 1_000


@pytest.mark.parametrize(
    ("fields", "is_idle"),
    [
        ({"outcome": Outcome.UNCHANGED}, True),
        ({"outcome": Outcome.UNCHANGED, "details": {"waiting": 1}}, False),
        ({"outcome": Outcome.UNCHANGED, "details": {HELD: 1}}, False),
        ({"outcome": Outcome.APPENDED, "inserted": 1}, False),
        ({"outcome": Outcome.FAILED, "error": ERROR}, False),
        ({"outcome": Outcome.SKIPPED}, False),
    ],
)
def test_only_a_round_that_looked_and_found_nothing_is_idle(fields: dict[str, Any], *, is_idle: bool) -> None:
    news = after(News(waiting=7, held=2), 0, **fields)
    assert news.is_idle is is_idle
    if fields["outcome"] is Outcome.SKIPPED:
        assert (news.waiting, news.held) == (7, 2), "another worker knows better, and nobody has told"


def test_the_contents_are_as_of_the_last_rows_and_of_a_sink_as_of_the_last_look() -> None:
    news = after(News(), 0, inserted=3, upper=40)
    assert after(news, 0, Outcome.UNCHANGED, upper=50).contents == 40
    assert after(news, 0, Outcome.UNCHANGED, upper=50, details={"shown": 3}).contents == 50
    assert after(News(), 0, Outcome.UNCHANGED, upper=20, details={CONTENTS: 40}).contents == 40
