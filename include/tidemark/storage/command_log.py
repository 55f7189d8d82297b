"""The log of commands, as the table ``system.storage_commands``: one row a command, whose ``_time`` is its index.

The upper of the shard is the next index. So an append is a compare-and-append at the upper of a fresh head: there are
no gaps, and no index is given out twice. The lives of the senders, and the number of the next command of each, are a
table property, which the commit of the commands sets: what is in the log and what the property says cannot differ.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from tidemark.clock import Clock
from tidemark.errors import CorruptState, InputsGone, TidemarkError
from tidemark.fail_points import fail_point
from tidemark.frontier import Frontier
from tidemark.iceberg.commit.branch_commit import delete_files
from tidemark.iceberg.commit.publisher import Proposal, Publication
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.commit.writer import Writer
from tidemark.iceberg.files.data_files import write_rows
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.log import LOG_SCHEMA, TimedUpdate, read_all, read_changes
from tidemark.iceberg.maintenance.expiry import expire
from tidemark.iceberg.shard.column_names import DIFF, TIME
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.storage.commands import Command, command_json, kind_of, parse_command
from tidemark.storage.history import retain
from tidemark.storage.order import Place, Row, Sender, check_from, choose_new

log = logging.getLogger(__name__)

FAIL_POINTS = ("trim.after-write",)
TABLE: Final = "storage_commands"
SENDERS: Final = "tidemark.storage-senders"  # the table property: by name, the life and the number of its next command
TRIM_ABOVE: Final = 100  # data files: each append adds one, and who starts anew reads all of them
KEPT_ROWS: Final = 1_000  # the newest ones stay, for readers that are behind
KEPT_MS: Final = 60_000  # superseded snapshots stay this long for their readers, who take a moment
_WHERE: Final = "the log of storage commands"

Places = Mapping[str, Place]


@dataclass(slots=True)
class ShardCommandLog:
    """Implements ``CommandLog`` for one process; fenced with the deployment."""

    writer: Writer
    clock: Clock
    _known: set[str] = field(default_factory=set)  # manifests without a row from ``_next_index`` on
    _next_index: int = 0

    @classmethod
    def open(cls, shards: Shards, *, generation: int, clock: Clock) -> Self:
        """Open the log, which is made if need be; the first process of a newer deployment fences the older one.

        Raises ``FencedByGeneration`` if a newer deployment leads.
        """
        shard = shards.create(TABLE, schema=LOG_SCHEMA, layout=ShardKind.LOG, namespace=SYSTEM)
        return cls(Writer.lead(shard, generation), clock)

    def join(self, name: str) -> Sender:
        place = self._commit(name, lambda place: ((place or Place()).next_life(), ()))
        return Sender(name, place.life)

    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        def add(place: Place | None) -> tuple[Place, Sequence[Command]]:
            new = choose_new(sender, place, first_number, commands)
            known = 0 if place is None else place.next_number
            return Place(sender.life, max(known, first_number + len(commands))), new

        self._commit(sender.name, add)

    def read(self, from_index: int) -> list[Row]:
        head = self.writer.shard.load()
        check_from(from_index, _index(head, head.state.since))
        if from_index >= _index(head, head.state.upper):
            return []
        if from_index < self._next_index:
            self._known.clear()
        rows = [_row(update) for update in read_changes(head, from_=from_index, known=self._known)]
        self._next_index = rows[-1].index + 1 if rows else from_index
        return rows

    def _commit(self, name: str, change: Callable[[Place | None], tuple[Place, Sequence[Command]]]) -> Place:
        """Add the commands that ``change`` returns for the present place of ``name``, and set its new place.

        Raises:
            Fenced: If another deployment, or a switch of the mode, took the shard over.
            Others as ``Publication.heads``.
        """
        publication = Publication(self.writer.shard)
        for head in publication.heads():
            self.writer.check_token(head)
            places = _places(head)
            place, commands = change(places.get(name))
            if place == places.get(name):
                return place
            sender, first = Sender(name, place.life), place.next_number - len(commands)
            start = _index(head, head.state.upper)
            rows = [Row(start + n, sender, first + n, command) for n, command in enumerate(commands)]
            added = write_commands(head.table, rows)  # new files for each attempt: the index is in them
            kind = CommitKind.APPEND if rows else CommitKind.FENCE
            proposal = Proposal(
                state=publication.next_state(head.state, kind, upper=start + len(rows)),
                main=SnapshotChange(operation=Operation.APPEND, added=added),
                set_properties={SENDERS: _places_json({**places, name: place})},
            )
            publication.commit(head, proposal)
        self._trim_if_long(head)
        return place

    def _trim_if_long(self, head: ShardHead) -> None:
        """Trim a log that has grown; only log a failure: the commands are there, and the next append trims."""
        summary = head.contents.summary
        if summary is None or int(summary["total-data-files"] or 0) < TRIM_ABOVE:
            return
        try:
            self.trim()
        except TidemarkError as error:
            log.warning("%s was not trimmed, which the next append tries again: %s", _WHERE, error)

    def trim(self) -> bool:
        """Rewrite the log as one file, without what does not count any more; return whether it was rewritten.

        The newest ``KEPT_ROWS`` stay. A reader that is further behind has to start over.

        Raises ``Fenced`` if another deployment, or a switch of the mode, took the shard over.
        """
        shard = self.writer.shard
        head = shard.load()
        self.writer.check_token(head)
        rows = sorted(map(_row, read_all(head)), key=lambda row: row.index)
        cut = max(_index(head, head.state.upper) - KEPT_ROWS, _index(head, head.state.since))
        kept = [*retain([row for row in rows if row.index < cut]), *(row for row in rows if row.index >= cut)]
        old = frozenset(read_data_files(head.table.io, head.contents))
        files = write_commands(head.table, kept)
        fail_point("trim.after-write")
        publication = Publication(shard)
        try:
            for fresh in publication.heads():
                self.writer.check_token(fresh)
                if old - frozenset(read_data_files(fresh.table.io, fresh.contents)):
                    raise InputsGone(f"another process trimmed {_WHERE}")
                state = publication.next_state(fresh.state, CommitKind.COMPACT, since=cut)
                change = SnapshotChange(operation=Operation.OVERWRITE, added=files, removed=old)
                publication.commit(fresh, Proposal(state=state, main=change))
        except InputsGone:
            delete_files(head.table, [file.file_path for file in files])
            return False
        expire(self.writer, older_than_ms=self.clock.now_ms() - KEPT_MS)
        return True


def write_commands(table: Table, rows: Sequence[Row]) -> tuple[DataFile, ...]:
    """Write rows as a data file of the log; nothing becomes visible."""
    columns = {
        "kind": pa.array([kind_of(row.command) for row in rows], pa.string()),
        "key": pa.array([f"{row.sender}/{row.number}" for row in rows], pa.string()),
        "value": pa.array([command_json(row.command) for row in rows], pa.string()),
        TIME: pa.array([row.index for row in rows], pa.int64()),
        DIFF: pa.array([1] * len(rows), pa.int64()),
    }
    return write_rows(table, pa.table(columns))


def _row(update: TimedUpdate) -> Row:
    sender, _, number = update.key.rpartition("/")
    try:
        return Row(update.time, Sender.parse(sender), int(number), parse_command(update.kind, update.value))
    except ValueError as error:
        raise _damaged(f"the key {update.key!r} of index {update.time} names no sender and number") from error


def _places(head: ShardHead) -> dict[str, Place]:
    text = head.table.metadata.properties.get(SENDERS, "{}")
    try:
        return {name: Place(int(life), int(number)) for name, (life, number) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(f"its property {SENDERS} is damaged: {text!r}") from error


def _places_json(places: Places) -> str:
    return json.dumps({name: [place.life, place.next_number] for name, place in sorted(places.items())})


def _index(head: ShardHead, frontier: Frontier) -> int:
    if isinstance(frontier, int):
        return frontier
    return head.state.open_upper(_WHERE, hint="this installation was closed for good")  # raises: it is sealed


def _damaged(why: str) -> CorruptState:
    return CorruptState(
        f"{_WHERE} cannot be read: {why}",
        hint=f"stop all workers, drop the table {SYSTEM}.{TABLE}, and start them anew: it is made again",
    )
