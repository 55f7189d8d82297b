"""All shards of one installation: create, open, list, drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertCreate, SetPropertiesUpdate
from sqlalchemy.exc import IntegrityError

from tidemark.errors import NotPossible, UnknownCollection
from tidemark.iceberg.commit.publisher import FENCE_ATTEMPTS, set_ref
from tidemark.iceberg.commit.snapshot_builder import SnapshotBuilder, SnapshotChange
from tidemark.iceberg.leases.holding import writer_id
from tidemark.iceberg.shard.catalog import CachingCatalog, asking_the_catalog, open_catalog
from tidemark.iceberg.shard.head import MAIN, OWN_MAIN, OWN_UPDATES, UPDATES
from tidemark.iceberg.shard.layout import partition_spec, sort_order, table_properties, table_schema
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.state_reader import COLLECTIONS, DROPPED, SYSTEM, namespace_of
from tidemark.iceberg.shard.token import Token
from tidemark.retry import retrying
from tidemark.settings import Settings

__all__ = ["COLLECTIONS", "DROPPED", "SYSTEM", "Shards"]


class _MovedOn(Exception):
    """A commit came between the look at a table and its new name."""


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of one installation: the user's in the namespace ``COLLECTIONS``, our own logs in ``SYSTEM``.

    Tables of dropped collections wait in ``DROPPED`` until maintenance removes them.
    """

    iceberg: CachingCatalog
    writer_id: str

    @classmethod
    def connect(cls, settings: Settings) -> Shards:
        """Open the catalog and make sure that its namespaces exist. Raises as ``open_catalog``."""
        catalog = open_catalog(settings)
        with asking_the_catalog():
            present = {identifier[-1] for identifier in catalog.list_namespaces()}
            for namespace in {COLLECTIONS, SYSTEM} - present:
                with suppress(IntegrityError):  # another process has created the namespace meanwhile
                    catalog.create_namespace_if_not_exists(namespace)
        return cls(catalog, writer_id=writer_id())

    def beside(self) -> Shards:
        """Return the same for another thread; as ``CachingCatalog.beside``."""
        return Shards(self.iceberg.beside(), self.writer_id)

    def create(
        self,
        name: str,
        *,
        schema: Schema,
        layout: ShardKind = ShardKind.DIFFERENTIAL,
        key: Sequence[str] = (),
        buckets: int = 1,
        of_buffer: bool = False,
        namespace: str = COLLECTIONS,
        properties: Mapping[str, str] = MappingProxyType({}),
    ) -> Shard:
        """Create the table with its genesis snapshot in one commit; upper and since are 0. Idempotent.

        ``name`` has letters, digits and underscores; ``namespace`` is ``COLLECTIONS`` or ``SYSTEM``. ``schema`` has the
        user's columns; ``layout`` decides which system columns are added, and ``of_buffer`` adds those that only rows
        out of a write buffer need. The columns of ``key`` sort the files, and the first of them that can be bucketed
        partitions them into ``buckets``; 1 leaves the table unpartitioned. A new table also gets the ``properties``.

        Raises ``NotPossible`` if a table of that name and another layout exists.
        """
        shard = self._shard(name, namespace)
        if self.exists(name, namespace):
            return _of_layout(shard, layout)
        columns = table_schema(schema, layout, of_buffer=of_buffer)
        transaction = self.iceberg.create_table_transaction(
            (namespace, name),
            schema=columns,
            location=self.iceberg.free_location((namespace, name)),
            partition_spec=partition_spec(columns, key, buckets),
            sort_order=sort_order(columns, key),
            properties={**table_properties(layout), **properties},  # pyiceberg takes the format version out of it
        )
        table = transaction._table  # noqa: SLF001  # no public way to commit a creation with a first snapshot
        state = ShardState(
            layout=layout,
            kind=CommitKind.GENESIS,
            lower=0,
            upper=0,
            since=0,
            changed=0,
            token=Token(0, 0),
            writer=self.writer_id,
            commit_id=str(uuid4()),
            schema_id=table.metadata.current_schema_id,
        )
        builder = SnapshotBuilder(table)
        genesis = builder.build(None, SnapshotChange(operation=Operation.APPEND, summary=state.summary()))
        refs = [(MAIN, SnapshotRefType.BRANCH), (OWN_MAIN, SnapshotRefType.TAG)]
        if layout is ShardKind.DIFFERENTIAL:
            refs += [(UPDATES, SnapshotRefType.BRANCH), (OWN_UPDATES, SnapshotRefType.TAG)]
        updates = transaction._updates + (  # noqa: SLF001, RUF005
            AddSnapshotUpdate(snapshot=genesis),
            *(set_ref(ref, genesis, type_) for ref, type_ in refs),
            SetPropertiesUpdate(updates=state.properties()),
        )
        try:
            with asking_the_catalog():  # whether the creation landed or not, creating the table again is right
                self.iceberg.commit_table(table, (AssertCreate(),), updates)
        except (TableAlreadyExistsError, CommitFailedException):
            return _of_layout(shard, layout)
        return shard

    def open(self, name: str, namespace: str | None = None) -> Shard:
        """Return the shard; without a ``namespace``, of that of ``namespace_of``.

        Raises ``UnknownCollection``, with near matches, if it does not exist.
        """
        namespace = namespace or namespace_of(name)
        if not self.exists(name, namespace):
            raise UnknownCollection.named(name, self.names(namespace))
        return self._shard(name, namespace)

    def all(self, namespace: str = COLLECTIONS) -> list[Shard]:
        """Return the shards in ``namespace``, sorted by name, with one question. Raises as ``names``."""
        return [self._shard(name, namespace) for name in self.names(namespace)]

    def exists(self, name: str, namespace: str = COLLECTIONS) -> bool:
        """Tell whether the catalog has the table. Raises ``Unreachable`` if the catalog does not answer."""
        with asking_the_catalog():
            return self.iceberg.table_exists((namespace, name))

    def names(self, namespace: str = COLLECTIONS) -> list[str]:
        """Return the names in ``namespace``, sorted. Raises ``Unreachable`` if the catalog does not answer."""
        try:
            with asking_the_catalog():
                return sorted(identifier[-1] for identifier in self.iceberg.list_tables(namespace))
        except NoSuchNamespaceError:
            return []

    def rename(self, source: tuple[str, str], target: tuple[str, str], *, uuid: str) -> bool:
        """Give the table ``uuid`` another namespace and name; return False if no such table is called ``source``.

        The files stay where they are. Whoever works on the table by its old name fails with ``Dropped``; no commit of
        theirs lands any more.

        Raises:
            NotPossible: If ``target`` is taken.
            ConflictsUnsettled: If other commits to the table kept winning.
        """
        with asking_the_catalog():
            if (target[0],) not in self.iceberg.list_namespaces():
                with suppress(IntegrityError):  # another process has created the namespace meanwhile
                    self.iceberg.create_namespace_if_not_exists(target[0])
            what, hint = f"the new name of {source[1]!r}", "stop its writers; the next `tidemark apply` completes it"
            attempts = retrying(_MovedOn, attempts=FENCE_ATTEMPTS, what=what, hint=hint)
            return bool(attempts(self._rename_once, source, target, uuid))

    def _rename_once(self, source: tuple[str, str], target: tuple[str, str], uuid: str) -> bool:
        try:
            table = self.iceberg.load_table(source)
        except NoSuchTableError:
            return False
        if str(table.metadata.table_uuid) != uuid:
            return False
        try:
            if not self.iceberg.move_table(table, target):
                raise _MovedOn
        except TableAlreadyExistsError as error:
            raise NotPossible(
                f"{'.'.join(source)} cannot become {'.'.join(target)}: there is such a table already",
                hint="choose another name",
            ) from error
        return True

    def drop(self, name: str, namespace: str = COLLECTIONS) -> None:
        """Remove the table from the catalog, but not its files. Raises ``UnknownCollection`` if it does not exist."""
        try:
            with asking_the_catalog():
                self.iceberg.drop_table((namespace, name))
        except NoSuchTableError as error:
            raise UnknownCollection.named(name, self.names(namespace)) from error

    def _shard(self, name: str, namespace: str) -> Shard:
        return Shard(self.iceberg, namespace, name, self.writer_id)


def _of_layout(shard: Shard, layout: ShardKind) -> Shard:
    """Return the shard that is there. Raises ``NotPossible`` if it has another layout."""
    present = shard.load().state.layout
    if present is not layout:
        raise NotPossible(f"{shard.identifier} exists and is {present}, not {layout}", hint="choose another name")
    return shard
