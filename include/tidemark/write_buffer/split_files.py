"""Splits the rows of a file into entries: all rows are checked; rows of one key go to one sequencer, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidemark.errors import Refused, UsageError
from tidemark.write_buffer.formats.entry import BadRow, Entry, Row, Rows
from tidemark.write_buffer.formats.json_rows import TABLE_MEMBER, decode_json_rows, encode_json_rows
from tidemark.write_buffer.formats.line_protocol import decode_line_protocol, encode_line_protocol
from tidemark.write_buffer.keys import POINTS, Key, check_keys, sequencer_of
from tidemark.write_buffer.partitioner import Partitioner

_SAMPLE = 10
_SHOWN_BYTES = 200
Part = TypeVar("Part")


class SplitFile(NamedTuple):
    """Entries by sequencer, and the keys of tables by which their sequencers were chosen."""

    entries: dict[int, list[Entry]]
    keys: dict[str, Key]


def split_json_rows(
    payload: bytes,
    sequencer_ids: Iterable[int],
    *,
    table: str | None,
    key: Sequence[str] = (),
    sequencer_id: int | None = None,
    rows_per_entry: int = 1_000,
    kept: Mapping[str, Key],
) -> SplitFile:
    """Return the JSON rows of ``payload``, one a line, as entries by sequencer.

    ``sequencer_ids`` are all sequencers of the buffer, ``kept`` the keys that it keeps. ``table`` is the table of rows
    without a member ``_table``, ``key`` the columns of the primary key, for every table of the file. Without a key, and
    where none is kept, all rows go to ``sequencer_id``.

    Raises:
        Refused: If a line is not a row; the caller then writes nothing.
        UsageError: If a key and a sequencer are named, or neither although there is a choice, or no row has a column of
            the key; if a key is not the one that is kept, or a row belongs to another sequencer than is named.
    """
    if key and sequencer_id is not None:
        raise UsageError(
            "a key says which sequencer a row belongs to, and one for all rows is named, too",
            hint="give --key or --sequencer, not both",
        )
    rows = _checked(decode_json_rows(payload, default_table=table), payload).good
    ids = frozenset(sequencer_ids)
    tables = dict.fromkeys(row.table for row in rows)
    keys = dict.fromkeys(tables, tuple(key)) if key else {each: kept[each] for each in tables if each in kept}
    check_keys(kept, keys)
    if points := [each for each in keys if keys[each] == POINTS]:
        raise UsageError(f"the table {points[0]!r} is one of points, whose key JSON rows lack", hint="write points")
    if key:
        _check_key(key, rows)
    if sequencer_id is None and len(keys) == len(tables):
        parts = Partitioner(ids, keys).split(rows)
    else:
        parts = {_only(ids, sequencer_id): list(rows)}
        _check_sequencer(rows, keys, ids, sequencer_id)
    values = {
        id_: [row.values if row.table == table else {TABLE_MEMBER: row.table, **row.values} for row in part]
        for id_, part in parts.items()
    }
    return SplitFile(_cut(values, lambda part: encode_json_rows(part, table=table), rows_per_entry), keys)


def split_points(
    payload: bytes,
    sequencer_ids: Iterable[int],
    *,
    sequencer_id: int | None = None,
    rows_per_entry: int = 1_000,
    kept: Mapping[str, Key],
) -> SplitFile:
    """Return the points of ``payload``, in line protocol, as entries by sequencer.

    The key of a point is its measurement, tags and time. With ``sequencer_id`` all points go to this sequencer, unless
    the buffer has points of their tables that the key brought to others.

    Raises:
        Refused: If a line is not a point; the caller then writes nothing.
        UsageError: If rows of a table have another key, or a point belongs to another sequencer than is named.
    """
    points = _checked(decode_line_protocol(payload, default_time_ns=0), payload).good
    ids = frozenset(sequencer_ids)
    keys = {point.table: POINTS for point in points}
    check_keys(kept, keys)
    if sequencer_id is not None:
        keys = {table: key for table, key in keys.items() if table in kept}
        _check_sequencer(points, keys, ids, sequencer_id)
    parts: dict[int, list[str]] = {}
    for point in points:
        id_ = sequencer_of(point, keys, ids) if sequencer_id is None else sequencer_id
        parts.setdefault(id_ or 0, []).append(point.raw.decode("utf-8"))
    return SplitFile(_cut(parts, encode_line_protocol, rows_per_entry), keys)


def _check_sequencer(
    rows: Iterable[Row], keys: Mapping[str, Key], ids: frozenset[int], sequencer_id: int | None
) -> None:
    """Refuse to go past a key that the buffer keeps."""
    for row in rows:
        right = sequencer_of(row, keys, ids)
        if None not in {right, sequencer_id} and right != sequencer_id:
            raise UsageError(
                f"the buffer keeps a key for the table {row.table!r}, by which one of its rows belongs to the "
                f"sequencer {right}, not to {sequencer_id}",
                hint="leave --sequencer out: the key chooses it",
            )


def _only(ids: frozenset[int], sequencer_id: int | None) -> int:
    if sequencer_id is not None:
        return sequencer_id
    if len(ids) > 1:
        raise UsageError(
            f"the buffer has {len(ids)} sequencers, and nothing says which one the rows belong to",
            hint="name the key columns (--key), to keep rows of one key together, or one --sequencer for all",
        )
    return next(iter(ids))


def _check_key(key: Sequence[str], rows: Sequence[Row]) -> None:
    """Refuse a key column that no row has: with a misspelt column other writers would choose other sequencers."""
    unknown = [column for column in key if rows and all(column not in row.values for row in rows)]
    if unknown:
        raise UsageError(f"no row has the key column {unknown[0]!r}", hint="name columns of the rows in --key")


def _checked(rows: Rows, payload: bytes) -> Rows:
    if not rows.bad:
        return rows
    sample: list[dict[str, object]] = [
        {
            "line": line,
            "reason": bad.reason.value,
            "detail": bad.detail,
            "text": (bad.raw or b"")[:_SHOWN_BYTES].decode("utf-8", errors="replace"),
        }
        for line, bad in zip(_line_numbers(payload, rows.bad), rows.bad[:_SAMPLE], strict=False)
    ]
    what = "1 line is no row" if len(rows.bad) == 1 else f"{len(rows.bad)} lines are no rows"
    raise Refused(
        f"{what}; nothing was written",
        hint="repair or remove what is shown; rows that name no table need --table, points --format line-protocol",
        sample=sample,
    )


def _line_numbers(payload: bytes, bad: Iterable[BadRow]) -> Iterator[int]:
    """Yield for every bad row the number of its first line, from 1 on; ``bad`` is in the order of the payload."""
    lines = enumerate((line.strip() for line in payload.split(b"\n")), start=1)
    for row in bad:
        begin = (row.raw or b"").split(b"\n")[0].strip()
        yield next((number for number, line in lines if line == begin), 0)


def _cut(parts: dict[int, list[Part]], encode: Callable[[list[Part]], Entry], size: int) -> dict[int, list[Entry]]:
    return {
        sequencer_id: [encode(part[start : start + size]) for start in range(0, len(part), size)]
        for sequencer_id, part in parts.items()
    }
