"""The log of commands, as the table ``system.storage_commands``: one row a command, whose ``_time`` is its index.

The upper of the shard is the next index. So an append is a compare-and-append at the upper of a fresh head: there are
no gaps, and no index is given out twice. The lives of the senders, and the number of the next command of each, are a
table property, which the commit of the commands sets: what is in the log and what the property says cannot differ.

Two fences stand here. The token is that of the deployment: a switch of its mode raises it, and whoever may still append
takes the new one. The life is that of the sender: who was replaced by a successor has to stop.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Self, TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.collections.mode import lead_to_write
from tidemark.errors import (
    ConflictsUnsettled,
    CorruptState,
    Fenced,
    FencedByEpoch,
    InputsGone,
    ReplacedBySuccessor,
    TidemarkError,
)
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
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind
from tidemark.iceberg.shard.time_travel import ancestry
from tidemark.iceberg.shards import SYSTEM, Shards
from tidemark.storage.commands import Command, command_json, kind_of, parse_command
from tidemark.storage.history import retain
from tidemark.storage.order import Place, Row, Sender, check_from, choose_new

log = logging.getLogger(__name__)

FAIL_POINTS = ("trim.after-write",)
TABLE: Final = "storage_commands"
SENDERS: Final = "tidemark.storage-senders"  # the table property: by name, the life and the number of its next command
TRIM_ABOVE: Final = 50  # data files: each append adds one, and who starts anew reads all of them
KEPT_ROWS: Final = 100  # the newest ones stay, for readers that are behind; so do the snapshots of their commits
KEPT_COMMITS: Final = 20  # and all rows of so many: a worker with many objects says much at once
KEPT_MS: Final = 10_000  # superseded snapshots stay this long for their readers; one that takes longer reads again
JOINS: Final = 3  # for one commit: a switch of the mode fences it once
_WHERE: Final = "the log of storage commands"

Places = Mapping[str, Place]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class ShardCommandLog:
    """Implements ``CommandLog`` for one process.

    Reading needs neither a lead nor a mode. Whoever appends joins the shard, if the mode of the deployment allows that;
    the next switch of the mode fences it, and it joins anew. The lives of senders do not end with that: a newer
    deployment alone takes the log over, and a later life of a name alone replaces the earlier ones.
    """

    shard: Shard
    deployment: Deployment
    clock: Clock
    _writer: Writer | None = None  # None: has not joined, or was fenced since
    _head: ShardHead | None = None  # the last one that was read
    _known: set[str] = field(default_factory=set)  # manifests without a row from ``_next_index`` on
    _next_index: int = 0

    @classmethod
    def open(cls, shards: Shards, *, deployment: Deployment, clock: Clock) -> Self:
        """Open the log, which is made if need be. This fences nobody; ``join`` and ``append`` may."""
        shard = shards.create(TABLE, schema=LOG_SCHEMA, layout=ShardKind.LOG, namespace=SYSTEM)
        return cls(shard, deployment, clock)

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
        """Return the rows from an index on. If nobody committed since the last call, it is one question to the catalog.

        Raises as ``CommandLog.read`` and ``Shard.load``.
        """
        if self._head is None or self.shard.location() != self._head.table.metadata_location:
            self._head = self.shard.load()
        head = self._head
        check_from(from_index, _index(head, head.state.since))
        if from_index >= _index(head, head.state.upper):
            return []
        if from_index < self._next_index:
            self._known.clear()
        try:
            rows = [_row(update) for update in read_changes(head, from_=from_index, known=self._known)]
        except (CorruptState, OSError):
            if self.shard.location() == head.table.metadata_location:
                raise
            self._known.clear()
            return self.read(from_index)  # a trim has removed the files meanwhile
        self._next_index = rows[-1].index + 1 if rows else from_index
        return rows

    def life_of(self, name: str) -> int:
        return 0 if self._head is None else _places(self._head).get(name, Place()).life

    def _commit(self, name: str, change: Callable[[Place | None], tuple[Place, Sequence[Command]]]) -> Place:
        """Add the commands that ``change`` returns for the present place of ``name``, and set its new place."""
        place, head = self._write(lambda writer: _commit(writer, name, change))
        self._trim_if_long(head)
        return place

    def _write(self, step: Callable[[Writer], _Result]) -> _Result:
        """Take a step as a writer, and again after another join if a switch of the mode has fenced the writer.

        Raises:
            ReplacedBySuccessor: As ``step``.
            Others as ``lead_to_write``.
        """
        joins = 0
        while True:
            if self._writer is None:
                self._writer = lead_to_write(self.shard, self.deployment, what="commands")
                joins += 1
            try:
                return step(self._writer)
            except ReplacedBySuccessor:
                raise
            except FencedByEpoch:
                self._writer = None
                if joins == JOINS:
                    raise

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

        The newest ``KEPT_ROWS`` stay. A reader that is further behind has to start over. Raises as ``append``.
        """
        return self._write(self._trim)

    def _trim(self, writer: Writer) -> bool:
        head = self.shard.load()
        writer.check_token(head)
        rows = sorted(map(_row, read_all(head)), key=lambda row: row.index)
        cut = max(min(_index(head, head.state.upper) - KEPT_ROWS, _end_of_old(head)), _index(head, head.state.since))
        kept = [*retain([row for row in rows if row.index < cut]), *(row for row in rows if row.index >= cut)]
        old = frozenset(read_data_files(head.table.io, head.contents))
        files = write_commands(head.table, kept)
        fail_point("trim.after-write")
        publication = Publication(self.shard)
        try:
            for fresh in publication.heads():
                writer.check_token(fresh)
                if old - frozenset(read_data_files(fresh.table.io, fresh.contents)):
                    raise InputsGone(f"another process trimmed {_WHERE}")
                state = publication.next_state(fresh.state, CommitKind.COMPACT, since=cut)
                change = SnapshotChange(operation=Operation.OVERWRITE, added=files, removed=old)
                publication.commit(fresh, Proposal(state=state, main=change))
        except InputsGone:
            _delete(head.table, files)
            return False
        except _LOST:
            _delete(head.table, files)
            raise
        expire(writer, older_than_ms=self.clock.now_ms() - KEPT_MS)
        return True


