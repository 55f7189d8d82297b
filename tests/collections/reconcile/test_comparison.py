"""What a comparison says of corrections that it has; no JVM."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DateType, StructField, StructType

from tidemark.collections.declarations.collection import Guards
from tidemark.collections.digest.row_layout import RowShape
from tidemark.collections.quality.guards import Counts
from tidemark.collections.reconcile.comparison import Difference
from tidemark.collections.reconcile.driver_corrections import compare_candidates
from tidemark.collections.reconcile.strategy import Method

SHAPE = RowShape(StructType([StructField("day", DateType())]))


def test_a_value_that_python_cannot_show_does_not_stop_a_run_that_is_not_refused() -> None:
    infinity = pa.array(np.array([10**7], dtype=np.int32), pa.int32()).cast(pa.date32())
    candidates = pa.table(
        {"0": infinity, **{name: pa.array([1], pa.int64()) for name in ("hash", "position", "file", "pos", "time")}}
    )
    counts = Counts(source=9, stored=10, retracted=1, vanished=1)
    corrections = compare_candidates(candidates, SHAPE)
    judged = Difference(method=Method.BUCKETS, counts=counts, corrections=corrections).judged(Guards())
    assert judged.refusal is None
