"""A shard by name; ``load`` reads its present head."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import Table

from tidemark.errors import CorruptState, UnknownCollection
from tidemark.iceberg.shard.catalog import CachingCatalog, asking_the_catalog
from tidemark.iceberg.shard.head import ShardHead
from tidemark.retry import retrying

_LOADS = 4  # commits may have deleted the metadata file since the catalog's answer: ask again


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard by name; every call looks at the store afresh."""

    iceberg: CachingCatalog
    namespace: str
    name: str
    writer_id: str  # who writes, for people reading the history; not a token

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
            Unreachable: If the catalog does not answer.
            CorruptState: If the metadata file that the catalog names is gone, or damaged.
        """
        return ShardHead.of(self.load_table(), shard=self.name)

    def load_table(self) -> Table:
        """Return the present table, whatever refs it has. Raises as ``load``."""
        with asking_the_catalog():
            try:
                load_table = retrying(FileNotFoundError, attempts=_LOADS, what=self.name, give_up=lambda error: error)
                table: Table = load_table(self._load_table)
            except NoSuchTableError as error:
                names = [identifier[-1] for identifier in self.iceberg.list_tables(self.namespace)]
                raise UnknownCollection.named(self.name, names) from error
            except FileNotFoundError as error:
                raise CorruptState(
                    f"a metadata file of {self.name!r} is gone: {error}",
                    hint="it was removed by hand, or catalog and warehouse were restored from different backups",
                ) from error
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
