"""Whatever changes a program hands over: the contents are those of a counter, and the digest is that of the rows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.exploration import explore
from tests.support.frames import Hands, Row
from tests.support.homes import Home
from tidemark.collections.reconcile import frames
from tidemark.errors import Refused, UpperMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.settings import Settings

pytestmark = pytest.mark.spark

KEYS, VALUES = st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, "a", "b"])
CHANGES = st.lists(st.tuples(KEYS, VALUES, st.integers(-2, 3)), max_size=4)


def after(rows: Counter[Row], changes: list[Row], *, is_keyed: bool) -> Counter[Row] | None:
    """Return the rows after the changes; None if these are to be refused."""
    net: Counter[Row] = Counter()
    for *row, diff in changes:
        net[tuple(row)] += diff
    found = Counter(rows)
    found.update(net)
    keys = Counter(key for (key, _), count in found.items() for _ in range(count))
    has_no_key = any(row[0] is None and diff for row, diff in net.items())
    if min(found.values(), default=0) < 0 or (is_keyed and (has_no_key or max(keys.values(), default=0) > 1)):
        return None
    return +found


@pytest.mark.parametrize("key", [["k"], []], ids=["keyed", "multiset"])
@explore(6)
@given(data=st.data())
def test_any_changes(
    home: Settings, home_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, key: list[str], data: st.DataObject
) -> None:
    monkeypatch.setattr(frames, "record_run", lambda *_, **__: None)
    name = f"c{data.draw(st.uuids()).hex}"
    hands = Hands(Home(home), home_spark, name=name, key=key, guards={"max_delete_ratio": 1.0, "allow_empty": True})
    rows: Counter[Row] = Counter()
    upper = 0
    for _ in range(4):
        changes = data.draw(CHANGES, label="changes")
        if rows and data.draw(st.booleans(), label="replaces"):
            gone = data.draw(st.sampled_from(sorted(rows, key=repr)), label="gone")
            changes.append((*gone, -1))
        wanted = after(rows, changes, is_keyed=bool(key))
        given_upper = data.draw(st.sampled_from([None, upper, upper - 1]), label="upper")
        try:
            report = hands.apply(changes, upper=given_upper)
        except UpperMismatch:
            assert given_upper == upper - 1
        except Refused:
            assert wanted is None
        else:
            assert wanted is not None
            rows, upper = wanted, hands.home.upper(name)
            assert report.upper == upper
        assert Counter(hands.rows()) == rows
        assert hands.pinned().wrong_buckets() == 0
