"""Looks at the stores of one installation, without a JVM, and reads again only what has changed since the last look.

A metadata file of Iceberg is never written twice: what it says is kept under its location. What the system's catalog
says is kept under the number of its last audit event, since every change there is audited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, Final, TypeVar

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.catalog.deployment.membership import Membership
from tidemark.catalog.deployment.modes import look_at_mode
from tidemark.catalog.items.kinds import (
    AUDIT_EVENT,
    DEPLOYMENT,
    ID_ALLOCATOR,
    AuditEventValue,
    DeploymentKey,
    DeploymentValue,
    NamedKey,
    NumberedKey,
)
from tidemark.catalog.items.transaction import Transaction
from tidemark.catalog.opening.catalog import Catalog
from tidemark.catalog.persist.records import SHARD
from tidemark.clock import Clock, SystemClock
from tidemark.collections.deployment import Applied, CatalogObject, Deployment, StoredMode
from tidemark.collections.objects.standing import Standing
from tidemark.collections.system.declarations import KEPT_STATUSES, STATISTICS, STATUS
from tidemark.collections.system.tables import read_newest
from tidemark.errors import CorruptState, ForeignTable, TidemarkError, UnknownCollection
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state_reader import (
    CATALOG_NAME,
    COLLECTIONS,
    SYSTEM,
    ShardSummary,
    ask_catalog,
    read_state,
    read_states,
)
from tidemark.iceberg.shards import Shards
from tidemark.orchestration.status_page.history import History, Key
from tidemark.report import ErrorReport
from tidemark.settings import Settings

AUDITED: Final = 200  # events of the audit that are shown
_MANY = 20  # changed collections: above, one question for all beats one for each
_LOCATIONS = (
    "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables "
    "WHERE catalog_name = {0} AND table_namespace IN ({0}, {0})"
)

log = logging.getLogger(__name__)
T = TypeVar("T")
States = Mapping[str, ShardSummary | CorruptState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the system's catalog holds; nothing, and the ``obstacle``, if it cannot be read."""

    applied: Applied = field(default_factory=Applied)
    objects: Mapping[str, CatalogObject] = field(default_factory=dict)
    standings: Mapping[str, Standing] = field(default_factory=dict)
    sink_holds: Mapping[tuple[str, str], int] = field(default_factory=dict)  # as of ``read_sink_holds``
    audit: Sequence[tuple[NumberedKey, AuditEventValue]] = ()  # the newest events, the newest first
    deployments: Sequence[tuple[DeploymentKey, DeploymentValue]] = ()
    mode: StoredMode | None = None  # of the deployment that leads
    obstacle: ErrorReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The installation at one look; ``statuses`` are what was recorded of each object, oldest first."""

    states: States
    contents: Contents
    statuses: Mapping[Key, Sequence[Mapping[str, Any]]]
    history: History
    contents_version: object  # differs after every change of the contents


class Observer:
    """Keeps what was read; used by any number of threads, which look one after the other."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings, self.clock = settings, clock
        self._lock = Lock()
        self._locations: Mapping[tuple[str, str], str] = {}
        self._states: dict[str, ShardSummary | CorruptState] = {}
        self._contents, self._contents_version = Contents(), object()
        self._recorded: tuple[str | None, ...] = (None, None)  # the metadata files of both tables of the system
        self._statuses: dict[Key, list[Mapping[str, Any]]] = {}
        self._history = History()
        self._shards: Shards | None = None
        self._memory: dict[object, tuple[object, Any]] = {}

    @property
    def deployment(self) -> Deployment:
        return deployment_of(self.settings, clock=self.clock)

    @property
    def catalog(self) -> Catalog:
        return Catalog.of(self.settings, clock=self.clock)

    def look(self) -> Observed:
        """Return the installation as it is now. Raises ``Unreachable`` if Iceberg's catalog does not answer."""
        with self._lock:
            rows = ask_catalog(self.settings, _LOCATIONS, (CATALOG_NAME, COLLECTIONS, SYSTEM))
            locations = {(namespace, name): location for namespace, name, location in rows}
            self._read_states(locations)
            self._read_recorded(locations)
            self._read_contents(locations.get((SYSTEM, SHARD)))
            self._locations = locations
            return Observed(
                states=dict(sorted(self._states.items())),
                contents=self._contents,
                statuses=self._statuses,
                history=self._history,
                contents_version=self._contents_version,
            )

    def head(self, name: str) -> ShardHead:
        """Return the head of a collection. Raises as ``Shards.open`` and ``Shard.load``."""
        with self._lock:
            return self._connected().open(name).load()

    def shard(self, name: str) -> Shard:
        """Return a collection, for one thread. Raises as ``Shards.open``."""
        with self._lock:
            return self._connected().beside().open(name)

    def of_head(self, name: str, what: Callable[[ShardHead], T]) -> T:
        """Return ``what`` of the head of a collection, computed once for each of its metadata files."""
        return self.remember((name, what), self.location(name), lambda: what(self.head(name)))

    def location(self, name: str) -> str | None:
        """Return the metadata file of a collection, as of the last look."""
        return self._locations.get((COLLECTIONS, name))

    def remember(self, key: object, version: object, compute: Callable[[], T]) -> T:
        """Return what was computed under ``key`` for the same ``version``, or compute it."""
        kept = self._memory.get(key)
        if kept is None or kept[0] != version:
            kept = self._memory[key] = (version, compute())
        result: T = kept[1]
        return result

    def _connected(self) -> Shards:
        self._shards = self._shards or Shards.connect(self.settings)
        return self._shards

    def _read_states(self, locations: Mapping[tuple[str, str], str]) -> None:
        present = {name for namespace, name in locations if namespace == COLLECTIONS}
        changed = [
            name
            for name in present
            if locations[COLLECTIONS, name] != self._locations.get((COLLECTIONS, name))
            or isinstance(self._states.get(name), CorruptState)  # somebody may have put the file back
        ]
        if len(changed) > _MANY:
            self._states = dict(read_states(self.settings))
            return
        for name in changed:
            self._states.pop(name, None)
            with suppress(UnknownCollection, ForeignTable):
                try:
                    self._states[name] = read_state(self.settings, name, COLLECTIONS)
                except CorruptState as damage:
                    self._states[name] = damage
        self._states = {name: state for name, state in self._states.items() if name in present}

    def _read_recorded(self, locations: Mapping[tuple[str, str], str]) -> None:
        """Read what runs have recorded. What cannot be read stays as it was: the page has other things to show."""
        found = (locations.get((SYSTEM, STATUS)), locations.get((SYSTEM, STATISTICS)))
        try:
            if found[0] not in {None, self._recorded[0]}:
                statuses: dict[Key, list[Mapping[str, Any]]] = {}
                for row in read_newest(self._connected(), STATUS, key=("object", "object_id"), keep=KEPT_STATUSES):
                    statuses.setdefault((row["object"], row["object_id"]), []).insert(0, row)
                self._statuses = statuses
            if found[1] not in {None, self._recorded[1]}:
                self._history.update(self._connected())
            self._recorded = found
        except TidemarkError as error:
            log.warning("what runs have recorded is not shown: %s", error)

    def _read_contents(self, persist_location: str | None) -> None:
        try:
            version = self._find_version(persist_location)
            if version != self._contents_version:
                self._contents, self._contents_version = self._read_catalog(), version
        except TidemarkError as error:  # a deployment that stands by, or an open: the collections are there
            self._contents, self._contents_version = Contents(obstacle=ErrorReport.of(error)), object()

    def _find_version(self, persist_location: str | None) -> object:
        membership = Membership(self.catalog)
        truth = membership.truth()
        if truth is None or truth.tombstone:
            return None if truth is None else (truth.epoch, persist_location)
        number = NamedKey(name=AUDIT_EVENT.name)
        return truth.epoch, membership.read(lambda transaction: transaction.get(ID_ALLOCATOR, number))

    def _read_catalog(self) -> Contents:
        deployment = self.deployment
        items = Membership(self.catalog).read(_read_items)
        audit, deployments = items or ([], [])
        applied = deployment.registry.read()
        sinks = [each.declaration for each in applied.sinks.values()]
        return Contents(
            applied=applied,
            objects=deployment.registry.objects(),
            standings=deployment.objects.read(),
            sink_holds={(sink.collection, sink.hold): sink.warn_after_ms for sink in sinks},
            audit=audit,
            deployments=deployments,
            mode=look_at_mode(self.catalog.ends),
        )


def _read_items(
    transaction: Transaction,
) -> tuple[list[tuple[NumberedKey, AuditEventValue]], list[tuple[DeploymentKey, DeploymentValue]]]:
    last = transaction.get(ID_ALLOCATOR, NamedKey(name=AUDIT_EVENT.name))
    end = 1 if last is None else last.next_id
    keys = [NumberedKey(id=number) for number in range(end - 1, max(0, end - 1 - AUDITED), -1)]
    events = [(key, event) for key in keys if (event := transaction.get(AUDIT_EVENT, key)) is not None]
    return events, list(transaction.items(DEPLOYMENT))


@lru_cache(maxsize=2)
def observer_of(settings: Settings) -> Observer:
    """Return the observer of the installation that the settings name, the same one for every request."""
    return Observer(settings, SystemClock())
