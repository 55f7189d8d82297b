"""`tidemark buffer …`: make a write buffer, write to it, look at what it holds and at who has read it."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.cli.buffers import ingest as ingesting
from tidemark.cli.buffers.simulate import simulate
from tidemark.cli.console import print_line, print_result, print_table
from tidemark.cli.options import AsJson
from tidemark.clock import SystemClock
from tidemark.errors import InputMissing, StaleState, Unreachable, UsageError
from tidemark.settings import Settings
from tidemark.write_buffer.address import find_connection
from tidemark.write_buffer.back_end import Connection
from tidemark.write_buffer.errors import UnknownSequencer
from tidemark.write_buffer.formats.decode import decode_entry
from tidemark.write_buffer.formats.entry import BadMessage, Delivered
from tidemark.write_buffer.keys import keep_keys, read_keys
from tidemark.write_buffer.ranges import read_range
from tidemark.write_buffer.reader import Reader
from tidemark.write_buffer.registry import open_reader, open_writer
from tidemark.write_buffer.split_files import split_json_rows, split_points

log = logging.getLogger(__name__)

READ_S = 10.0  # how long an entry of the log may take to arrive

buffer = typer.Typer(
    name="buffer", help="Write buffers: ordered logs of writes, in a folder or in Kafka.", no_args_is_help=True
)

buffer.command()(ingesting.ingest)
buffer.command()(ingesting.partitions)
buffer.command()(ingesting.persist)
buffer.command()(ingesting.compact)
buffer.command()(ingesting.unload)
buffer.command()(ingesting.replay)
buffer.command()(simulate)
buffer.add_typer(ingesting.quarantine)


class RowFormat(StrEnum):
    """How the rows of a file are written."""

    JSON = "json"
    LINE_PROTOCOL = "line-protocol"


BufferName = Annotated[
    str,
    typer.Argument(
        metavar="BUFFER",
        help="file:///FOLDER, kafka://HOST:PORT/TOPIC, or NAME for the address in TIDEMARK_BUFFER_NAME, "
        "where a password belongs.",
    ),
]
Sequencers = Annotated[int | None, typer.Option(min=1, metavar="N", help="How many sequencers a new buffer gets.")]
RowFile = Annotated[Path, typer.Argument(metavar="FILE", help="One row a line; - for standard input.")]
Format = Annotated[RowFormat, typer.Option("--format", help="JSON objects, or InfluxDB line protocol.")]
Table = Annotated[str | None, typer.Option(metavar="T", help="The table of JSON rows without a member _table.")]
Key = Annotated[
    str | None, typer.Option(metavar="COLUMN,…", help="The key of JSON rows: rows of one key go to one sequencer.")
]
Sequencer = Annotated[int | None, typer.Option(min=0, metavar="N", help="Only this sequencer.")]
OneSequencer = Annotated[int, typer.Option("--sequencer", min=0, metavar="N", help="The sequencer.")]
RowsPerEntry = Annotated[int, typer.Option(min=1, metavar="N", help="At most N rows in one entry.")]
From = Annotated[int, typer.Option("--from", min=0, metavar="NUMBER", help="The first number to read.")]
EntryLimit = Annotated[int, typer.Option(min=0, metavar="N", help="At most N entries of each sequencer.")]
To = Annotated[str, typer.Option(metavar="NUMBER|earliest|watermark", help="Where to stand.")]


@buffer.command()
def create(name: BufferName, *, sequencers: Sequencers = None, as_json: AsJson = False) -> None:
    """Make the buffer, unless there is one: that one is then left as it is, and shown."""
    connection = find_connection(name, os.environ)
    if sequencers is not None:
        connection = replace(connection, sequencers=sequencers)
    with open_reader(connection, create=True) as reader:
        ids = sorted(reader.sequencer_ids())
        shown = {"buffer": reader.name, "type": connection.type, "identity": reader.identity, "sequencers": ids}
    print_result(shown, ["what", "is"], [(what, str(value)) for what, value in shown.items()], as_json=as_json)


@buffer.command()
def write(
    name: BufferName,
    file: RowFile,
    *,
    format_: Format = RowFormat.JSON,
    table: Table = None,
    key: Key = None,
    sequencer: Sequencer = None,
    rows_per_entry: RowsPerEntry = 1_000,
    as_json: AsJson = False,
) -> None:
    """Write the rows of FILE, all of them or, if one of them is no row, none.

    Rows of one key always go to the same sequencer: name the key of JSON rows; points in line protocol have theirs. The
    buffer keeps the key of each table: later writes need not name it, and cannot name another.
    """
    if format_ is RowFormat.LINE_PROTOCOL and (table or key):
        raise UsageError("line protocol names its tables and keys itself", hint="leave out --table and --key")
    payload = _read_file(file)
    connection, clock = find_connection(name, os.environ), SystemClock()
    with open_writer(connection, clock=clock) as writer:
        if sequencer is not None:
            writer.check_sequencer(sequencer)
        ids, kept = writer.sequencer_ids(), read_keys(connection)
        if format_ is RowFormat.JSON:
            columns = key.split(",") if key else []
            split = split_json_rows(
                payload, ids, table=table, key=columns, sequencer_id=sequencer, rows_per_entry=rows_per_entry, kept=kept
            )
        else:
            split = split_points(payload, ids, sequencer_id=sequencer, rows_per_entry=rows_per_entry, kept=kept)
        if new := {table: key for table, key in split.keys.items() if table not in kept}:
            keep_keys(connection, new, clock=clock)  # before the first row of that key
        written = []
        for sequencer_id, entries in sorted(split.entries.items()):
            answers = writer.store_entries(entries, sequencer_id)
            numbers = [answer.sequence.number for answer in answers]
            if numbers:
                written.append(
                    {"sequencer": sequencer_id, "entries": len(numbers), "first": numbers[0], "last": numbers[-1]}
                )
        shown = {"buffer": writer.name, "written": written}
    _print_rows(shown, "written", ["sequencer", "entries", "first", "last"], as_json=as_json)


@buffer.command()
def read(
    name: BufferName,
    *,
    sequencer: Sequencer = None,
    from_: From = 0,
    limit: EntryLimit = 10,
    table: Table = None,
    as_json: AsJson = False,
) -> None:
    """Show entries and their rows, up to what the buffer holds now; nothing is taken out of it."""
    with open_reader(find_connection(name, os.environ)) as reader:
        found = []
        for sequencer_id in _chosen(reader, sequencer):
            entries = read_range(reader, sequencer_id, from_, limit=limit, stalled_s=READ_S)
            found += [_shown(delivered, table) for delivered in entries]
        shown = {"buffer": reader.name, "entries": found}
    rows = [
        (entry["sequencer"], entry["number"], entry["time_ms"], row.get("table", ""), row.get("values", row))
        for entry in found
        for row in (*entry["rows"], *entry["bad"])
    ]
    print_result(shown, ["sequencer", "number", "time_ms", "table", "row"], rows, as_json=as_json)


@buffer.command()
def status(name: BufferName, *, as_json: AsJson = False) -> None:
    """Show what each sequencer holds, and how far and how far behind the collections are that read it.

    Also the collections that declare `writes_to` it: what is appended to them goes here.
    """
    connection = find_connection(name, os.environ)
    with open_reader(connection) as reader:
        found = []
        for sequencer_id in _chosen(reader, None):
            earliest, watermark = reader.fetch_earliest(sequencer_id), reader.fetch_high_watermark(sequencer_id)
            last = read_range(reader, sequencer_id, max(watermark - 1, earliest), limit=1, stalled_s=READ_S)
            found.append(
                {
                    "sequencer": sequencer_id,
                    "earliest": earliest,
                    "watermark": watermark,
                    "entries": watermark - earliest,
                    "last_time_ms": last[0].time_ms if last else None,
                }
            )
        of_buffer = {"buffer": reader.name, "type": connection.type, "identity": reader.identity, "sequencers": found}
        shown: dict[str, Any] = of_buffer | _collections(reader, connection)
    _print_rows(shown, "sequencers", ["sequencer", "earliest", "watermark", "entries", "last_time_ms"], as_json=as_json)
    if as_json:
        return
    if progress := shown["collections"]:
        columns = ["collection", "sequencer", "committed", "published", "lag", "lag_ms"]
        print_table(columns, [[row[column] for column in columns] for row in progress], title="collections")
    if waiting := shown["waiting_batches"]:
        told = ", ".join(f"{count} for {name}" for name, count in waiting.items())
        print_line(f"appended batches that wait for an ingest: {told}")
    if writers := shown["writers"]:
        print_line(f"written to by appends to: {', '.join(writers)}")


@buffer.command()
def seek(name: BufferName, *, sequencer: OneSequencer, to: To, as_json: AsJson = False) -> None:
    """Show what a reader that stands at a number gets next; 66 if entries from there on are gone already.

    Where readers stand is not kept in a buffer: progress is committed with the data.
    """
    with open_reader(find_connection(name, os.environ)) as reader:
        _chosen(reader, sequencer)
        number = _number(to, reader, sequencer)
        earliest, watermark = reader.fetch_earliest(sequencer), reader.fetch_high_watermark(sequencer)
        following = read_range(reader, sequencer, number, limit=1, stalled_s=READ_S)
        shown = {
            "buffer": reader.name,
            "sequencer": sequencer,
            "asked": number,
            "next": following[0].sequence.number if following else None,
            "next_time_ms": following[0].time_ms if following else None,
            "earliest": earliest,
            "watermark": watermark,
        }
    print_result(shown, list(shown), [list(shown.values())], as_json=as_json)


def _collections(reader: Reader, connection: Connection) -> dict[str, Any]:
    """Return what is told of collections that read the buffer, and that write here.

    Nothing if this machine has no installation.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without Kafka
    from tidemark.ingest.progress import count_waiting_batches, find_writers, read_progress  # noqa: PLC0415

    settings = Settings.load(os.environ)
    told: dict[str, Any] = {"collections": [], "waiting_batches": {}, "writers": []}
    if settings.catalog_is_sqlite and not settings.catalog_path.exists():
        return told
    try:
        declared = deployment_of(settings).registry.read().declarations.values()
        told["writers"] = find_writers(declared, connection, settings.connections)
        progress = read_progress(settings, declared, reader, connection, now_ms=SystemClock().now_ms())
        told["collections"] = [row.to_json() for row in progress]
        told["waiting_batches"] = count_waiting_batches(settings, declared, reader, connection)
    except (Unreachable, StaleState) as error:  # the user asked about the buffer, and the buffer answers
        log.warning("how far collections are cannot be told: %s", error)
    return told


