"""One storage worker as a process: the main loop around the state machine of ``worker.py``.

A turn of the loop flushes what the worker has to say, reads the log of commands, carries out the effects, takes the
news of the dataflows, and tells the board how this worker is. Worker 0 is also the controller. Whatever the loop holds
in memory may be lost at any time: the next life of the worker begins with the log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import read_mode
from tidemark.errors import (
    CommitStateUnknown,
    ConflictsUnsettled,
    FencedByEpoch,
    FencedByGeneration,
    NotLed,
    ReadOnly,
    ReplacedBySuccessor,
    StaleState,
    TidemarkError,
    Unreachable,
)
from tidemark.fail_points import fail_point
from tidemark.frontier import frontier_json, parse_frontier
from tidemark.iceberg.leases.holding import writer_id
from tidemark.iceberg.shards import Shards
from tidemark.interval import time_text
from tidemark.settings import Settings
from tidemark.storage.board import Board, Entry
from tidemark.storage.command_log import ShardCommandLog
from tidemark.storage.commands import CreateIngestionDataflow, Sink, Start
from tidemark.storage.dataflows.dataflow import Dataflow, RunningDataflow, Seen, Surroundings
from tidemark.storage.dataflows.ingestion import IngestionDataflow
from tidemark.storage.dataflows.sink import SinkDataflow
from tidemark.storage.definitions import name_of
from tidemark.storage.effects import (
    AskResumePoints,
    Broadcast,
    Configure,
    Effect,
    PassThrough,
    StartDataflow,
    StopDataflow,
    Warn,
)
from tidemark.storage.order import Cursor, Outbox
from tidemark.storage.processes.companion import Companion, read_resume_points
from tidemark.storage.processes.control import WORKERS, Control
from tidemark.storage.sharing import ROUNDS, choose_holder, find_live, object_of, outlives, place_of
from tidemark.storage.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FAIL_POINTS: Final = ("worker.joined", "worker.flushed", "worker.told")
TURN_S: Final = 0.05
BEAT_S: Final = 1.0
_CONTROL_S: Final = 1.0
_MODE_S: Final = 1.0
_UNWANTED_S: Final = 5.0
_PAUSE_S: Final = 1.0  # after a turn that could not reach the stores
_FINISH_S: Final = 10.0  # for the rounds in hand when the worker ends
_STEP_S: Final = 60.0  # and then for what does not wait for others


class End(StrEnum):
    """Why a worker ended."""

    TIME = "its time was over"
    DRAINED = "nothing was left to do"
    STOPPED = "it was asked to stop"
    HANDED_OVER = "a successor took over"
    FENCED = "a newer deployment leads"
    NOT_WANTED = "fewer workers are wanted"
    NOT_NEEDED = "another one of its number is at work for longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When a worker ends by itself."""

    seconds: float | None = None
    drained: bool = False  # once nothing waits any more


@dataclass(slots=True)
class _Life:
    """What one life of a worker has: its state, and its place in the log."""

    log: ShardCommandLog
    worker: Worker
    outbox: Outbox
    cursor: Cursor
    companion: Companion
    control: Control | None


