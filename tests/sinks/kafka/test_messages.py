"""The messages of a sink, without a broker."""

from __future__ import annotations

import pyarrow as pa

from tidemark.sinks.targets.kafka.messages import MessageMaker


def test_keys_that_a_collection_takes_for_equal_are_one_key() -> None:
    maker = MessageMaker("planes", ["k"], [0, 1, 2], title="t", limit_bytes=10_000)
    negative, positive = (pa.RecordBatch.from_pylist([{"k": zero, "v": zero}]) for zero in (-0.0, 0.0))
    first, second = maker.of_rows(negative), maker.of_rows(positive)
    assert (first.keys, first.partitions) == (second.keys, second.partitions)
    assert first.values == [b'{"k":-0.0,"v":-0.0}'], "the row itself is as it is"
    assert maker.of_deletes(negative.select(["k"])).keys == second.keys
