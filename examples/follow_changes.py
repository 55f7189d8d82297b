"""A downstream job: seats per manufacturer, kept up to date from the corrections of ``planes`` alone.

``python -m examples.follow_changes RESULT.db`` reads what was corrected since its last run, and nothing else. The
result and the time that it is at are stored in one transaction, so a run that dies has done nothing, and a run that
is repeated finds nothing to do. A hold keeps the history that the next run needs.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark import Settings, Shards, SystemClock, changes_arrow, deployment_of, read_arrow, take_hold
from tidemark.errors import AsOfBeforeSince, TidemarkError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark import Shard

READER = "seats-per-manufacturer"
HOLD_MS = 7 * 24 * 60 * 60 * 1000  # a reader that stays away longer starts over; history does not wait for ever

TABLES = """
CREATE TABLE IF NOT EXISTS seats (manufacturer TEXT PRIMARY KEY, seats INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS position (time INTEGER NOT NULL);
"""
ADD = """
INSERT INTO seats VALUES (?, ?) ON CONFLICT (manufacturer) DO UPDATE SET seats = seats + excluded.seats
"""


def follow(shard: Shard, result: Path, settings: Settings, *, now_ms: int) -> int:
    """Bring ``result`` up to the shard's present upper; return how many updates that took."""
    with closing(sqlite3.connect(result)) as database:
        database.executescript(TABLES)
        stored = database.execute("SELECT time FROM position").fetchone()
        upper = shard.load().state.upper
        try:
            updates = changes_arrow(shard, stored[0], upper) if stored else None
        except AsOfBeforeSince:  # the hold ran out and the history is gone
            updates = None
        if updates is None:  # from the start: the contents at one time, then the changes from there on
            updates = read_arrow(shard, as_of=upper - 1)
            database.execute("DELETE FROM seats")
        add(database, updates)
        database.execute("DELETE FROM position")
        database.execute("INSERT INTO position VALUES (?)", (upper,))
        database.commit()  # result and position, or neither
    until_ms = now_ms + HOLD_MS  # after the commit: too much history does no harm
    take_hold(shard, READER, since=upper - 1, expires_at_ms=until_ms, deployment=deployment_of(settings))
    return int(updates.num_rows)


def add(database: sqlite3.Connection, updates: pa.Table) -> None:
    """Add each row's seats as often as its ``_diff`` says; the contents have none, and count once."""
    for row in updates.to_pylist():
        database.execute(ADD, (row["manufacturer"], (row["seats"] or 0) * row.get("_diff", 1)))


def main(argv: list[str]) -> int:
    """Follow ``planes`` into the database that the command line names."""
    parser = argparse.ArgumentParser(prog="follow_changes", description="Seats per manufacturer, from `planes`.")
    parser.add_argument("result", type=Path, metavar="RESULT.db", help="SQLite file; made if it is not there")
    arguments = parser.parse_args(argv)
    settings = Settings.load(os.environ)
    shard = Shards.connect(settings).open("planes")
    try:
        count = follow(shard, arguments.result, settings, now_ms=SystemClock().now_ms())
    except TidemarkError as error:  # such as a collection that was never reconciled: the next run starts over
        parser.exit(error.exit_code, f"{error}\n→ {error.hint}\n")
    sys.stdout.write(f"{count} updates\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