@dataclass(slots=True)
class WorkerProcess:
    """The process of one worker; ``turn`` again and again, then ``end``."""

    settings: Settings
    index: int
    workers: int
    clock: Clock
    start_spark: Callable[[], SparkSession] | None = None
    run: str = ""  # the run of the DAG that this process belongs to
    seconds: float | None = None  # how long it works; None: without end
    around: Surroundings = field(init=False)
    dataflows: dict[str, RunningDataflow] = field(default_factory=dict)
    _shards: Shards = field(init=False)
    _board: Board = field(init=False)
    _deployment: Deployment = field(init=False)
    _life: _Life | None = None
    _ending: list[RunningDataflow] = field(default_factory=list)  # stopped, in their last step
    _mode: Mode = Mode.READ_ONLY
    _mode_s: float | None = None
    _control_s: float = 0.0
    _beat: int = 0
    _beaten_s: float | None = None
    _told: dict[str, Any] | None = None
    _running: set[tuple[str, int, int]] = field(default_factory=set)  # on all live workers; as ``Seen.running``
    _could_write: bool = False  # at the last look
    _wanted: int | None = None  # how many workers the controller wants
    _unwanted_s: float | None = None  # since when these are too few for this one
    _began_ms: int = 0  # by the clock of the database
    _last_life: int = 0  # the number of this process's last life

    def __post_init__(self) -> None:
        self._shards = Shards.connect(self.settings)
        self._board = Board(self.settings)
        self.around = Surroundings(
            self.settings, self.index, self.clock, self._connect, self._shards, self._board, self.start_spark
        )
        self._deployment = self._connect()

    def _connect(self) -> Deployment:
        return deployment_of(self.settings, who=f"storage worker {self.index}", clock=self.clock)

    # One turn

    def turn(self) -> tuple[End | None, float]:
        """Take one turn; return why the worker is to end, or None, and in how many seconds the next turn comes.

        What passes by itself is waited for: stores that are away, and another leader of the catalog, with whom a new
        life begins. Raises ``FencedByGeneration`` if a newer deployment leads.
        """
        try:
            return self._turn(), TURN_S
        except ReplacedBySuccessor:
            return End.HANDED_OVER, 0.0
        except (Unreachable, ReadOnly, NotLed, ConflictsUnsettled, CommitStateUnknown) as error:
            log.warning("storage worker %s waits: %s", self.index, error)
        except (StaleState, FencedByEpoch) as error:
            log.warning("storage worker %s begins anew: %s", self.index, error)
            self.forget_life()
        return None, _PAUSE_S

    def _turn(self) -> End | None:
        self._look()
        if self._mode is Mode.READ_ONLY:
            self.around.may_write = False
            self._tell()
            return None
        if self._life is None and self._is_replaced():
            return End.HANDED_OVER
        if self._life is None and self._find_longer() is not None:
            return End.NOT_NEEDED
        life = self._life or self._begin()
        life.outbox.flush(life.log)
        fail_point("worker.flushed")
        for row in life.cursor.read(life.log):
            self._apply(life, life.worker.take(row))
            if life.control is not None:
                life.control.see(row)
        if life.log.life_of(life.outbox.sender.name) != life.outbox.sender.life:
            raise ReplacedBySuccessor(f"{life.outbox.sender} was replaced", hint="the later one goes on")
        for answer in life.companion.answers():
            self._apply(life, life.worker.handle_answer(answer))
        self._hear(life)
        self.around.may_write = life.worker.may_write
        self._control(life)
        self._tell()
        fail_point("worker.told")
        return End.NOT_WANTED if self._is_unwanted() else None

    @property
    def _until_ms(self) -> int | None:
        """When this process ends, by the clock of the database; None: never."""
        return None if self.seconds is None else self._began_ms + int(self.seconds * 1000)

    def _is_replaced(self) -> bool:
        """Tell whether a successor is at work since the last life of this process, which must not take over again."""
        entry = self._find_live()
        return entry is not None and 0 < self._last_life < entry.life

    def _find_longer(self) -> Entry | None:
        """Return what the live worker of this number says, if it is another process, and ends later than this one."""
        entry = self._find_live()
        if entry is None or entry.life == self._last_life:
            return None
        return entry if outlives(entry, self._until_ms) else None

    def _find_live(self) -> Entry | None:
        """Return what the live worker of this number says: this process, or another one."""
        return self.around.seen.board[place_of(self.index)] if self.index in self.around.seen.live else None

    def explain(self, why: End) -> str:
        """Return why this process ends, with who is at work in its place, or with what was left aside."""
        if why is End.NOT_NEEDED and (longer := self._find_longer()) is not None:
            until_ms = longer.value["until_ms"]
            until = "without end" if until_ms is None else f"until {time_text(until_ms // 1000 * 1000)}"
            return f"worker {self.index} is at work {until} already"
        return "; ".join([why, *(self._left_aside() if why is End.DRAINED else [])])

    def _left_aside(self) -> list[str]:
        try:
            paced, standings = self._deployment.registry.read().paced, self._deployment.objects.read()
        except TidemarkError as error:
            return [f"what is paused or suspended is not known: {error}"]
        resting = {name: each for name, each in standings.items() if each.rests_at(self.clock.now_ms())}
        return [f"{name} was left aside: it is {resting[name]}" for name in paced if name in resting]

    def _is_unwanted(self) -> bool:
        """Tell whether fewer workers are wanted for some seconds now.

        A controller that begins says its number after that of the one before.
        """
        if self._wanted is None or self.index < self._wanted:
            self._unwanted_s = None
            return False
        now_s = time.monotonic()
        self._unwanted_s = self._unwanted_s or now_s
        return now_s - self._unwanted_s >= _UNWANTED_S

    def _look(self) -> None:
        """Look at the board, and now and then at the mode."""
        entries, now_ms = self._board.read()
        self._began_ms = self._began_ms or now_ms
        live = tuple(find_live(entries, now_ms=now_ms))
        self._show(Seen({entry.place: entry for entry in entries}, live))
        now_s = time.monotonic()
        if self._mode_s is None or now_s - self._mode_s >= _MODE_S:
            self._mode, self._mode_s = read_mode(self._deployment), now_s

    def _show(self, seen: Seen) -> None:
        """Show the dataflows what is seen now, and wake those that it concerns."""
        before, self.around.seen = self.around.seen, seen
        changed = [place for place, entry in seen.board.items() if before.board.get(place) is not entry]
        running, may_write = seen.running(), self.around.may_write
        concerned = {object_of(place) for place in changed} | {id_ for id_, *_ in self._running ^ running}
        for id_, dataflow in self.dataflows.items():
            if id_ in concerned or may_write != self._could_write:
                dataflow.wake()
        self._running, self._could_write = running, may_write

    def _begin(self) -> _Life:
        """Begin a life: join the log, which ends the life before, and read what the log says by then."""
        commands = ShardCommandLog.open(self._shards, deployment=self._deployment, clock=self.clock)
        outbox, cursor, worker = Outbox(commands.join(f"worker-{self.index}")), Cursor(), Worker(self.index)
        self._last_life = outbox.sender.life
        fail_point("worker.joined")
        companion = Companion(partial(read_resume_points, self._shards.beside()))
        control = Control.begin(commands, workers=self.workers) if self.index == 0 else None
        life = _Life(commands, worker, outbox, cursor, companion, control)
        try:
            self._apply(life, worker.replay(cursor.read(commands)))
        except BaseException:  # the next turn begins another life: rows of old starts are replayed, and never taken
            companion.close()
            raise
        self._life = life
        self._wanted = None  # what was wanted before this life may be fewer workers than are started now
        if control is not None:
            self._clear_rounds(worker)
        return life

    def _clear_rounds(self, worker: Worker) -> None:
        """Remove from the board the rounds of objects that nobody wants any more."""
        for id_ in {object_of(place) for place in self.around.seen.board} - {None, *worker.descriptions}:
            self._board.remove(f"{ROUNDS}{id_}/")

    def _apply(self, life: _Life, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast(command):
                    life.outbox.put(command)
                case AskResumePoints() | PassThrough():
                    life.companion.ask(effect)
                case StartDataflow(start):
                    self._start(start, life.worker.dataflows[start.id].index)
                case StopDataflow(id_):
                    self._stop(id_)
                case Configure(values) if WORKERS in values:
                    self._wanted = int(values[WORKERS])
                case Warn(message):
                    log.warning("%s", message)

    def _start(self, start: Start, started_at: int) -> None:
        self._stop(start.id)
        make: Callable[[], Dataflow]
        if isinstance(start, CreateIngestionDataflow):
            make = partial(IngestionDataflow, self.around, start, started_at)
        else:
            make = partial(SinkDataflow, self.around, start, started_at)
        dataflow = self.dataflows[start.id] = RunningDataflow(name_of(start.description.definition), started_at, make)
        dataflow.start()

    def _stop(self, id_: str) -> None:
        if (dataflow := self.dataflows.pop(id_, None)) is not None:
            dataflow.stop()
            self._ending = [each for each in self._ending if not each.join(0)] + [dataflow]

    def _hear(self, life: _Life) -> None:
        """Take the news of the dataflows into the state of the worker."""
        for id_, dataflow in self.dataflows.items():
            life.worker.advance(id_, dataflow.news.upper)
            if dataflow.failure:
                self._apply(life, life.worker.fail(id_, dataflow.failure))
                dataflow.failure = ""

    def _control(self, life: _Life) -> None:
        now_s = time.monotonic()
        if life.control is None or now_s - self._control_s < _CONTROL_S:
            return
        self._control_s, seen = now_s, self.around.seen
        life.control.turn(self._deployment, seen.board, seen.live, now_ms=self.clock.now_ms())
        life.control.outbox.flush(life.log)

    # What others see of this worker

    def _tell(self) -> None:
        """Tell the board how this worker is: when something changed that others act upon, and as a beat."""
        life, now_s = self._life, time.monotonic()
        running = {id_: dataflow.started_at for id_, dataflow in self.dataflows.items()}
        acted_upon = {"running": running, "read_to": 0 if life is None else life.cursor.next_index}
        is_due = self._beaten_s is None or now_s - self._beaten_s >= BEAT_S
        if not is_due and acted_upon == self._told:
            return
        if self._put() is False and life is not None:
            raise ReplacedBySuccessor(f"{life.outbox.sender} was replaced", hint="the later one goes on")
        self._told, self._beaten_s = acted_upon, now_s

    def _put(self, *, ended: str = "") -> bool:
        life = self._life
        self._beat += 1
        value = {
            "writer": writer_id(),
            "began_ms": self._began_ms,
            "until_ms": self._until_ms,
            "run": self.run,
            "read_to": 0 if life is None else life.cursor.next_index,
            "mode": self._mode.value,
            "objects": sorted({dataflow.name for dataflow in self.dataflows.values()}) if self.around.may_write else [],
            "dataflows": {
                id_: {"name": dataflow.name, "started_at": dataflow.started_at, **dataflow.news.to_json()}
                for id_, dataflow in self.dataflows.items()
            },
            "obeys": 0 if life is None else life.worker.controller_life,
            "frontiers": {} if life is None else {id_: frontier_json(f) for id_, f in life.worker.frontiers.items()},
            "stalled": {} if life is None else life.worker.stalled,
            "drained": ended == End.DRAINED or self.is_drained(),
            "ended": ended,
        }
        # Before its first life a process says nothing: the one that it will succeed may still be at work.
        number = 0 if life is None else life.outbox.sender.life
        return life is None or self._board.put(place_of(self.index), value, life=number, number=self._beat)

    def is_drained(self) -> bool:
        """Return whether everything that is wanted runs, and found nothing to do in its last round.

        Worker 0 knows what is wanted; the others believe its word.
        """
        life = self._life
        if life is None or not self.around.may_write:
            return False
        if life.control is None:
            entry = self.around.seen.board.get(place_of(0))
            return entry is not None and entry.written_ms >= self._began_ms and bool(entry.value["drained"])
        is_quiet = life.control.has_begun and not life.control.outbox.commands and not life.outbox.commands
        wanted = life.control.controller.running
        return is_quiet and not life.companion.is_busy and all(self._is_idle(life, id_) for id_ in wanted)

    def _is_idle(self, life: _Life, id_: str) -> bool:
        """Tell whether the holder of an object found nothing to do, and a sink has seen what workers made visible."""
        told = self._said_of(id_)
        if told is None or not told["idle"]:
            return False
        description = life.worker.descriptions.get(id_)
        if not isinstance(description, Sink):
            return True
        sources = [each for each, dataflow in self.dataflows.items() if dataflow.name == description.collection]
        carried = parse_frontier(str(told["contents"]))
        said = [self._said_of(each) for each in sources]
        return all(each is not None and parse_frontier(str(each["contents"])) <= carried for each in said)

    def _said_of(self, id_: str) -> dict[str, Any] | None:
        """Return what the holder of an object tells of the object."""
        dataflow = self.dataflows.get(id_)
        members = () if dataflow is None else self.around.seen.members(id_, dataflow.started_at)
        if not members:
            return None
        holder = self.around.seen.board[place_of(choose_holder(id_, members))]
        told: dict[str, Any] = holder.value["dataflows"][id_]
        return told

    # The end

    def forget_life(self) -> None:
        """End the present life: the next turn begins another one."""
        for id_ in list(self.dataflows):
            self._stop(id_)
        if self._life is not None:
            self._life.companion.close()
        self._life, self._told = None, None
        self._deployment = self._connect()

    def end(self, why: End) -> None:
        """End after the steps in hand; say so on the board."""
        for id_ in list(self.dataflows):
            self._stop(id_)
        until_s = time.monotonic() + _FINISH_S
        while self._has_steps_in_hand() and time.monotonic() < until_s:
            with suppress(TidemarkError):  # a round in hand looks at the board
                self._look()
            time.sleep(TURN_S)
        self.around.may_write = False  # a round that waits for others is given up: its numbers come again
        for dataflow in self._ending:
            if not dataflow.join(_STEP_S):
                log.warning("the last step of %s goes on; it is left", dataflow.name)
        if self._life is not None:
            self._life.companion.close()
        if why is not End.HANDED_OVER:
            with suppress(Unreachable):
                self._put(ended=why.value)
        self._board.close()

    def _has_steps_in_hand(self) -> bool:
        return not all(dataflow.join(0) for dataflow in self._ending)


def run_worker(
    settings: Settings,
    *,
    index: int,
    workers: int,
    until: Until,
    stop: Event,
    clock: Clock,
    start_spark: Callable[[], SparkSession] | None = None,
    parent: int | None = None,
    run: str = "",
) -> str:
    """Run one worker until its time is over, nothing is left to do, it is asked to stop, or another one took over.

    A worker of this number that is at work for longer goes on, and this one ends at once. Returns why it ended.

    The worker also ends when ``parent``, the process that has started it, is gone. ``run`` is told on the board.

    Raises ``FencedByGeneration`` if a newer deployment leads.
    """
    process = WorkerProcess(settings, index, workers, clock, start_spark, run, until.seconds)
    began_s = time.monotonic()
    why: End | None = None
    try:
        while why is None:
            why, pause_s = process.turn()
            if why is None and (stop.is_set() or (parent is not None and os.getppid() != parent)):
                why = End.STOPPED
            if why is None and until.seconds is not None and time.monotonic() - began_s >= until.seconds:
                why = End.TIME
            if why is None and until.drained and process.is_drained():
                why = End.DRAINED
            stop.wait(pause_s if why is None else 0)
        told = process.explain(why)
    except FencedByGeneration:
        why = End.FENCED
        raise
    finally:
        process.end(why or End.STOPPED)
    return told