def _end_of_old(head: ShardHead) -> int:
    """Return the end of the rows that came before the newest ``KEPT_COMMITS``: one of these may have many rows."""
    newest = islice(ancestry(head.table.metadata, head.main.snapshot_id), KEPT_COMMITS + 1)
    summary = [*newest][-1].summary
    return int((summary["tidemark.upper"] if summary else None) or 0)


_LOST: Final = (Fenced, ConflictsUnsettled)  # the table has moved on since each attempt: none of them lands any more


def _commit(
    writer: Writer, name: str, change: Callable[[Place | None], tuple[Place, Sequence[Command]]]
) -> tuple[Place, ShardHead]:
    """Add commands as ``ShardCommandLog._commit``; also return the head before.

    Raises:
        Fenced: If another deployment, or a switch of the mode, took the shard over.
        Others as ``change`` and ``Publication.heads``.
    """
    publication = Publication(writer.shard)
    rows: list[Row] = []
    added: tuple[DataFile, ...] = ()
    try:
        for head in publication.heads():
            writer.check_token(head)
            places = _places(head)
            place, commands = change(places.get(name))
            if place == places.get(name):
                return place, head
            sender, first = Sender(name, place.life), place.next_number - len(commands)
            start = _index(head, head.state.upper)
            present = [Row(start + n, sender, first + n, command) for n, command in enumerate(commands)]
            if present != rows:  # the indexes are in the file, so that a lost attempt leaves one that nobody needs
                _delete(head.table, added)
                rows, added = present, write_commands(head.table, present)
            kind = CommitKind.APPEND if rows else CommitKind.FENCE
            proposal = Proposal(
                state=publication.next_state(head.state, kind, upper=start + len(rows)),
                main=SnapshotChange(operation=Operation.APPEND, added=added),
                set_properties={SENDERS: _places_json({**places, name: place})},
            )
            publication.commit(head, proposal)
    except _LOST:
        if added:
            _delete(head.table, added)
        raise
    return place, head


def _delete(table: Table, files: Sequence[DataFile]) -> None:
    delete_files(table, [file.file_path for file in files])


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
