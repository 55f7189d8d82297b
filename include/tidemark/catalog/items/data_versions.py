"""The data version of the catalog's items: which version is stored, who may read it, and migrations to the present one.

The version is one number for all items. It is stored in ``config``, whose own format never changes. A migration is a
pure function from contents to changes, so a savepoint can run it in memory and both back ends run the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Change, net
from tidemark.catalog.items.kinds import CONFIG, DATA_VERSION_KEY, GENERATION_KEY, config_item
from tidemark.errors import CorruptState, Fenced, IncompatibleDataVersion
from tidemark.iceberg.shard.token import Token

DATA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class DataMigration:
    """Brings items from version ``to_version - 1`` to ``to_version``.

    ``changes`` takes the contents in the old format, as texts, and returns the changes that give the new format. The
    function must not use the present models, which will change again, and must not touch ``config``.
    """

    to_version: int
    changes: Callable[[Contents], list[Change]]


MIGRATIONS: Final[tuple[DataMigration, ...]] = ()  # without a gap up to DATA_VERSION; the oldest may be dropped


def written_version(migrations: Sequence[DataMigration] = MIGRATIONS) -> int:
    """Return the data version that a program with these migrations writes."""
    return migrations[-1].to_version if migrations else DATA_VERSION


def check_data_version(stored: int, *, where: str, migrations: Sequence[DataMigration] = MIGRATIONS) -> bool:
    """Return whether the items of the back end ``where`` need migrations, which only a writable or savepoint open runs.

    Raises ``IncompatibleDataVersion`` if the stored version is newer than this program's, or too old to migrate.
    """
    current = written_version(migrations)
    oldest = migrations[0].to_version - 1 if migrations else DATA_VERSION
    if stored > current:
        raise IncompatibleDataVersion(
            f"{where} has data version {stored}, this program reads up to {current}",
            hint="a newer Tidemark wrote it: use that one",
        )
    if stored < oldest:
        raise IncompatibleDataVersion(
            f"{where} has data version {stored}, this program migrates from {oldest} on",
            hint="open it with a Tidemark in between first",
        )
    return stored < current


def check_generation(config: Mapping[str, int], generation: int, *, where: str) -> None:
    """Raise ``FencedByGeneration`` if a newer deployment than ``generation`` opened the back end ``where``."""
    stored = config.get(GENERATION_KEY, generation)
    if stored > generation:
        raise Fenced.by(mine=Token(generation, 0), theirs=Token(stored, 0), where=where)


def opening_changes(
    config: Mapping[str, int],
    load: Callable[[], Contents],
    *,
    generation: int,
    where: str,
    migrations: Sequence[DataMigration] = MIGRATIONS,
) -> list[Change]:
    """Return the changes of a writable or savepoint open after its fence: initialise, migrate, take over.

    ``config`` are all stored config values, none if the back end was never initialised. ``load`` reads all contents,
    ``config`` included; it is called only if they are empty or have to be migrated. ``generation`` becomes the stored
    one. Messages name the back end ``where``.

    Raises:
        CorruptState: If there are items without a data version.
        Others as ``check_generation`` and ``check_data_version``.
    """
    check_generation(config, generation, where=where)
    current = written_version(migrations)
    changes = [Change(config_item(GENERATION_KEY, generation), 1), Change(config_item(DATA_VERSION_KEY, current), 1)]
    if DATA_VERSION_KEY not in config:
        if len(load()):
            raise CorruptState(f"{where} has items and no data version", hint="restore its tables from a dump")
        return net(changes)
    stored = config[DATA_VERSION_KEY]
    changes.append(Change(config_item(DATA_VERSION_KEY, stored), -1))
    if GENERATION_KEY in config:
        changes.append(Change(config_item(GENERATION_KEY, config[GENERATION_KEY]), -1))
    if check_data_version(stored, where=where, migrations=migrations):
        changes += migrate_items(load(), stored, migrations)
    return net(changes)


def take_over_changes(config: Mapping[str, int], generation: int) -> list[Change]:
    """Return the change of the stored generation; commit it with the fence, so that fenced processes see the fencer."""
    stored = config.get(GENERATION_KEY, generation)
    if stored == generation:
        return []
    return [Change(config_item(GENERATION_KEY, stored), -1), Change(config_item(GENERATION_KEY, generation), 1)]


def migrate_items(contents: Contents, stored: int, migrations: Sequence[DataMigration]) -> list[Change]:
    """Return the changes of all migrations after version ``stored``, one on top of the other.

    Raises ``CorruptState`` if a migration retracts an item that does not exist, or leaves two values under one key.
    """
    working = contents.copy()
    for migration in migrations:
        if migration.to_version > stored:
            changes = migration.changes(working)
            if any(change.item.kind == CONFIG.name for change in changes):
                raise ValueError(f"the migration to data version {migration.to_version} touches config")
            working.apply(changes)
    return contents.difference(working)
