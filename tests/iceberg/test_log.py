from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.stored import read_log
from tidemark.errors import AsOfBeforeSince, NotYetAvailable, UpperMismatch
from tidemark.iceberg.commit.holds import downgrade_since
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.log import LOG_SCHEMA, LogUpdate, append_to_log
from tidemark.iceberg.shard.state import ShardKind
from tidemark.iceberg.shards import SYSTEM, Shards

if TYPE_CHECKING:
    from tidemark.settings import Settings


def test_log_tells_its_contents_at_every_time(home: Settings) -> None:
    shard = Shards.connect(home).create("declarations", schema=LOG_SCHEMA, layout=ShardKind.LOG, namespace=SYSTEM)
    writer = Writer.raise_token(shard, 1)
    append_to_log(writer, [LogUpdate("c", "a", "1", 1), LogUpdate("c", "b", "2", 1)], lower=0, time=5)
    append_to_log(writer, [LogUpdate("c", "a", "1", -1), LogUpdate("c", "a", "9", 1)], lower=6, time=8)
    with pytest.raises(UpperMismatch):
        append_to_log(writer, [LogUpdate("c", "z", "0", 1)], lower=6, time=9)
    head = shard.load()
    assert read_log(head, as_of=5) == Counter({("c", "a", "1"): 1, ("c", "b", "2"): 1})
    assert read_log(head) == Counter({("c", "a", "9"): 1, ("c", "b", "2"): 1})
    with pytest.raises(NotYetAvailable):
        read_log(head, as_of=9)
    downgrade_since(shard, 7, now_ms=0)
    with pytest.raises(AsOfBeforeSince):
        read_log(shard.load(), as_of=6)