def _read_file(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputMissing(f"{str(file)!r} cannot be read: {error.strerror}", hint="name a file of rows") from error


def _chosen(reader: Reader, sequencer_id: int | None) -> list[int]:
    known = sorted(reader.sequencer_ids())
    if sequencer_id is None:
        return known
    if sequencer_id not in known:
        raise UnknownSequencer.named(sequencer_id, known, buffer=reader.name)
    return [sequencer_id]


def _number(text: str, reader: Reader, sequencer_id: int) -> int:
    if text.isdecimal():
        return int(text)
    if text == "earliest":
        return reader.fetch_earliest(sequencer_id)
    if text == "watermark":
        return reader.fetch_high_watermark(sequencer_id)
    raise UsageError(f"{text!r} is no place in a log", hint="give a number, earliest or watermark")


def _shown(delivered: Delivered, table: str | None) -> dict[str, Any]:
    place = {
        "sequencer": delivered.sequence.sequencer_id,
        "number": delivered.sequence.number,
        "time_ms": delivered.time_ms,
    }
    if isinstance(delivered, BadMessage):
        bad = {"reason": delivered.reason, "detail": delivered.detail, "raw": delivered.message.payload}
        return {**place, "format": None, "rows": [], "bad": [bad]}
    rows = decode_entry(delivered, default_table=table)
    return {
        **place,
        "format": delivered.entry.format,
        "rows": [{"table": row.table, "values": row.values} for row in rows.good],
        "bad": [{"reason": bad.reason, "detail": bad.detail, "raw": bad.raw} for bad in rows.bad],
    }


def _print_rows(shown: dict[str, Any], member: str, columns: list[str], *, as_json: bool) -> None:
    """Print all of ``shown`` as JSON, or the rows of one member as a table."""
    rows = [[row[column] for column in columns] for row in shown[member]]
    print_result(shown, columns, rows, as_json=as_json, title=shown["buffer"])
