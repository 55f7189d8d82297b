"""Reads the state of shards in a few ms, for sensors: a row of the catalog and one JSON file; no JVM, no pyiceberg."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from typing import Any, NamedTuple

from tidemark.errors import CorruptState, ForeignTable, UnknownCollection, Unreachable
from tidemark.iceberg.shard.branch_names import STAGED, STAGED_LOWER, is_passing
from tidemark.iceberg.shard.state import ShardState
from tidemark.locations import reading_uri, to_path
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings

CATALOG_NAME = "tidemark"  # the rows of the catalog's tables carry it: Spark and pyiceberg must use the same name
COLLECTIONS, SYSTEM = "collections", "system"
DROPPED = "dropped"  # tables that no collection has any more; made when it is needed first
SYSTEM_PREFIX = "system_"  # of the names of collections that the system writes; users cannot declare them
_LOCATIONS = (
    "SELECT table_name, metadata_location FROM iceberg_tables WHERE catalog_name = {0} AND table_namespace = {0}"
)
ATTEMPTS = 5  # a commit may delete the metadata file between the query and the read: ask again


class ShardSummary(NamedTuple):
    """The status of a shard."""

    state: ShardState
    rows: int  # live rows, by the snapshot's summary
    oldest_ms: int  # when the oldest snapshot that is kept was made, in ms since the Unix epoch
    staged: tuple[str, ...]  # staging branches
    stale: tuple[str, ...]  # those of them with corrections of contents that have changed since
    properties: dict[str, str]  # all properties of the table, whoever set them
    staged_since_ms: int | None = None  # when the oldest of what is staged was staged; None: nothing is
    changes: tuple[int, ...] = ()  # the uppers that changes of the contents left, ascending, as far as history goes

    def first_change_after(self, time: int) -> int | None:
        """Return the upper that the first change after ``time`` left; None without such a change."""
        return next((upper for upper in self.changes if upper > time), None)


def namespace_of(name: str) -> str:
    """Return the namespace of the collection that a reader calls ``name``."""
    return SYSTEM if name.startswith(SYSTEM_PREFIX) else COLLECTIONS


def read_state(settings: Settings, name: str, namespace: str | None = None) -> ShardSummary:
    """Return the state of one shard; without a ``namespace``, of that of ``namespace_of``.

    Raises:
        UnknownCollection: If the shard does not exist.
        Unreachable: If the catalog does not answer.
        ForeignTable: If another tool made the table.
        CorruptState: If the metadata file is damaged, or gone.
    """
    namespace = namespace or namespace_of(name)
    tried = set()
    for _ in range(ATTEMPTS):
        found = _read_locations(settings, namespace, name)
        if name not in found:
            raise UnknownCollection.named(name, _read_locations(settings, namespace))
        location = found[name]
        tried.add(location)
        if (metadata := _read_metadata(location, name)) is not None:
            return _summarise(metadata, name)
    if len(tried) == 1:  # a commit that deletes a metadata file has named another file before
        raise CorruptState(
            f"the metadata file {location.rpartition('/')[2]!r} of {name!r} is gone",
            hint="restore it from a backup; it was removed by hand, or catalog and warehouse are of different backups",
        )
    raise Unreachable(f"the metadata of {name!r} could not be read: it kept moving", hint="try again")


def read_states(settings: Settings, namespace: str = COLLECTIONS) -> dict[str, ShardSummary | CorruptState]:
    """Return the states of all shards in ``namespace`` by name, read one after the other.

    A shard that cannot be read has the error in place of its state. Tables that other tools made, and shards that are
    dropped meanwhile, are left out. Raises ``Unreachable`` if the catalog, or the store, does not answer.
    """
    states: dict[str, ShardSummary | CorruptState] = {}
    for name, location in sorted(_read_locations(settings, namespace).items()):
        with suppress(UnknownCollection, ForeignTable):
            try:
                metadata = _read_metadata(location, name)
                # Without its file the shard has moved on since the catalog was asked: ask again.
                states[name] = _summarise(metadata, name) if metadata else read_state(settings, name, namespace)
            except CorruptState as damage:
                states[name] = damage
    return states


def check_reachable(settings: Settings) -> None:
    """Raise ``Unreachable`` if the catalog's database does not answer within ``settings.connect_timeout_s``."""
    _read_locations(settings, COLLECTIONS, "")


def _read_locations(settings: Settings, namespace: str, *names: str) -> dict[str, str]:
    """Return the metadata files by table, of one namespace, or of at most one table of that name in it."""
    query = _LOCATIONS + " AND table_name = {0}" * len(names)
    return dict(ask_catalog(settings, query, (CATALOG_NAME, namespace, *names)))


