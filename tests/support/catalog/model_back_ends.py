"""Back ends as small as can be: an epoch, a set of rows and a config, so that every schedule can be tried.

They do what ``tidemark.catalog.back_end`` promises and nothing else; each call is atomic. The state of both is one
hashable value, which a search takes out and puts back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidemark.catalog.back_end import Head, OpenMode, Replaced
from tidemark.catalog.items.kinds import DATA_VERSION_KEY, LEADER_EPOCH, TOMBSTONE
from tidemark.errors import FencedByEpoch, NotWritable, StaleState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


V = TypeVar("V")


class Fixed(dict[str, V]):
    """A dictionary that is never changed, only replaced: so states can be compared by hash."""

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))


class Config(Fixed[int]):
    """The config of one back end."""


NO_DEPLOYMENTS: Fixed[str] = Fixed()


class Stored(NamedTuple):
    """All that one back end holds; ``epoch`` None: it was never opened."""

    epoch: int | None = None
    rows: frozenset[str] = frozenset()
    config: Config = Config()


class World:
    """Both back ends at one time."""

    def __init__(self, stash: Stored, persist: Stored) -> None:
        self.state = (stash, persist)

    def stored(self, place: int) -> Stored:
        return self.state[place]

    def store(self, place: int, new: Stored) -> None:
        self.state = (new, self.state[1]) if place == 0 else (self.state[0], new)


class Copy(NamedTuple):
    """What ``snapshot`` returns here, where the steps only carry it."""

    rows: frozenset[str]
    config: Config


class ModelTransaction:
    """As much of a transaction as the steps, and a leader that adds a row, make use of."""

    def __init__(self, stored: Stored) -> None:
        self.rows = set(stored.rows)
        self._config = dict(stored.config)

    def config(self, key: str) -> int | None:
        return self._config.get(key)

    def set_config(self, key: str, value: int) -> None:
        self._config[key] = value

    def audit(self, operation: str, **_: Any) -> None:
        """Audit events are no rows here: what counts is which acknowledged rows are lost."""

    def items(self, _kind: object) -> Iterator[Any]:
        """So nobody finds any."""
        return iter(())

    def outcome(self, before: Stored) -> Stored:
        return before._replace(rows=frozenset(self.rows), config=Config(self._config))


@dataclass(frozen=True)
class ModelHandle:
    """An open back end: an epoch, which each call compares first."""

    end: ModelBackEnd
    epoch: int
    is_fenced: bool = True  # False: without the check, as no handle is allowed to be
    mode: OpenMode = OpenMode.WRITABLE
    generation: int = 1

    @property
    def name(self) -> str:
        return self.end.name

    def snapshot(self) -> Copy:
        stored = self._checked()
        return Copy(stored.rows, stored.config)

    def transact(self, change: Callable[[ModelTransaction], Any]) -> Any:
        stored = self._checked()
        transaction = ModelTransaction(stored)
        result = change(transaction)
        if (new := transaction.outcome(stored)) != stored:
            self.end.world.store(self.end.place, new)
        return result

    def replace_all(self, contents: Copy, *, tombstone: bool | None = None) -> Replaced:
        stored = self._checked()
        self.refuse_if_led(stored)
        config = {key: value for key, value in contents.config.items() if key != TOMBSTONE}
        if tombstone is not None:
            config[TOMBSTONE] = int(tombstone)
        elif TOMBSTONE in stored.config:
            config[TOMBSTONE] = stored.config[TOMBSTONE]
        self.end.world.store(self.end.place, stored._replace(rows=contents.rows, config=Config(config)))
        return Replaced(len(contents.rows - stored.rows), len(stored.rows - contents.rows))

    def refuse_if_led(self, stored: Stored) -> None:
        if stored.config.get(LEADER_EPOCH) == self.epoch:
            raise StaleState(f"{self.name} is led at epoch {self.epoch}")

    def close(self) -> None:
        """Nothing is held."""

    def _checked(self) -> Stored:
        stored = self.end.world.stored(self.end.place)
        if self.is_fenced and stored.epoch != self.epoch:
            raise FencedByEpoch(f"{self.name} is at epoch {stored.epoch}, not {self.epoch}")
        return stored


@dataclass(frozen=True)
class ModelBackEnd:
    """One side of the world."""

    world: World = field(compare=False, repr=False)
    name: str

    @property
    def place(self) -> int:
        return 0 if self.name == "stash" else 1

    def head(self) -> Head:
        stored = self.world.stored(self.place)
        return Head(stored.epoch, stored.config, NO_DEPLOYMENTS)

    def open(self, _mode: OpenMode, *, epoch_lower_bound: int = 0, **_: Any) -> ModelHandle:
        """Open writable; the first open of a back end leaves a row of its own, as defaults are."""
        stored = self.world.stored(self.place)
        epoch = max((stored.epoch or 1) + 1, epoch_lower_bound)
        if stored.epoch is None:
            default = frozenset({"default"}) if self.name == "persist" else frozenset()
            stored = Stored(epoch, default, Config({DATA_VERSION_KEY: 1}))
        self.world.store(self.place, stored._replace(epoch=epoch))
        return ModelHandle(self, epoch)

    def join(self, **_: Any) -> ModelHandle:
        epoch = self.world.stored(self.place).epoch
        if epoch is None:
            raise NotWritable(f"{self.name} is not initialised")
        return ModelHandle(self, epoch)


def unfenced(handle: ModelHandle) -> ModelHandle:
    """Return the handle without its check."""
    return replace(handle, is_fenced=False)


def stored(epoch: int | None, rows: Iterable[str] = (), **config: int) -> Stored:
    """Return an initialised back end."""
    return Stored(epoch, frozenset(rows), Config({DATA_VERSION_KEY: 1, **config}))
