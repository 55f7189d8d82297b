"""`tidemark read` and `tidemark changes`: contents and corrections, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.cli.console import print_json, print_line, print_table
from tidemark.cli.options import AsJson, Limit, Name, load_settings, parse_frontier_time

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.iceberg.shard.shard import Shard

SHOWN_ROWS = 100  # of a table for people, unless they say how many

AsOf = Annotated[
    str | None, typer.Option(metavar="T", help="Contents at a time: ms since 1970, or ISO (UTC). Without it: now.")
]
From = Annotated[str, typer.Option("--from", metavar="T", help="First time, included: ms since 1970, or ISO (UTC).")]
Until = Annotated[str | None, typer.Option(metavar="T", help="Last time, excluded. Without it: the upper.")]
WithTime = Annotated[bool, typer.Option("--with-time", help="Add `_time`, when each row appeared (ms since 1970).")]


def read(
    name: Name, *, as_of: AsOf = None, limit: Limit = None, with_time: WithTime = False, as_json: AsJson = False
) -> None:
    """Print the contents of a collection, now or at a time."""
    from tidemark.iceberg.reading.arrow import read_arrow  # noqa: PLC0415 - help is shown without pyiceberg

    shard = _open(name)
    if as_of is not None:
        time: int | None = parse_frontier_time(as_of)
    else:
        upper = shard.load().state.upper
        time = upper - 1 if isinstance(upper, int) and upper > 0 else None
    rows = read_arrow(shard, time, with_time=with_time, limit=_fetched(limit, as_json=as_json))
    _print(name, rows, limit=limit, as_json=as_json, as_of=time)


def changes(name: Name, *, from_: From, until: Until = None, limit: Limit = None, as_json: AsJson = False) -> None:
    """Print the corrections with `from <= _time < until`, consolidated: `_diff` 1 came, -1 went."""
    from tidemark.iceberg.reading.arrow import changes_arrow  # noqa: PLC0415 - help is shown without pyiceberg

    shard = _open(name)
    end = None if until is None else parse_frontier_time(until)
    upper = shard.load().state.upper
    if end is None and isinstance(upper, int):
        end = upper  # said in the answer, so that the next call can go on from there
    rows = changes_arrow(shard, parse_frontier_time(from_), end, limit=_fetched(limit, as_json=as_json))
    _print(name, rows, limit=limit, as_json=as_json, **{"from": parse_frontier_time(from_), "until": end})


def _open(name: str) -> Shard:
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415

    return Shards.connect(load_settings()).open(name)


def _fetched(limit: int | None, *, as_json: bool) -> int | None:
    return SHOWN_ROWS + 1 if limit is None and not as_json else limit


def _print(name: str, rows: pa.Table, *, limit: int | None, as_json: bool, **times: Any) -> None:
    from tidemark.iceberg.files.arrow_values import to_rows, to_tuples  # noqa: PLC0415

    if as_json:
        print_json({"collection": name, **times, "count": rows.num_rows, "rows": to_rows(rows)})
        return
    shown = rows if limit is not None else rows.slice(0, SHOWN_ROWS)
    print_table(rows.column_names, to_tuples(shown))
    if shown.num_rows < rows.num_rows:
        print_line(f"… and more: these are the first {SHOWN_ROWS}, --limit N shows N")
