"""The rows of a file as entries: checked first, then split so that rows of one key go to one sequencer, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from include.errors import Refused, UsageError
from include.write_buffer.json_rows import TABLE_MEMBER, decode_json_rows, encode_json_rows
from include.write_buffer.line_protocol import decode_line_protocol, encode_line_protocol, key_of_point, split_lines
from include.write_buffer.partitioner import Partitioner, choose_sequencer, hash_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from include.write_buffer.entry import Entry
    from include.write_buffer.row import Rows

_SAMPLE = 10
Part = TypeVar("Part")


def split_json_rows(
    payload: bytes,
    sequencer_ids: Iterable[int],
    *,
    table: str | None,
    key: Sequence[str] = (),
    sequencer_id: int | None = None,
    rows_per_entry: int = 1_000,
) -> dict[int, list[Entry]]:
    """Return the JSON rows of ``payload``, one a line, as entries by sequencer.

    Args:
        payload: The lines.
        sequencer_ids: Those of the buffer.
        table: The table of rows that do not name theirs in ``_table``.
        key: The columns of the primary key, for every table of the file.
        sequencer_id: Where all rows go, if there is no key.
        rows_per_entry: The most rows of one entry.

    Raises:
        Refused: If a line is no row; nothing is to be written then.
        UsageError: If neither a key nor a sequencer is named where there is a choice.
    """
    rows = _checked(decode_json_rows(payload, default_table=table)).good
    ids = frozenset(sequencer_ids)
    if key:
        parts = Partitioner(ids, dict.fromkeys({row.table for row in rows}, key)).split(rows)
    else:
        parts = {_only(ids, sequencer_id): list(rows)}
    values = {
        each: [row.values if row.table == table else {TABLE_MEMBER: row.table, **row.values} for row in part]
        for each, part in parts.items()
    }
    return _cut(values, lambda part: encode_json_rows(part, table=table), rows_per_entry)


def split_points(
    payload: bytes, sequencer_ids: Iterable[int], *, sequencer_id: int | None = None, rows_per_entry: int = 1_000
) -> dict[int, list[Entry]]:
    """Return the points of ``payload``, in line protocol, as entries by sequencer.

    The key of a point is its measurement, tags and time; ``sequencer_id`` overrides what that says.

    Raises:
        Refused: If a line is no point; nothing is to be written then.
    """
    _checked(decode_line_protocol(payload, default_time_ns=0))
    ids = frozenset(sequencer_ids)
    parts: dict[int, list[str]] = {}
    for line in split_lines(payload.decode("utf-8")):
        key = key_of_point(line)
        if key is not None:  # no comment
            there = choose_sequencer(hash_key(*key), ids) if sequencer_id is None else sequencer_id
            parts.setdefault(there, []).append(line)
    return _cut(parts, encode_line_protocol, rows_per_entry)


def _only(ids: frozenset[int], sequencer_id: int | None) -> int:
    if sequencer_id is not None:
        return sequencer_id
    if len(ids) > 1:
        raise UsageError(
            f"the buffer has {len(ids)} sequencers, and nothing says which one the rows belong to",
            hint="name the key columns, so that rows of one key stay together, or one sequencer for all rows",
        )
    return next(iter(ids))


def _checked(rows: Rows) -> Rows:
    if rows.bad:
        raise Refused(
            f"{len(rows.bad)} lines are no rows; nothing was written",
            hint="repair or remove them",
            sample=[
                {"reason": bad.reason.value, "detail": bad.detail, "raw": bad.raw[:200]} for bad in rows.bad[:_SAMPLE]
            ],
        )
    return rows


def _cut(parts: dict[int, list[Part]], encode: Callable[[list[Part]], Entry], size: int) -> dict[int, list[Entry]]:
    return {
        each: [encode(part[start : start + size]) for start in range(0, len(part), size)]
        for each, part in parts.items()
    }
