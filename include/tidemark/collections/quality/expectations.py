"""Checks the rows of a batch against what its collection expects, before anybody sees them; without a JVM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.types import DateType, IntegerType, LongType, PrimitiveType, TimestampType, TimestamptzType

from tidemark.collections.declarations.columns import typed_value
from tidemark.collections.schema.convert import from_iceberg
from tidemark.errors import ExpectationFailed
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.newest_rows import group_numbers
from tidemark.iceberg.files.row_positions import scan_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from tidemark.collections.declarations.append_only import Expectations, Limits
    from tidemark.collections.declarations.columns import DeclaredValue

SAMPLE = 10
_EXACT = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)  # whose bounds in statistics are whole


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """Where the rows of a batch are, and how to name it."""

    collection: str
    name: str
    files: Sequence[DataFile]
    hint: str


@dataclass(slots=True)
class _Finding:
    """One expectation, and what failed it so far."""

    text: str
    columns: tuple[str, ...]
    failing: Callable[[pa.Table], NDArray[np.bool_]]
    holds: Callable[[DataFile], bool]  # by the statistics of a file alone
    count: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)

    def look_at(self, rows: pa.Table) -> None:
        failing = self.failing(rows)
        count = int(failing.sum())
        if count:
            self.count += count
            taken = rows.filter(pa.array(failing)).slice(0, SAMPLE - len(self.sample))
            self.sample += taken.to_pylist()


def check_expectations(table: Table, batch: BatchFiles, expect: Expectations) -> None:
    """Check the rows of one batch; files whose statistics prove that everything holds are not opened.

    Memory: the columns of ``unique`` for the whole batch, else some thousand rows.

    Raises:
        ExpectationFailed: With the expectations that failed, how many rows each, and a sample of these.
    """
    findings = _row_by_row(table, expect)
    for file in batch.files:
        open_ones = [each for each in findings if not each.holds(file)]
        columns = list(dict.fromkeys(name for each in open_ones for name in each.columns))
        for placed in scan_file(table, file, columns) if open_ones else ():
            for each in open_ones:
                each.look_at(placed.rows)
    if expect.unique:
        pieces = [placed.rows for file in batch.files for placed in scan_file(table, file, expect.unique)]
        findings.append(_unique(pieces, expect.unique))
    _refuse(findings, what=f"the batch {batch.name} of {batch.collection!r}", hint=batch.hint)


def check_rows(table: Table, rows: pa.Table, expect: Expectations, *, collection: str) -> None:
    """Check rows in memory, which have the columns and types of the table.

    Raises:
        ExpectationFailed: As ``check_expectations``.
    """
    findings = _row_by_row(table, expect)
    for each in findings:
        each.look_at(rows)
    if expect.unique:
        findings.append(_unique([rows], expect.unique))
    _refuse(findings, what=f"what was written to {collection!r}", hint="repair the rows, or alter `expect`")


def _refuse(findings: Iterable[_Finding], *, what: str, hint: str) -> None:
    failed = [each for each in findings if each.count]
    if not failed:
        return
    said = "; ".join(f"{each.text} fails for {each.count} of its rows" for each in failed)
    sample = [{"expectation": each.text, **row} for each in failed for row in each.sample][:SAMPLE]
    raise ExpectationFailed(f"{what} is not what the collection expects: {said}", hint=hint, sample=sample)


def _row_by_row(table: Table, expect: Expectations) -> list[_Finding]:
    return [*_not_null(table, expect), *_ranges(table, expect), *_values(table, expect)]


def _not_null(table: Table, expect: Expectations) -> Iterable[_Finding]:
    for name in expect.not_null:
        field_id = table.schema().find_field(name).field_id

        def failing(rows: pa.Table, name: str = name) -> NDArray[np.bool_]:
            return _mask(rows.column(name).is_null(nan_is_null=False))

        def holds(file: DataFile, field_id: int = field_id) -> bool:
            return (file.null_value_counts or {}).get(field_id) == 0

        yield _Finding(f"`not_null: {name}`", (name,), failing, holds)


def _ranges(table: Table, expect: Expectations) -> Iterable[_Finding]:
    for name, limits in expect.range.items():
        smallest, largest = (None if each is None else _scalar(table, name, each) for each in (limits.min, limits.max))

        def failing(
            rows: pa.Table, name: str = name, smallest: pa.Scalar | None = smallest, largest: pa.Scalar | None = largest
        ) -> NDArray[np.bool_]:
            column = rows.column(name)
            failing = np.zeros(rows.num_rows, dtype=np.bool_)
            # Not inside, rather than outside: so NaN fails, which is neither.
            if smallest is not None:
                failing |= ~_mask(pc.fill_null(pc.greater_equal(column, smallest), fill_value=True))
            if largest is not None:
                failing |= ~_mask(pc.fill_null(pc.less_equal(column, largest), fill_value=True))
            return failing

        def holds(
            file: DataFile, name: str = name, smallest: pa.Scalar | None = smallest, largest: pa.Scalar | None = largest
        ) -> bool:
            return _lies_within(table, file, name, smallest, largest)

        yield _Finding(f"`range: {name}` {_limits_text(limits)}", (name,), failing, holds)


def _values(table: Table, expect: Expectations) -> Iterable[_Finding]:
    for name, values in expect.one_of.items():
        kind = arrow_schema(table).field(name).type
        allowed = pa.array([_scalar(table, name, each).as_py() for each in values], kind)

        def failing(rows: pa.Table, name: str = name, allowed: pa.Array = allowed) -> NDArray[np.bool_]:
            column = rows.column(name)
            return ~_mask(pc.is_in(column, allowed)) & _mask(pc.is_valid(column))

        yield _Finding(f"`one_of: {name}`", (name,), failing, lambda _file: False)


def _unique(pieces: Sequence[pa.Table], columns: Sequence[str]) -> _Finding:
    """Look for rows that share their values with an earlier one; rows with a NULL among them are unique."""

    def failing(rows: pa.Table) -> NDArray[np.bool_]:
        groups = group_numbers(rows, columns)
        repeated = np.ones(len(groups), dtype=np.bool_)
        repeated[np.unique(groups, return_index=True)[1]] = False
        return repeated

    finding = _Finding(f"`unique: {', '.join(columns)}`", tuple(columns), failing, lambda _file: False)
    if pieces:
        finding.look_at(pa.concat_tables(each.select(list(columns)) for each in pieces).drop_null().combine_chunks())
    return finding


def _lies_within(
    table: Table, file: DataFile, name: str, smallest: pa.Scalar | None, largest: pa.Scalar | None
) -> bool:
    found = table.schema().find_field(name)
    kind = found.field_type
    first, last = file.lower_bounds.get(found.field_id), file.upper_bounds.get(found.field_id)
    if not isinstance(kind, _EXACT) or not isinstance(kind, PrimitiveType) or first is None or last is None:
        return False
    return (smallest is None or int(from_bytes(kind, first)) >= _stored(smallest)) and (
        largest is None or int(from_bytes(kind, last)) <= _stored(largest)
    )


def _stored(value: pa.Scalar) -> int:
    """Return a whole number, a date or a time as Iceberg's statistics have it."""
    kind = pa.int32() if pa.types.is_date32(value.type) else pa.int64()
    return int(value.cast(kind).as_py())


def _scalar(table: Table, name: str, value: DeclaredValue) -> pa.Scalar:
    columns = from_iceberg(table.schema(), without=())
    kind = next(column.type for column in columns if column.name == name)
    return pa.scalar(typed_value(value, kind), arrow_schema(table).field(name).type)


def _mask(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(), dtype=np.bool_)


def _limits_text(limits: Limits) -> str:
    return f"[{'…' if limits.min is None else limits.min}, {'…' if limits.max is None else limits.max}]"
