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
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from tidemark.catalog.deployment.deployment import deployment_of
from tidemark.clock import Clock
from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import read_mode
from tidemark.errors import FencedByEpoch, ReadOnly, ReplacedBySuccessor, StaleState, Unreachable
from tidemark.fail_points import fail_point
from tidemark.frontier import frontier_json
from tidemark.iceberg.leases.holding import writer_id
from tidemark.iceberg.shards import Shards
from tidemark.settings import Settings
from tidemark.storage.board import Board
from tidemark.storage.command_log import ShardCommandLog
from tidemark.storage.commands import CreateIngestionDataflow, Start
from tidemark.storage.dataflows.dataflow import Dataflow, RunningDataflow, Surroundings
from tidemark.storage.dataflows.ingestion import IngestionDataflow
from tidemark.storage.dataflows.sink import SinkDataflow
from tidemark.storage.effects import AskResumePoints, Broadcast, Effect, PassThrough, StartDataflow, StopDataflow, Warn
from tidemark.storage.order import Cursor, Outbox
from tidemark.storage.processes.companion import Companion, name_of, read_resume_points
from tidemark.storage.processes.control import WORKERS, Control
from tidemark.storage.sharing import choose_holder, find_live, place_of
from tidemark.storage.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FAIL_POINTS: Final = ("worker.joined", "worker.flushed", "worker.told")
TURN_S: Final = 0.05
BEAT_S: Final = 1.0
_CONTROL_S: Final = 1.0
_MODE_S: Final = 1.0
_PAUSE_S: Final = 1.0  # after a turn that could not reach the stores
_STEP_S: Final = 60.0  # for the step in hand of a dataflow when the worker ends


class End(StrEnum):
    """Why a worker ended."""

    TIME = "its time was over"
    DRAINED = "nothing was left to do"
    STOPPED = "it was asked to stop"
    HANDED_OVER = "a successor took over"
    NOT_WANTED = "fewer workers are wanted"


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
    _began_ms: int = 0  # by the clock of the database

    def __post_init__(self) -> None:
        self._shards = Shards.connect(self.settings)
        self._board = Board(self.settings)
        self.around = Surroundings(self.settings, self.index, self.clock, self._connect, self.start_spark)
        self._deployment = self._connect()

    def _connect(self) -> Deployment:
        return deployment_of(self.settings, who=f"storage worker {self.index}", clock=self.clock)

    # One turn

    def turn(self) -> End | None:
        """Take one turn; return why the worker is to end, or None.

        Raises:
            ReplacedBySuccessor: If a later life of this worker has begun.
            FencedByGeneration: If a newer deployment leads.
            Unreachable, StaleState, FencedByEpoch: What passes by itself: take another turn.
        """
        self._look()
        if self._mode is Mode.READ_ONLY:
            self.around.may_write = False
            self._tell()
            return None
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
        wanted = life.worker.configuration.get(WORKERS)
        return End.NOT_WANTED if wanted is not None and self.index >= int(wanted) else None

    def _look(self) -> None:
        """Look at the board, and now and then at the mode."""
        entries, now_ms = self._board.read()
        self._began_ms = self._began_ms or now_ms
        self.around.board = {entry.place: entry for entry in entries}
        self.around.live = tuple(find_live(entries, now_ms=now_ms))
        now_s = time.monotonic()
        if self._mode_s is None or now_s - self._mode_s >= _MODE_S:
            self._mode, self._mode_s = read_mode(self._deployment), now_s

    def _begin(self) -> _Life:
        """Begin a life: join the log, which ends the life before, and read what the log says by then."""
        commands = ShardCommandLog.open(self._shards, deployment=self._deployment, clock=self.clock)
        outbox, cursor, worker = Outbox(commands.join(f"worker-{self.index}")), Cursor(), Worker(self.index)
        fail_point("worker.joined")
        companion = Companion(partial(read_resume_points, self._shards))
        control = Control.begin(commands, workers=self.workers) if self.index == 0 else None
        self._life = life = _Life(commands, worker, outbox, cursor, companion, control)
        self._apply(life, worker.replay(cursor.read(commands)))
        return life

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
                case Warn(message):
                    log.warning("%s", message)

    def _start(self, start: Start, started_at: int) -> None:
        self._stop(start.id)
        make: Callable[[], Dataflow]
        if isinstance(start, CreateIngestionDataflow):
            make = partial(IngestionDataflow, self.around, start, started_at)
        else:
            make = partial(SinkDataflow, self.around, start, started_at)
        dataflow = self.dataflows[start.id] = RunningDataflow(name_of(start), started_at, make)
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
        self._control_s = now_s
        life.control.turn(self._deployment, self.around.board, self.around.live, now_ms=self.clock.now_ms())
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
            entry = self.around.board.get(place_of(0))
            return entry is not None and entry.written_ms >= self._began_ms and bool(entry.value["drained"])
        is_quiet = life.control.has_begun and not life.control.outbox.commands and not life.outbox.commands
        wanted = life.control.controller.running
        return is_quiet and not life.companion.is_busy and all(self._is_idle(id_) for id_ in wanted)

    def _is_idle(self, id_: str) -> bool:
        dataflow = self.dataflows.get(id_)
        members = () if dataflow is None else self.around.members(id_, dataflow.started_at)
        if not members:
            return False
        holder = self.around.board[place_of(choose_holder(id_, members))]
        return bool(holder.value["dataflows"][id_]["idle"])

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
        for dataflow in self._ending:
            if not dataflow.join(_STEP_S):
                log.warning("the last step of %s goes on; it is left", dataflow.name)
        if self._life is not None:
            self._life.companion.close()
        if why is not End.HANDED_OVER:
            self._put(ended=why.value)
        self._board.close()


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
) -> End:
    """Run one worker until its time is over, nothing is left to do, it is asked to stop, or another one took over.

    The worker also ends when ``parent``, the process that has started it, is gone. ``run`` is told on the board.

    Raises ``FencedByGeneration`` if a newer deployment leads.
    """
    process = WorkerProcess(settings, index, workers, clock, start_spark, run)
    began_s = time.monotonic()
    why: End | None = None
    try:
        while why is None:
            pause_s = TURN_S
            try:
                why = process.turn()
            except ReplacedBySuccessor:
                why = End.HANDED_OVER
            except (Unreachable, ReadOnly) as error:
                log.warning("storage worker %s waits: %s", index, error)
                pause_s = _PAUSE_S
            except (StaleState, FencedByEpoch) as error:
                log.warning("storage worker %s begins anew: %s", index, error)
                process.forget_life()
                pause_s = _PAUSE_S
            if why is None and (stop.is_set() or (parent is not None and os.getppid() != parent)):
                why = End.STOPPED
            if why is None and until.seconds is not None and time.monotonic() - began_s >= until.seconds:
                why = End.TIME
            if why is None and until.drained and process.is_drained():
                why = End.DRAINED
            stop.wait(pause_s if why is None else 0)
    finally:
        process.end(why or End.STOPPED)
    return why
