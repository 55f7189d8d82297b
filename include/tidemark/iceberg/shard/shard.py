"""A shard by name; ``load`` reads its present head.

Of a user's collection a shard object means one table, that of its first load: under the same name there may be another
table later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import Table

from tidemark.errors import CorruptState, Dropped, TidemarkError, UnknownCollection
from tidemark.iceberg.shard.catalog import CachingCatalog, asking_the_catalog
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state_reader import COLLECTIONS
from tidemark.retry import retrying

_LOADS = 4  # commits may have deleted the metadata file since the catalog's answer: ask again


@dataclass(slots=True)
class FirstTable:
    """The table that a shard object has loaded first."""

    uuid: UUID | None = None  # None before the first load


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard by name; every call looks at the store afresh."""

    iceberg: CachingCatalog
    namespace: str
    name: str
    writer_id: str  # who writes, for people reading the history; not a token
    first: FirstTable = field(default_factory=FirstTable, compare=False, repr=False)

    @property
    def identifier(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def spark_name(self) -> str:
        """The table's name in Spark SQL."""
        return f"tidemark.{self.namespace}.{self.name}"

    def load(self) -> ShardHead:
        """Return the present head.

        Raises:
            UnknownCollection: If the shard does not exist.
            Dropped: If this object has loaded the shard before, and the table was dropped or made anew since.
            Unreachable: If the catalog does not answer.
            CorruptState: If the metadata file that the catalog names is gone, or damaged.
        """
        return ShardHead.of(self.load_table(), shard=self.name)

    def location(self) -> str | None:
        """Return the present metadata file, without a look into it: as long as it stays, there was no commit."""
        with asking_the_catalog():
            return self.iceberg.location_of((self.namespace, self.name))

    def load_table(self) -> Table:
        """Return the present table, whatever refs it has. Raises as ``load``."""
        with asking_the_catalog():
            try:
                load_table = retrying(FileNotFoundError, attempts=_LOADS, what=self.name, give_up=lambda error: error)
                table: Table = load_table(self._load_table)
            except NoSuchTableError as error:
                if self.first.uuid is not None:
                    raise Dropped.meanwhile(self.name) from error
                names = [identifier[-1] for identifier in self.iceberg.list_tables(self.namespace)]
                raise UnknownCollection.named(self.name, names) from error
            except FileNotFoundError as error:
                raise CorruptState(
                    f"a metadata file of {self.name!r} is gone: {error}",
                    hint="it was removed by hand, or catalog and warehouse were restored from different backups",
                ) from error
            present = table.metadata.table_uuid
            if self.first.uuid not in {None, present}:
                raise Dropped.meanwhile(self.name)
            if self.namespace == COLLECTIONS:  # who made the system's own tables anew is told by their fences
                self.first.uuid = present
            return table

    def _load_table(self) -> Table:
        try:
            return self.iceberg.load_table((self.namespace, self.name))
        except (ValidationError, UnicodeDecodeError) as error:  # no JSON, other JSON, or no text
            reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
            raise CorruptState(
                f"the metadata file of {self.name!r} is damaged: {reason}",
                hint="restore from a backup the file that the catalog names for the table",
            ) from error


@contextmanager
def naming_drop(shard: Shard) -> Iterator[None]:
    """Raise ``Dropped`` for whatever goes wrong in the block, if the table of ``shard`` was dropped meanwhile.

    Spark, which knows tables by name, fails in any way then. Errors of Tidemark are raised as they are.
    """
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        try:
            shard.load_table()
        except Dropped as dropped:
            raise dropped from error
        raise
