"""Writers inside one long-lived process: callers hand over rows, and one task per collection appends the rows.

Callers that arrive during a commit share the next commit and its answer. A slow or failing collection does not delay
the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Lock, Thread

import pyarrow as pa

from tidemark.clock import Clock
from tidemark.collections.append.append import check_append_only
from tidemark.collections.append.forward import Appended, user_columns
from tidemark.collections.append.statuses import StatusFilter
from tidemark.collections.append.unnumbered import append_blindly
from tidemark.collections.append.ways_in import Rules, rules_of
from tidemark.collections.declarations.append_only import Expectations, StatusHistory
from tidemark.collections.declarations.collection import OnReadOnly
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import read_mode, read_only
from tidemark.collections.quality.expectations import check_rows
from tidemark.errors import (
    Dropped,
    ExpectationFailed,
    Refused,
    SchemaMismatch,
    UnknownCollection,
    Unregistered,
    UsageError,
)
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shards import COLLECTIONS, SYSTEM, Shards
from tidemark.report import Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Write:
    rows: pa.Table
    answer: Future[Appended]


class _Task:
    """The one writer of a collection; at the end, writes that are still queued fail as unregistered."""

    def __init__(
        self, shard: Shard, append_durably: Callable[[pa.Table, Rules], Appended], rules: Callable[[], Rules]
    ) -> None:
        self.shard, self._append_durably, self._rules = shard, append_durably, rules
        self._queue: SimpleQueue[_Write | None] = SimpleQueue()  # None: end
        self._lock = Lock()  # guards the order of writes and the end: a write is queued before the end, or refused
        self._ended = False
        self._thread = Thread(target=self._work, name=f"append {shard.name}", daemon=True)
        self._thread.start()

    def put(self, rows: pa.Table) -> Future[Appended]:
        write = _Write(rows, Future())
        with self._lock:
            if self._ended:
                raise Unregistered(self.shard.name)
            self._queue.put(write)
        return write.answer

    def is_dropped(self) -> bool:
        """Tell whether the table was dropped, whether or not another one has its name now."""
        try:
            self.shard.load_table()
        except Dropped:
            return True
        return False

    def end(self) -> None:
        """Stop after the present commit; return when the task has stopped."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            first = self._queue.get()  # waits
            writes = [*([first] if first else []), *self._drain()]
            if self._ended:
                break
            try:
                self._append(writes)
            except Exception as error:  # noqa: BLE001 - every error goes to these callers; later callers are still served
                log.warning("an append of %s writes to %s failed: %s", len(writes), self.shard.name, error)
                for write in writes:
                    if not write.answer.done():
                        write.answer.set_exception(error)
        with self._lock:  # ``end`` holds the lock until the end is queued, and no write comes after the end
            queued = self._drain()
        for write in [*writes, *queued]:
            write.answer.set_exception(Unregistered(self.shard.name))

    def _drain(self) -> list[_Write]:
        """Take all queued writes from the queue; only this task takes writes."""
        writes = []
        while not self._queue.empty():
            writes.append(self._queue.get())
        return [write for write in writes if write is not None]

    def _append(self, writes: list[_Write]) -> None:
        rules = self._rules()  # before each commit: the declaration may have been altered
        rules.refuse_direct_write()
        table = self.shard.load().table
        schema = user_columns(table)
        fitting: list[tuple[_Write, pa.Table]] = []
        for write in writes:
            try:
                rows = write.rows.select(schema.names).cast(schema)
                for expect in rules.expect:
                    check_rows(table, rows, expect, collection=self.shard.name)
                fitting.append((write, rows))
            except (KeyError, pa.ArrowException) as error:  # an error of this caller alone
                mismatch = SchemaMismatch(f"rows for {self.shard.name!r} do not have its columns: {error}")
                write.answer.set_exception(mismatch)
            except ExpectationFailed as error:  # an error of this caller alone, too
                write.answer.set_exception(error)
        if not fitting:
            return
        self._append_together(fitting, rules)

    def _append_together(self, fitting: list[tuple[_Write, pa.Table]], rules: Rules) -> None:
        """Append the rows of all writes in one commit; if rows are refused, which a buffer may do, one by one."""
        try:
            done = self._append_durably(pa.concat_tables([rows for _, rows in fitting]), rules)
        except Refused as error:
            if len(fitting) == 1:
                fitting[0][0].answer.set_exception(error)
                return
            for each in fitting:
                self._append_together([each], rules)
            return
        for write, rows in fitting:
            write.answer.set_result(replace(done, rows=rows.num_rows))


