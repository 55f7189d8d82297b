"""The persist catalog: the back end on a log shard. An open first fences, in a commit of its own.

Source: reference/collections_catalog_storage.md, section 7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidemark.catalog.back_end import Handle, Head, OpenMode
from tidemark.catalog.items.data_versions import (
    MIGRATIONS,
    DataMigration,
    check_data_version,
    check_generation,
    opening_changes,
    take_over_changes,
)
from tidemark.catalog.items.item import canonical_json
from tidemark.catalog.items.kinds import DATA_VERSION_KEY
from tidemark.catalog.persist.records import FIRST_EPOCH, NAME, SHARD, WHERE, check_not_fenced, parse_head
from tidemark.clock import Clock
from tidemark.errors import Fenced, NotWritable, UnknownCollection, UpperMismatch
from tidemark.fail_points import fail_point
from tidemark.iceberg.shard.state_reader import read_state
from tidemark.iceberg.shard.token import Token
from tidemark.retry import retrying
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.catalog.persist.handle import PersistHandle
    from tidemark.catalog.persist.log import CatalogLog
    from tidemark.iceberg.shards import Shards

FAIL_POINTS = ("catalog.after-persist-creation", "catalog.after-persist-fence")
SYSTEM = "system"
_ATTEMPTS = 20  # against others who open; a leader that commits in a tight loop does not get in the way


class PersistCatalog:
    """Implements ``BackEnd``; the constructor opens nothing. ``head`` needs neither Spark nor pyiceberg."""

    name = NAME

    def __init__(self, settings: Settings, *, migrations: Sequence[DataMigration] = MIGRATIONS) -> None:
        self._settings, self._migrations = settings, migrations
        self._shards: Shards | None = None

    def head(self) -> Head:
        try:
            return parse_head(read_state(self._settings, SHARD, SYSTEM).properties)
        except UnknownCollection:
            return Head(None, {})

    def open(self, mode: OpenMode, *, generation: int, clock: Clock, epoch_lower_bound: int = 0) -> Handle:
        if mode is OpenMode.WRITABLE:
            return self._open_writable(generation=generation, clock=clock, epoch_lower_bound=epoch_lower_bound)
        log, token = self._read(generation, migrates=mode is OpenMode.SAVEPOINT)
        if mode is OpenMode.READ_ONLY:
            return _handle(log, mode=mode, generation=generation, epoch=token.epoch, clock=clock)
        from tidemark.catalog.persist.handle import PersistSavepoint  # noqa: PLC0415 - heads are read without pyiceberg

        if not log.held.is_damaged:  # a copy replaces damaged contents as a whole
            migrations = self._migrations
            log.held.apply(
                opening_changes(
                    log.config, lambda: log.held.contents, generation=generation, where=WHERE, migrations=migrations
                )
            )
        return PersistSavepoint(log.held, generation=generation, epoch=token.epoch, upper=log.upper, clock=clock)

    def join(self, *, generation: int, clock: Clock) -> PersistHandle:
        log, token = self._read(generation)
        if log.token_damage is not None:
            raise log.token_damage
        if token.generation < generation:
            raise NotWritable(
                f"{WHERE} is led by deploy generation {token.generation}, not yet by {generation}: can be recovered by "
                "opening writable",
                hint="open the catalog writable: tidemark catalog open",
            )
        return _handle(log, mode=OpenMode.WRITABLE, generation=generation, epoch=token.epoch, clock=clock)

    def last_commit_ms(self) -> int | None:
        """Return the time of the last commit, in ms since the Unix epoch; None before the first commit."""
        try:
            upper = read_state(self._settings, SHARD, SYSTEM).state.upper
        except UnknownCollection:
            return None
        return upper - 1 if isinstance(upper, int) and upper else None

    def last_writer(self) -> str | None:
        """Return the host and process of the last commit; None before the first commit."""
        try:
            return read_state(self._settings, SHARD, SYSTEM).state.writer
        except UnknownCollection:
            return None

    def dump(self) -> Iterator[str]:
        from tidemark.iceberg.log import read_all  # noqa: PLC0415

        shards = self._connect()
        if not shards.exists(SHARD, SYSTEM):
            return
        head = shards.open(SHARD, SYSTEM).load()
        yield canonical_json({"metadata": head.table.metadata_location, **head.state.properties()})
        for update in sorted(read_all(head)):
            yield canonical_json(update._asdict())

    def _open_writable(self, *, generation: int, clock: Clock, epoch_lower_bound: int) -> PersistHandle:
        """Replace the token by a larger one, even if others commit in the meantime; then initialise or migrate."""
        from tidemark.catalog.persist.log import CatalogLog  # noqa: PLC0415
        from tidemark.iceberg.log import LOG_SCHEMA  # noqa: PLC0415
        from tidemark.iceberg.shard.state import ShardKind  # noqa: PLC0415

        self._check_head(generation)
        shards = self._connect()
        if not shards.exists(SHARD, SYSTEM):
            shards.create(SHARD, schema=LOG_SCHEMA, layout=ShardKind.LOG, namespace=SYSTEM)
            fail_point("catalog.after-persist-creation")
        log = CatalogLog(shards.open(SHARD, SYSTEM))
        if log.token is None and log.token_damage is not None:  # nothing tells which epochs were used
            raise log.token_damage

        def fence() -> Token:
            _check_generation(log.token, generation)
            present = log.token.epoch if log.token else FIRST_EPOCH
            token = Token(generation, max(present + 1, epoch_lower_bound))
            try:
                changes = take_over_changes(log.config, generation)
                log.fence(token, changes=changes, now_ms=clock.now_ms())
            except UpperMismatch:  # somebody else opened, or changed the config
                log.sync(lambda found: _check_generation(found, generation))
                raise
            log.sync(lambda found: check_not_fenced(token, found))
            return token

        token: Token = retrying(UpperMismatch, attempts=_ATTEMPTS, what=f"the fence of {WHERE}")(fence)
        fail_point("catalog.after-persist-fence")
        handle = _handle(log, mode=OpenMode.WRITABLE, generation=generation, epoch=token.epoch, clock=clock)
        handle.initialise(self._migrations)
        return handle

    def _check_head(self, generation: int) -> tuple[Head, bool]:
        """Return the head, and whether the items need migrations. Raises as ``BackEnd.open``."""
        head = self.head()
        check_generation(head.config, generation, where=WHERE)
        stored = head.config.get(DATA_VERSION_KEY)
        return head, stored is not None and check_data_version(stored, where=WHERE, migrations=self._migrations)

    def _read(self, generation: int, *, migrates: bool = False) -> tuple[CatalogLog, Token]:
        """Read the log as it is, whatever its data version if the caller ``migrates`` the items."""
        head, is_outdated = self._check_head(generation)
        if not head.is_initialized:
            raise NotWritable.uninitialized(WHERE)
        if is_outdated and not migrates:
            raise NotWritable.outdated(WHERE)
        from tidemark.catalog.persist.log import CatalogLog  # noqa: PLC0415

        log = CatalogLog(self._connect().open(SHARD, SYSTEM))
        _check_generation(log.token, generation)
        if log.token is None:
            raise NotWritable.uninitialized(WHERE)
        return log, log.token

    def _connect(self) -> Shards:
        from tidemark.iceberg.shards import Shards  # noqa: PLC0415

        if self._shards is None:
            self._shards = Shards.connect(self._settings)
        return self._shards


def _handle(log: CatalogLog, *, mode: OpenMode, generation: int, epoch: int, clock: Clock) -> PersistHandle:
    from tidemark.catalog.persist.handle import PersistHandle  # noqa: PLC0415

    return PersistHandle(log, mode=mode, generation=generation, epoch=epoch, clock=clock)


def _check_generation(token: Token | None, generation: int) -> None:
    if token is not None and token.generation > generation:
        raise Fenced.by(mine=Token(generation, 0), theirs=token, where=WHERE)