def ask_catalog(settings: Settings, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """Return the rows of ``query``, with ``{0}`` for each of ``values``; none if the table, or the file, is not there.

    Raises ``Unreachable`` if the catalog's database does not answer within ``settings.connect_timeout_s``.
    """
    ask = _query_sqlite if settings.catalog_is_sqlite else _query_postgres
    return ask(settings, query, values)


def _query_sqlite(settings: Settings, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    path = settings.catalog_path
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(reading_uri(path), uri=True, timeout=settings.connect_timeout_s)) as connection:
            return connection.execute(query.format("?"), values).fetchall()
    except sqlite3.Error as error:
        if "no such table" in str(error):
            return []
        raise Unreachable(
            f"the catalog {path.name!r} cannot be read: {error}", hint="check TIDEMARK_CATALOG_URI"
        ) from error


def _query_postgres(settings: Settings, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    import psycopg  # noqa: PLC0415  # the embedded case does without it

    try:
        with psycopg.connect(
            settings.catalog_uri.reveal(), connect_timeout=max(2, int(settings.connect_timeout_s))
        ) as connection:
            return connection.execute(query.format("%s"), values).fetchall()
    except psycopg.errors.UndefinedTable:
        return []
    except psycopg.Error as error:
        raise Unreachable(
            f"the catalog at {settings.catalog_uri.where} cannot be reached: {first_line(error)}",
            hint="check TIDEMARK_CATALOG_URI",
        ) from error


def _read_metadata(location: str, shard: str) -> dict[str, Any] | None:
    file = location.rpartition("/")[2]
    try:
        text = _read_bytes(location)
    except FileNotFoundError:
        return None
    except OSError as error:  # of a file system, or of an object store
        raise Unreachable(
            f"the metadata file {file!r} cannot be read: {error}",
            hint="check TIDEMARK_WAREHOUSE, and that the store answers and lets this process read",
        ) from error
    try:
        metadata = json.loads(text)
        if not isinstance(metadata, dict):
            raise TypeError(f"it holds a {type(metadata).__name__}, not an object")
    except (ValueError, TypeError) as error:
        raise CorruptState(
            f"the metadata file {file!r} of {shard!r} is damaged: {error}", hint="restore it from a backup"
        ) from error
    return metadata


def _read_bytes(location: str) -> bytes:
    if (local := to_path(location)) is not None:
        return local.read_bytes()
    from pyarrow import fs  # noqa: PLC0415  # object stores only

    filesystem, path = fs.FileSystem.from_uri(location)
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _summarise(metadata: dict[str, Any], name: str) -> ShardSummary:
    properties = metadata.get("properties") or {}  # a table may have none
    if "tidemark.kind" not in properties:
        raise ForeignTable(f"{name!r} is an Iceberg table that Tidemark did not make", hint="choose another name")
    state = ShardState.parse(properties, shard=name)
    try:
        refs = metadata["refs"]
        own = (refs.get("tidemark-main") or refs["main"])["snapshot-id"]
        summaries = {snapshot["snapshot-id"]: snapshot["summary"] for snapshot in metadata["snapshots"]}
        times = {snapshot["snapshot-id"]: int(snapshot["timestamp-ms"]) for snapshot in metadata["snapshots"]}
        totals = summaries[own]
        rows = int(totals.get("total-records", 0)) - int(totals.get("total-position-deletes", 0))
        staged = sorted(ref for ref in refs if ref.startswith(STAGED) and not is_passing(ref))
        lowers = {ref: summaries[refs[ref]["snapshot-id"]].get(STAGED_LOWER) for ref in staged}
        staged_since_ms = min((times[refs[ref]["snapshot-id"]] for ref in staged), default=None)
        texts = {summary.get("tidemark.changed", "").partition(" ")[0] for summary in summaries.values()}
        changes = {int(text) for text in texts if text.isdecimal()}
        stale = [ref for ref, lower in lowers.items() if lower and not state.still_shows(int(lower))]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptState(
            f"the metadata of {name!r} lacks what every commit leaves behind: {error!r}",
            hint=f"of a collection: run `tidemark repair {name}`; else restore its metadata file from a backup",
        ) from error
    return ShardSummary(
        state=state,
        rows=rows,
        oldest_ms=min(times.values()),
        staged=tuple(staged),
        stale=tuple(stale),
        properties=properties,
        staged_since_ms=staged_since_ms,
        changes=tuple(sorted(changes)),
    )