@dataclass(frozen=True, slots=True)
class MonotonicAppender:
    """Appends to one collection; returns when the rows are durable: visible, or staged."""

    task: _Task

    def append(self, rows: pa.Table) -> Appended:
        """Append ``rows``; without rows return at once.

        Raises:
            OnlyThroughBuffer: If the rows of the collection come out of a write buffer by now.
            Paused: If somebody paused the collection.
            Dropped: If the collection was dropped since it was registered: register one that is made anew again.
            ExpectationFailed: If these rows are not what is expected; rows of others are appended.
            ReadOnly: If the deployment is read-only and the collection rejects rows.
            Unregistered: If the collection was unregistered before; the rows were not appended.
            TidemarkError: As ``append_blindly``.
        """
        if rows.num_rows == 0:
            return Appended(outcome=Outcome.APPENDED)
        return self.task.put(rows).result()


@dataclass(slots=True)
class Appenders:
    """The collections that this process writes to, by name.

    After a change of the catalog's leader, for example by a migration, every write fails as fenced by epoch: the
    process then needs new appenders of a new deployment.
    """

    shards: Shards
    deployment: Deployment
    clock: Clock
    producer: str
    _tasks: dict[str, _Task] = field(default_factory=dict)

    def register(
        self,
        name: str,
        *,
        namespace: str = COLLECTIONS,
        on_read_only: OnReadOnly = OnReadOnly.STAGE,
        status: StatusHistory | None = None,
        expect: Expectations | None = None,
        sequence: str | None = None,
    ) -> None:
        """Start the writer of an append-only collection; do nothing if the writer runs already.

        The writer of a table that was dropped since makes way for one of the table that has the name now.

        What the applied declaration says about rows that come in holds for every commit. The arguments may ask for more
        than the declaration, and say everything about a collection that is not declared.

        Args:
            name: The collection, of ``namespace``.
            namespace: The users' collections, or the system's.
            on_read_only: Whether a read-only deployment stages or refuses rows. Rows of a system collection cannot be
                staged, because only users' collections can be listed, flushed and discarded.
            status: Leave out superseded statuses; a caller whose rows are all left out still gets an answer.
            expect: What must hold for the rows of each write; only the caller whose rows fail is refused.
            sequence: Let later statuses have later times, as ``StatusFilter`` says.

        Raises:
            UnknownCollection: If no collection has that name.
            UsageError: If the collection is not append-only, or its rows cannot be staged.
            OnlyThroughBuffer: If the rows of the collection come out of a write buffer.
        """
        if namespace == SYSTEM and on_read_only is OnReadOnly.STAGE:
            raise UsageError(
                f"{name!r} is a system collection: rows that were staged for it could be neither listed nor flushed",
                hint="register it to reject rows",
            )
        if (present := self._tasks.get(name)) is not None and not present.is_dropped():
            log.error("collection %s is registered already", name)
            return
        self.unregister(name)
        shard = self.shards.open(name, namespace)
        check_append_only(shard.load(), name)
        own = Rules.asked(stage_when_read_only=on_read_only is OnReadOnly.STAGE, expect=expect, status=status)

        def rules() -> Rules:
            return rules_of(shard, self.deployment).tightened(own)

        rules().refuse_direct_write()
        if status is not None:
            rules().refuse_statuses()
        news: StatusFilter | None = None

        def append_durably(rows: pa.Table, rules: Rules) -> Appended:
            nonlocal news
            if rules.status is not None:
                known = news or StatusFilter(
                    rules.status, collection=name, deployment=self.deployment, sequence=sequence
                )
                news = known.of(rules.status)
            return append_blindly(
                shard,
                rows,
                producer=self.producer,
                deployment=self.deployment,
                clock=self.clock,
                rules=rules,
                status=news if rules.status else None,
            )

        self._tasks[name] = _Task(shard, append_durably, rules)

    def unregister(self, name: str) -> None:
        """End the writer of a collection and wait for its end; do nothing without a writer.

        The present commit is finished; callers whose rows are still queued get ``Unregistered`` with the name.
        """
        if (task := self._tasks.pop(name, None)) is not None:
            task.end()

    def close(self) -> None:
        """Unregister everything."""
        for name in list(self._tasks):
            self.unregister(name)

    def blind_write(self, name: str, rows: pa.Table) -> None:
        """Hand over ``rows`` without waiting until they are durable; the log alone reports failures.

        A read-only deployment refuses the rows before any check: the caller would not learn that they were only staged.

        Raises:
            UnknownCollection: If the collection is not registered.
            ReadOnly: If the deployment is read-only, whatever the collection was registered with.
            Unregistered: If the collection is being unregistered.
        """
        task = self._task(name)
        if read_mode(self.deployment) is Mode.READ_ONLY:
            raise read_only(self.deployment.generation, f"blind write to {name!r}")
        if rows.num_rows:
            task.put(rows)

    def monotonic_appender(self, name: str) -> MonotonicAppender:
        """Return an appender for one collection, which waits until rows are durable.

        Raises ``UnknownCollection`` if the collection is not registered.
        """
        return MonotonicAppender(self._task(name))

    def _task(self, name: str) -> _Task:
        if name not in self._tasks:
            raise UnknownCollection.named(name, self._tasks)
        return self._tasks[name]
