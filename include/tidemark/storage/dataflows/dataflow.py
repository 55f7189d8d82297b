"""One dataflow of a worker: a thread that takes one step after the other, and news for the main loop.

A step is one call, so that a test takes steps without a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import BoundedSemaphore, Event, Thread
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment
from tidemark.errors import Unreachable
from tidemark.frontier import Frontier, frontier_json
from tidemark.iceberg.shards import Shards
from tidemark.ingest.parts import MemoryLimit
from tidemark.report import CollectionReport, Outcome
from tidemark.secrets.redaction import first_line
from tidemark.settings import Settings
from tidemark.storage.board import Board, Entry
from tidemark.storage.sharing import place_of, started_at_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05  # between two looks at the board
REST_S: Final = 1.0  # of a dataflow that has nothing to do, unless the main loop wakes it
_ROUNDS: Final = 8  # at once: each holds connections to the catalog, of which a server has few
_SHARES: Final = 4  # of the rounds of others
HELD: Final = "held_rows"  # in the details of a round's report
CONTENTS: Final = "contents"  # in the details of a round's report of a sink: how far the collection was
STALE: Final = "stale"  # in the details of a round's report: why nothing is done until the dataflow is started anew
UNDELIVERED: Final = "undelivered"  # in the details of a round's report: the workers whose parts did not come
AWAY_S: Final = 1.0  # between two tries to reach the stores


@dataclass(frozen=True, slots=True)
class Seen:
    """What the main loop has seen at its last look."""

    board: Mapping[str, Entry] = field(default_factory=dict)  # by place
    live: tuple[int, ...] = ()  # the workers

    def members(self, id_: str, started_at: int) -> tuple[int, ...]:
        """Return the live workers that run this start of a dataflow, sorted."""
        return tuple(index for index in self.live if started_at_on(self.board.get(place_of(index)), id_) == started_at)

    def running(self) -> set[tuple[str, int, int]]:
        """Return what the live workers run: the ids of dataflows, the workers, and the starts."""
        said = {index: self.board[place_of(index)].value["dataflows"] for index in self.live}
        return {(id_, index, each["started_at"]) for index, told in said.items() for id_, each in told.items()}


@dataclass(slots=True)
class Surroundings:
    """What the dataflows of one worker share; the main loop replaces ``seen`` as a whole."""

    settings: Settings
    index: int
    clock: Clock
    connect: Callable[[], Deployment]  # the deployment anew: a process that was fenced follows the present leader
    shards: Shards  # each thread takes those ``beside``
    board: Board  # to write; what stands there is ``seen``
    start_spark: Callable[[], SparkSession] | None = None
    memory: MemoryLimit = field(default_factory=MemoryLimit)  # of rows that wait for a persist
    seen: Seen = field(default_factory=Seen)
    may_write: bool = False
    rounds: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(_ROUNDS))
    # Apart from the rounds: a round waits for the shares of others, and a share for nobody.
    shares: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(_SHARES))


@dataclass(frozen=True, slots=True)
class News:
    """What a dataflow tells: levels, of which the last ones count."""

    upper: Frontier = 0  # how far its object has come
    rows: int = 0  # that this worker made visible, since the start
    rounds: int = 0
    held: int = 0  # rows in the memory of the workers, of which no ledger knows yet
    waiting: int | None = None  # entries that were waiting after the last round; None: another worker knows, or nobody
    lag_ms: int | None = None  # how long the oldest of them had been waiting
    waits_since_ms: int | None = None  # since when that is, by the last measure, of which not each round has one
    contents: Frontier = 0  # the upper when rows became visible; of a sink, of its collection at the last look
    behind_ms: int = 0  # by how much the last round took longer than ``every``
    is_idle: bool = False  # whether the last round found nothing to do
    error: str = ""  # of the last round
    error_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "upper": frontier_json(self.upper),
            "rows": self.rows,
            "rounds": self.rounds,
            "held": self.held,
            "waiting": self.waiting,
            "lag_ms": self.lag_ms,
            "contents": frontier_json(self.contents),
            "behind_ms": self.behind_ms,
            "idle": self.is_idle,
            "error": self.error,
            "error_ms": self.error_ms,
        }

    def after(self, report: CollectionReport, *, now_ms: int, behind_ms: int) -> News:
        """Return the news after a round with this report."""
        has_looked = report.error is None and report.outcome is not Outcome.SKIPPED
        waiting = report.details.get("waiting", 0 if has_looked else self.waiting)
        held = report.details.get(HELD, 0 if has_looked else self.held)
        lags = [each["lag_ms"] for each in report.details.get("sequencers", {}).values() if "lag_ms" in each]
        lag_ms, since_ms = report.details.get("lag_ms", max(lags, default=None)), self.waits_since_ms
        if lag_ms is not None:
            since_ms = now_ms - lag_ms
        elif waiting:
            since_ms = since_ms or now_ms
        else:
            since_ms = None
        shown = report.inserted or report.retracted or report.details.get("shown")
        failed, undelivered = report.error, report.details.get(UNDELIVERED)
        error = report.details.get(STALE, "") if failed is None else f"{failed.kind}: {failed.message}"
        if undelivered and not error:
            error = f"workers {undelivered} did not deliver their parts, which the next rounds share out to others"
        return replace(
            self,
            upper=self.upper if report.upper is None else max(self.upper, report.upper),
            rows=self.rows + report.inserted + report.retracted,
            rounds=self.rounds + 1,
            held=held,
            waiting=waiting,
            lag_ms=0 if since_ms is None else max(0, now_ms - since_ms),
            waits_since_ms=since_ms,
            contents=report.details.get(CONTENTS, report.upper if shown and report.upper else self.contents),
            behind_ms=behind_ms,
            is_idle=has_looked and not (report.inserted or report.retracted or waiting or held),
            error=error,
            error_ms=now_ms if error else 0,
        )


class Dataflow(Protocol):
    """The work of one object on one worker; made, used and closed by one thread."""

    @property
    def news(self) -> News:
        """What there is to tell."""

    def step(self) -> float:
        """Do what is due; return in how many seconds to come again."""

    def close(self) -> None:
        """Let go of what the steps keep open."""


@dataclass(slots=True)
class RunningDataflow:
    """A dataflow and its thread."""

    name: str  # of the collection or sink
    started_at: int  # the index of the command that started the dataflow
    make: Callable[[], Dataflow]
    news: News = field(default_factory=News)
    failure: str = ""  # why it ended by itself; nothing if it runs
    _ends: bool = False
    _woken: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._run, name=f"dataflow {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the dataflow to end after the step in hand."""
        self._ends = True
        self.wake()

    def wake(self) -> None:
        """Let the next step come at once: something has changed that it may act upon."""
        self._woken.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the last step; return whether it came."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return self._thread is None or not self._thread.is_alive()

    def _step(self, dataflow: Dataflow) -> float:
        try:
            pause_s = dataflow.step()
        except Unreachable as error:
            log.warning("%s waits: %s", self.name, error)
            self.news = replace(dataflow.news, error=f"{error.kind}: {error}")
            return AWAY_S
        self.news = dataflow.news
        return pause_s

    def _run(self) -> None:
        dataflow: Dataflow | None = None
        try:
            dataflow = self.make()
            while not self._ends:
                self._woken.clear()  # before the step, which sees what has changed by then
                self._woken.wait(self._step(dataflow))
        except Exception as error:
            log.exception("the dataflow of %s failed", self.name)
            self.failure = f"{type(error).__name__}: {first_line(error)}"
        finally:
            if dataflow is not None:
                dataflow.close()
