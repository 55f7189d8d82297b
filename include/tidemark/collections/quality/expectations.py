"""Checks the rows of a batch against the expectations of the collection, before publishing; without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DateType, IntegerType, LongType, TimestampType, TimestamptzType

from tidemark.collections.declarations.columns import DeclaredValue, typed_value
from tidemark.collections.schema.convert import from_iceberg
from tidemark.errors import ExpectationFailed
from tidemark.iceberg.files.data_files import arrow_schema
from tidemark.iceberg.files.newest_rows import group_numbers
from tidemark.iceberg.files.row_positions import scan_file

if TYPE_CHECKING:
    from tidemark.collections.declarations.append_only import Expectations, Limits

SAMPLE = 10
# Types whose bounds in statistics are not truncated.
_EXACT = (IntegerType, LongType, DateType, TimestampType, TimestamptzType)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch, and the words of messages about the batch."""

    collection: str
    name: str
    files: Sequence[DataFile]
    hint: str


@dataclass(slots=True)
class _Finding:
    """One expectation, and the rows that failed so far."""

    text: str
    columns: tuple[str, ...]
    failing: Callable[[pa.Table], NDArray[np.bool_]]
    holds: Callable[[DataFile], bool] = lambda _file: False  # judged by the statistics of a file alone
    count: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)

    def check(self, rows: pa.Table) -> None:
        failed = self.failing(rows)
        if failed.any():
            self.count += int(failed.sum())
            self.sample += rows.filter(pa.array(failed)).slice(0, SAMPLE - len(self.sample)).to_pylist()


def check_expectations(table: Table, batch: BatchFiles, expect: Expectations | None) -> None:
    """Check the rows of one batch; a file whose statistics prove all expectations is not opened.

    Memory: the columns of ``unique`` for the whole batch, else some thousand rows.

    Raises ``ExpectationFailed`` if rows fail, with the failed expectations, the number of failed rows, and a sample.
    """
    if expect is None:
        return
    findings = _row_by_row(table, expect)
    for file in batch.files:
        unproven = [finding for finding in findings if not finding.holds(file)]
        columns = list(dict.fromkeys(name for finding in unproven for name in finding.columns))
        for placed in scan_file(table, file, columns) if unproven else ():
            for finding in unproven:
                finding.check(placed.rows)
    if expect.unique:
        pieces = [placed.rows for file in batch.files for placed in scan_file(table, file, expect.unique)]
        findings.append(_unique(pieces, expect.unique))
    _refuse(findings, what=f"the batch {batch.name} of {batch.collection!r}", hint=batch.hint)


def check_rows(table: Table, rows: pa.Table, expect: Expectations, *, collection: str) -> None:
    """Check rows in memory with the columns and types of the table.

    Raises ``ExpectationFailed`` as ``check_expectations``.
    """
    findings = _row_by_row(table, expect)
    for finding in findings:
        finding.check(rows)
    if expect.unique:
        findings.append(_unique([rows], expect.unique))
    _refuse(findings, what=f"what was written to {collection!r}", hint="repair the rows, or alter `expect`")


def _refuse(findings: Iterable[_Finding], *, what: str, hint: str) -> None:
    failed = [finding for finding in findings if finding.count]
    if not failed:
        return
    listed = "; ".join(f"{finding.text} fails for {finding.count} of its rows" for finding in failed)
    sample = [{"expectation": finding.text, **row} for finding in failed for row in finding.sample][:SAMPLE]
    raise ExpectationFailed(f"{what} is not what the collection expects: {listed}", hint=hint, sample=sample)


def _row_by_row(table: Table, expect: Expectations) -> list[_Finding]:
    return [
        *(_not_null(table, name) for name in expect.not_null),
        *(_range(table, name, limits) for name, limits in expect.range.items()),
        *(_one_of(table, name, values) for name, values in expect.one_of.items()),
    ]


def _not_null(table: Table, name: str) -> _Finding:
    field_id = table.schema().find_field(name).field_id
    return _Finding(
        f"`not_null: {name}`",
        (name,),
        failing=lambda rows: _mask(rows.column(name).is_null(nan_is_null=False)),
        holds=lambda file: (file.null_value_counts or {}).get(field_id) == 0,
    )


def _range(table: Table, name: str, limits: Limits) -> _Finding:
    smallest, largest = (None if bound is None else _scalar(table, name, bound) for bound in (limits.min, limits.max))

    def failing(rows: pa.Table) -> NDArray[np.bool_]:
        column = rows.column(name)
        failed = np.zeros(rows.num_rows, dtype=np.bool_)
        # A value fails that is not inside the limits: so NaN fails, which is neither inside nor outside.
        if smallest is not None:
            failed |= ~_mask(pc.fill_null(pc.greater_equal(column, smallest), fill_value=True))
        if largest is not None:
            failed |= ~_mask(pc.fill_null(pc.less_equal(column, largest), fill_value=True))
        return failed

    def holds(file: DataFile) -> bool:
        column = table.schema().find_field(name)
        value_type = column.field_type
        first, last = file.lower_bounds.get(column.field_id), file.upper_bounds.get(column.field_id)
        if not isinstance(value_type, _EXACT) or first is None or last is None:
            return False
        return (smallest is None or int(from_bytes(value_type, first)) >= _stored(smallest)) and (
            largest is None or int(from_bytes(value_type, last)) <= _stored(largest)
        )

    low, high = ("…" if bound is None else bound for bound in (limits.min, limits.max))
    return _Finding(f"`range: {name}` [{low}, {high}]", (name,), failing, holds)


def _one_of(table: Table, name: str, values: Sequence[DeclaredValue]) -> _Finding:
    allowed = pa.array([_scalar(table, name, value).as_py() for value in values], arrow_schema(table).field(name).type)

    def failing(rows: pa.Table) -> NDArray[np.bool_]:
        column = rows.column(name)
        return ~_mask(pc.is_in(column, allowed)) & _mask(pc.is_valid(column))

    return _Finding(f"`one_of: {name}`", (name,), failing)


def _unique(pieces: Sequence[pa.Table], columns: Sequence[str]) -> _Finding:
    """Find rows with the same values as an earlier row; a row with a NULL among the values is unique."""

    def failing(rows: pa.Table) -> NDArray[np.bool_]:
        groups = group_numbers(rows, columns)
        repeated = np.ones(len(groups), dtype=np.bool_)
        repeated[np.unique(groups, return_index=True)[1]] = False
        return repeated

    finding = _Finding(f"`unique: {', '.join(columns)}`", tuple(columns), failing)
    if pieces:
        finding.check(pa.concat_tables(piece.select(list(columns)) for piece in pieces).drop_null().combine_chunks())
    return finding


def _stored(value: pa.Scalar) -> int:
    """Return a whole number, a date or a time as the number in Iceberg's statistics."""
    return int(value.cast(pa.int32() if pa.types.is_date32(value.type) else pa.int64()).as_py())


def _scalar(table: Table, name: str, value: DeclaredValue) -> pa.Scalar:
    declared_type = next(column.type for column in from_iceberg(table.schema()) if column.name == name)
    return pa.scalar(typed_value(value, declared_type), arrow_schema(table).field(name).type)


def _mask(values: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(), dtype=np.bool_)
