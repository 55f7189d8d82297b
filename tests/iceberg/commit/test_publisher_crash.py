"""Die at every fail point of the publisher, run again with the same commit id: the same contents, once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.crash import die_at
from tests.support.rows import SCHEMA, change_log, contents, correction
from tidemark.fail_points import FAIL_POINT_EXIT
from tidemark.iceberg.commit.publisher import FAIL_POINTS
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.shards import Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings

COMMIT_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def correct(settings: Settings) -> None:
    """Insert one row and retract another, under the one commit id."""
    shard = Shards.connect(settings).open("s")
    head = shard.load()
    retract = [] if head.state.upper > 2 else [(1, "a")]
    batch = correction(head, insert=[(2, "b")], retract=retract, time=5)
    Writer.join(shard, 1).publish(batch, lower=2, new_upper=6, digest=b"d", commit_id=COMMIT_ID)


@pytest.mark.crash
@pytest.mark.parametrize("point", FAIL_POINTS)
def test_killed_publisher_is_found_by_its_commit_id(point: str, home: Settings) -> None:
    shard = Shards.connect(home).create("s", schema=SCHEMA)
    writer = Writer.raise_token(shard, 1)
    writer.publish(correction(shard.load(), insert=[(1, "a")], time=1), lower=0, new_upper=2)
    assert die_at(point, correct, home) == FAIL_POINT_EXIT
    assert die_at("", correct, home) == 0
    head = shard.load()
    assert contents(head) == Counter({(2, "b"): 1})
    assert change_log(head) == Counter({((1, "a"), 1): 1, ((1, "a"), 5): -1, ((2, "b"), 5): 1})
    assert (head.state.upper, head.staged_branches) == (6, {})
