"""The collections of a stash inside one open transaction: update logs of texts, each with its since and its upper.

Readable times are ``[since, upper)``, in ms since the Unix epoch; in steady state ``since == upper - 1``, so that one
time is readable. A NULL frontier in the tables is EMPTY.

Source: reference/collections_catalog_storage.md, sections 3.1 and 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tidemark.catalog.stash.connection import StashConnection
from tidemark.errors import CorruptState, InvalidFrontier, NotWritable, NotYetAvailable, UpperMismatch
from tidemark.frontier import EMPTY, Frontier

if TYPE_CHECKING:
    import pyarrow as pa

DATA_COLUMNS = ("collection_id", "key", "value", "time", "diff")
_RESTORE = "somebody else wrote to the stash's tables: restore them from a backup of its database"


class Entry(NamedTuple):
    """A signed multiplicity of a key and value, both texts."""

    key: str
    value: str
    diff: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatch:
    """Entries at ``time`` for one collection, and its frontiers after them; ``lower`` is the upper before.

    If there are entries, ``lower <= time < upper``; always ``since <= upper``.
    """

    collection: str
    lower: Frontier
    upper: Frontier
    time: int
    since: Frontier
    entries: Sequence[Entry] = ()

    @classmethod
    def at(cls, collection: str, time: int, entries: Sequence[Entry] = (), *, lower: Frontier) -> AppendBatch:
        """Return the ordinary batch: afterwards exactly ``time`` is readable."""
        return cls(collection=collection, lower=lower, upper=time + 1, time=time, since=time, entries=entries)


@dataclass(frozen=True, slots=True)
class StoredCollection:
    """The number of a collection in the tables, and its frontiers."""

    collection_id: int
    since: Frontier
    upper: Frontier


class StashCollections:
    """Reads and changes collections in the transaction that is open on ``connection``.

    Methods that change something raise ``NotWritable`` if the stash is open read-only. Methods that read a collection
    raise ``InvalidFrontier`` if the collection's since is EMPTY.
    """

    def __init__(self, connection: StashConnection, *, writable: bool) -> None:
        self._connection = connection
        self._writable = writable
        self._stored: dict[str, StoredCollection] | None = None
        self._ids_to_consolidate: set[int] = set()  # of the collections known to hold retractions or superfluous rows

    def stored(self) -> Mapping[str, StoredCollection]:
        """Return all collections by name."""
        if self._stored is None:
            rows = self._connection.query(
                "SELECT c.name, c.collection_id, s.since, u.upper FROM collections c"
                " JOIN sinces s ON s.collection_id = c.collection_id JOIN uppers u ON u.collection_id = c.collection_id"
            )
            self._stored = {
                name: StoredCollection(number, EMPTY if since is None else since, EMPTY if upper is None else upper)
                for name, number, since, upper in rows
            }
        return self._stored

    def create(self, name: str) -> StoredCollection:
        """Return the collection ``name``; make one with since and upper 0 if it does not exist."""
        if name in self.stored():
            return self.stored()[name]
        self._check_writable("creating a collection")
        statement = "INSERT INTO collections (name) VALUES (?) RETURNING collection_id"
        number = self._connection.query(statement, [name])[0][0]
        self._connection.insert("sinces", ("collection_id", "since"), [(number, 0)])
        self._connection.insert("uppers", ("collection_id", "upper"), [(number, 0)])
        return self._remember(name, StoredCollection(number, 0, 0))

    # -- writing ---------------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[AppendBatch]) -> None:
        """Append all batches; if one batch is refused, append none, even if the caller goes on after the error.

        Raises:
            UpperMismatch: If a batch's ``lower`` is not the upper of its collection.
            InvalidFrontier: If a batch's time is outside ``[lower, upper)``, or the batch lowers the since or moves the
                since beyond the upper.
        """
        self._check_writable("appending")
        before, ids_before = dict(self.stored()), set(self._ids_to_consolidate)
        self._connection.execute("SAVEPOINT append")
        try:
            for batch in batches:
                stored = self._get(batch.collection)
                if stored.upper != batch.lower:
                    raise UpperMismatch(batch.lower, stored.upper)
                if batch.entries and batch.time >= batch.upper:
                    raise InvalidFrontier(
                        f"entries of {batch.collection!r} at {batch.time} are not below the new upper {batch.upper}"
                    )
                self.update(batch.collection, batch.time, batch.entries)
                self.seal(batch.collection, batch.upper)
                self.compact(batch.collection, batch.since)
        except (UpperMismatch, InvalidFrontier):
            self._connection.execute("ROLLBACK TO SAVEPOINT append")
            self._stored, self._ids_to_consolidate = before, ids_before
            raise
        self._connection.execute("RELEASE SAVEPOINT append")

    def update(self, name: str, time: int, entries: Sequence[Entry]) -> None:
        """Add entries at ``time`` and move no frontier.

        Raises ``InvalidFrontier`` if ``time`` is below the upper.
        """
        self._check_writable("an update")
        stored = self._get(name)
        if stored.upper > time:
            raise InvalidFrontier(f"an update of {name!r} at time {time} comes too late: its upper is {stored.upper}")
        if not entries:
            return
        rows = ((stored.collection_id, key, value, time, diff) for key, value, diff in entries)
        self._connection.insert("data", DATA_COLUMNS, rows)
        if any(entry.diff < 0 for entry in entries):
            self._ids_to_consolidate.add(stored.collection_id)

    def update_many(self, batches: Iterable[pa.RecordBatch], time: int) -> int:
        """Add any number of updates at ``time`` without moving a frontier; return the number of updates.

        ``batches`` have the columns ``kind`` (the collection's name), ``key``, ``value`` and ``diff``. Raises
        ``InvalidFrontier`` if a collection does not exist, or ``time`` is below its upper.
        """
        self._check_writable("an update")
        count = 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal count
            for batch in batches:
                count += batch.num_rows
                yield self._numbered(batch, time)

        self._connection.insert_batches("data", rows())
        return count

    def seal(self, name: str, upper: Frontier) -> None:
        """Raise the upper; EMPTY closes the collection for ever.

        Raises ``InvalidFrontier`` if ``upper`` is below the present upper.
        """
        self._check_writable("a seal")
        stored = self._get(name)
        if upper < stored.upper:
            raise InvalidFrontier(f"seal of {name!r} to {upper}: its upper is {stored.upper} already")
        self._set_frontier("upper", stored.collection_id, upper)
        self._remember(name, replace(stored, upper=upper))

    def compact(self, name: str, since: Frontier) -> None:
        """Give up the history below ``since``; EMPTY gives up everything.

        Raises ``InvalidFrontier`` if ``since`` is below the present since, or beyond the upper.
        """
        self._check_writable("a compaction")
        stored = self._get(name)
        if since < stored.since:
            raise InvalidFrontier(f"compaction of {name!r} to {since}: its since is {stored.since} already")
        if since > stored.upper:
            raise InvalidFrontier(f"compaction of {name!r} to {since}, beyond its upper {stored.upper}")
        self._set_frontier("since", stored.collection_id, since)
        if not isinstance(since, int):
            self._ids_to_consolidate.add(stored.collection_id)
        self._remember(name, replace(stored, since=since))

    # -- reading ---------------------------------------------------------------------------------------------------

    def peek(self, name: str, key: str | None = None, *, is_small: bool = False) -> Iterator[Entry]:
        """Yield what the collection holds at ``upper - 1``, each key and value once; only under ``key`` if given.

        ``is_small`` promises few entries: they are fetched at once, in fewer round trips to the server. Raises
        ``NotYetAvailable`` if the collection was never sealed beyond its since.
        """
        stored = self._get(name)
        if not isinstance(stored.since, int):
            raise InvalidFrontier(f"{name!r} cannot be read: its since is empty")
        if stored.since >= stored.upper:
            raise NotYetAvailable(f"{name!r} has no readable time yet: since {stored.since}, upper {stored.upper}")
        conditions: dict[str, object] = {"collection_id = ?": stored.collection_id}
        if isinstance(stored.upper, int):
            conditions["time < ?"] = stored.upper
        if key is not None:
            conditions["key = ?"] = key
        statement = (
            f"SELECT key, value, CAST(SUM(diff) AS BIGINT) FROM data WHERE {' AND '.join(conditions)}"  # noqa: S608 - ours
            " GROUP BY key, value HAVING SUM(diff) <> 0"
        )
        is_bounded = is_small or key is not None
        read = self._connection.query if is_bounded else self._connection.stream
        yield from (Entry(*row) for row in read(statement, list(conditions.values())))

    def peek_one(self, name: str, key: str | None = None, *, is_small: bool = False) -> dict[str, str]:
        """Return the values by key at ``upper - 1``; arguments as for ``peek``.

        Raises:
            CorruptState: If a key has two values ("duplicate keys"), or a multiplicity is not 1.
            NotYetAvailable: If the collection was never sealed beyond its since.
        """
        values: dict[str, str] = {}
        for entry in self.peek(name, key, is_small=is_small):
            if entry.diff != 1:
                raise CorruptState(f"unexpected multiplicity {entry.diff} of {name} {entry.key[:200]}", hint=_RESTORE)
            if entry.key in values:
                raise CorruptState(f"duplicate keys: a second value of {name} {entry.key[:200]}", hint=_RESTORE)
            values[entry.key] = entry.value
        return values

    def count_updates(self) -> int:
        """Return the number of stored updates of all collections."""
        return int(self._connection.query("SELECT COUNT(*) FROM data")[0][0])

    def find_unconsolidated(self) -> None:
        """Add the collections that earlier writers left unconsolidated to ``unconsolidated``."""
        rows = self._connection.query(
            "SELECT collection_id FROM data WHERE diff < 0 UNION SELECT s.collection_id FROM sinces s"
            " WHERE s.since IS NULL AND EXISTS (SELECT 1 FROM data d WHERE d.collection_id = s.collection_id)"
        )
        self._ids_to_consolidate |= {row[0] for row in rows}

    def unconsolidated(self) -> dict[int, Frontier]:
        """Return the sinces, by id, of the collections known to hold updates that can be summed up."""
        ids = self._ids_to_consolidate
        stored = self.stored().values() if ids else ()
        return {collection.collection_id: collection.since for collection in stored if collection.collection_id in ids}

    def _numbered(self, batch: pa.RecordBatch, time: int) -> pa.RecordBatch:
        """Return the rows of ``data`` for a batch of updates."""
        import pyarrow as pa  # noqa: PLC0415 - a sensor reads the stash without it
        import pyarrow.compute as pc  # noqa: PLC0415

        names = pc.unique(batch.column("kind"))
        stored = {name: self._get(name) for name in names.to_pylist()}
        if late := [name for name, collection in stored.items() if collection.upper > time]:
            raise InvalidFrontier(f"updates of {late} at time {time} come too late: their upper is beyond it")
        numbers = pa.array([collection.collection_id for collection in stored.values()], pa.int64())
        ids = numbers.take(pc.index_in(batch.column("kind"), value_set=names))
        self._ids_to_consolidate |= set(ids.filter(pc.less(batch.column("diff"), 0)).to_pylist())
        times = pa.repeat(pa.scalar(time, pa.int64()), batch.num_rows)
        columns = [ids, batch.column("key"), batch.column("value"), times, batch.column("diff")]
        return pa.record_batch(columns, names=list(DATA_COLUMNS))

    def _set_frontier(self, column: str, collection_id: int, frontier: Frontier) -> None:
        statement = f"UPDATE {column}s SET {column} = ? WHERE collection_id = ?"  # noqa: S608 - since or upper
        self._connection.execute(statement, [frontier if isinstance(frontier, int) else None, collection_id])

    def _get(self, name: str) -> StoredCollection:
        if name not in self.stored():
            raise InvalidFrontier(f"the stash has no collection {name!r}", hint="create it first")
        return self.stored()[name]

    def _remember(self, name: str, stored: StoredCollection) -> StoredCollection:
        self._stored = {**self.stored(), name: stored}
        return stored

    def _check_writable(self, what: str) -> None:
        if not self._writable:
            raise NotWritable.in_mode("read-only", what=what, where="the stash")
