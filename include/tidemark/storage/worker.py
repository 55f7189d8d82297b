"""One worker as a state machine: commands, answers and observations in, effects out. Pure.

What each worker may do by itself is little: external commands change what it knows, internal commands start and stop
dataflows, and worker 0 alone turns the former into the latter. Both kinds come in one order, the same on all workers.

Source: reference, collections_catalog_storage §8. Different here: runs of sinks pass through the companion too, because
an object that was paused is resumed under its own id, and its drop may still wait there; a restart names the start that
it is about, so that two workers that see the same failure restart a dataflow once; a worker that starts anew does not
run what it finds in the log from the points of then, but asks for a restart from fresh ones; points that cannot be read
are asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tidemark.frontier import EMPTY, Empty, Frontier
from tidemark.storage.commands import (
    AllowCompaction,
    AllowWrites,
    CreateIngestionDataflow,
    Description,
    DropDataflow,
    External,
    Ingestion,
    InitializationComplete,
    ObjectId,
    Run,
    RunIngestion,
    RunSink,
    RunSinkDataflow,
    Start,
    SuspendAndRestart,
    UpdateConfiguration,
)
from tidemark.storage.effects import (
    AskResumePoints,
    Broadcast,
    Configure,
    Effect,
    Failed,
    PassThrough,
    PermitWrites,
    ReportStatus,
    StartDataflow,
    StopDataflow,
    Warn,
)
from tidemark.storage.history import find_lives, reduce
from tidemark.storage.order import Row
from tidemark.storage.reconciliation import reconcile

Answer = Start | DropDataflow | Failed
_DECIDES = 0  # the worker that turns external commands into internal ones


@dataclass(frozen=True, slots=True)
class Started:
    """A dataflow, and the index of the command that started it."""

    index: int
    command: Start

    @property
    def collections(self) -> tuple[ObjectId, ...]:
        """The object, and the collections that it writes."""
        description = self.command.description
        return (self.command.id, *(description.exports if isinstance(description, Ingestion) else ()))

    def resumed_at(self, id_: ObjectId) -> Frontier:
        """Return from where on the dataflow does something new for a collection, or for its sink."""
        if isinstance(self.command, RunSinkDataflow):
            return self.command.as_of
        point = self.command.resume_points.get(id_)
        return 0 if point is None else point.upper


@dataclass(slots=True)
class Worker:
    """The state of one life of a worker; ``replay`` comes first, then ``take`` of each row that follows."""

    index: int
    may_write: bool = False
    descriptions: dict[ObjectId, Description] = field(default_factory=dict)  # of what runs, or is about to
    as_ofs: dict[ObjectId, Frontier] = field(default_factory=dict)  # of sinks
    dataflows: dict[ObjectId, Started] = field(default_factory=dict)  # equal on all workers that read equally far
    uppers: dict[ObjectId, Frontier] = field(default_factory=dict)  # as far as this worker's part came
    reported: set[ObjectId] = field(default_factory=set)  # what the controller asked for; of no others it is told
    configuration: dict[str, str] = field(default_factory=dict)
    controller_life: int = 0  # of the last controller that was heard of
    _collected: list[External] | None = field(default_factory=list)  # from the controller, up to its end marker
    _asked: Counter[ObjectId] = field(default_factory=Counter)  # questions to the companion that have no answer yet
    _restarts: Counter[ObjectId] = field(default_factory=Counter)  # those in a row without an advancement in between
    _statuses: dict[ObjectId, ReportStatus] = field(default_factory=dict)  # the last one of each object
    _new_statuses: list[ReportStatus] = field(default_factory=list)  # to be reported

    @property
    def decides(self) -> bool:
        """Whether this worker is the one that broadcasts what external commands ask for."""
        return self.index == _DECIDES

    # The life of a worker, and of its controllers

    def replay(self, rows: Iterable[Row]) -> list[Effect]:
        """Take the log, up to its present end, into a new life; the sender of this life has joined the log before.

        What the last controller wants is known afterwards, as on all other workers. Nothing starts: the points of then
        are old, so that this worker asks for a restart of what should run.
        """
        rows = list(rows)
        effects: list[Effect] = []
        for row in rows:
            if row.external is None:
                effects += [effect for effect in self.handle_internal(row) if isinstance(effect, Configure)]
        for id_, started in self.dataflows.items():
            self.descriptions[id_] = started.command.description
            if isinstance(started.command, RunSinkDataflow):
                self.as_ofs[id_] = started.command.as_of
            effects += self.fail(id_, f"worker {self.index} was started anew", is_failure=False)
        for life, said in find_lives(rows).items():
            self.controller_life = life
            self.connect()
            for command in reduce([*said.values()]):
                effects += self.handle_external(command)
        return effects

    def connect(self) -> None:
        """Begin with a new life of the controller: nothing changes before its end marker. Dataflows run on.

        A life that goes before its end marker has changed nothing.
        """
        self._collected = []

    def take(self, row: Row) -> list[Effect]:
        """Take the next row of the log; all of them, of both kinds, in their order."""
        command = row.external
        if command is None:
            return self.handle_internal(row)
        if row.sender.life != self.controller_life:
            self.controller_life = row.sender.life
            self.connect()
        return self.handle_external(command)

    def turn(
        self, external: Iterable[External] = (), answers: Iterable[Answer] = (), internal: Iterable[Row] = ()
    ) -> list[Effect]:
        """Take one turn of the main loop: first reports, then what has arrived, internal commands last.

        The dataflows run between two turns; let them rest only if nothing has arrived. Source: §8.9.
        """
        effects: list[Effect] = [*self.report()]
        for command in external:
            effects += self.handle_external(command)
        for answer in answers:
            effects += self.handle_answer(answer)
        for row in internal:
            effects += self.handle_internal(row)
        return effects

    # External commands: they change what this worker knows, and start nothing

    def handle_external(self, command: External) -> list[Effect]:
        """Take a command of the controller."""
        if self._collected is None:
            return self._obey(command)
        if not isinstance(command, InitializationComplete):
            self._collected.append(command)
            return []
        return self._reconcile()

    def _obey(self, command: External) -> list[Effect]:
        match command:
            case RunIngestion() | RunSink():
                self._arm(command)
                self._restarts.pop(command.id, None)  # another description may mend what kept it from running
                return self._ask(command.id) if self.decides else []
            case AllowCompaction(id_, since):
                return self._compact(id_, since)
            case UpdateConfiguration():
                return [Broadcast(command)] if self.decides else []
            case AllowWrites() if not self.may_write:
                self.may_write = True
                return [PermitWrites()]
        return []

    def _arm(self, run: Run) -> None:
        """Store the description, and report frontiers from now on. Source: §8.3."""
        self.descriptions[run.id] = run.description
        if isinstance(run, RunSink):
            self.as_ofs[run.id] = max(run.as_of, self.as_ofs.get(run.id, 0))
        self.reported.update(run.collections)

    def _ask(self, id_: ObjectId) -> list[Effect]:
        """Let the companion of worker 0 decide where the object goes on."""
        self._asked[id_] += 1
        description, restarts = self.descriptions[id_], self._restarts[id_]
        if isinstance(description, Ingestion):
            return [AskResumePoints(id_, description, restarts)]
        return [PassThrough(RunSinkDataflow(id_, description, self.as_ofs[id_]), restarts)]

    def _ask_again(self, id_: ObjectId) -> list[Effect]:
        effects = self._ask(id_)
        self._restarts[id_] += 1
        return effects

    def _compact(self, id_: ObjectId, since: Frontier) -> list[Effect]:
        if id_ not in self.reported and id_ not in self.descriptions:
            return [Warn(f"{id_} is not known: its compaction up to {since} is left out")]
        if isinstance(since, Empty):
            return self._drop(id_)
        if id_ in self.as_ofs:
            self.as_ofs[id_] = max(since, self.as_ofs[id_])
        return []

    def _drop(self, id_: ObjectId) -> list[Effect]:
        """Forget an object, or a collection of an ingestion. This acknowledges the drop (``Controller.hear``).

        Not the end of the dataflow: by then another controller may lead that never heard of the object. Source: §8.5.
        """
        self.reported.discard(id_)
        return self._forget(id_)

    def _forget(self, id_: ObjectId) -> list[Effect]:
        self._forget_statuses(id_)
        self._restarts.pop(id_, None)
        self.as_ofs.pop(id_, None)
        if self.descriptions.pop(id_, None) is None:
            self._forget_export(id_)
            return []
        # Through the companion: the drop cannot overtake the start that was asked for before.
        return [PassThrough(DropDataflow((id_,)))] if self.decides else []

    def _forget_export(self, export: ObjectId) -> None:
        for id_, description in self.descriptions.items():
            if isinstance(description, Ingestion) and export in description.exports:
                rest = tuple(each for each in description.exports if each != export)
                self.descriptions[id_] = replace(description, exports=rest)

    def _reconcile(self) -> list[Effect]:
        """Change what differs from what the new controller wants, now that it has said everything. Source: §8.7.

        Raises ``IncompatibleChange`` if that is not possible; then nothing was changed.
        """
        plan = reconcile(self._collected or [], {**self.descriptions})
        self._collected = None
        effects: list[Effect] = [Warn(f"{id_} is not known: its drop is left out") for id_ in plan.unmatched]
        self.reported &= plan.expected
        for id_ in plan.stale:
            effects += self._forget(id_)
        for run in plan.unchanged:
            self._arm(run)
        self._new_statuses = [status for id_, status in self._statuses.items() if id_ in plan.expected]
        for command in plan.commands:
            effects += self._obey(command)
        return effects

    # Answers of the companion: worker 0 broadcasts what was decided

    def handle_answer(self, answer: Answer) -> list[Effect]:
        """Take an answer of the companion, which worker 0 alone has; one companion for the whole life of the worker."""
        if isinstance(answer, DropDataflow):
            return [Broadcast(answer)]
        self._asked[answer.id] -= 1
        is_last = not self._asked[answer.id]
        if is_last:
            del self._asked[answer.id]
        if not isinstance(answer, Failed):
            return [Broadcast(answer)]
        if not is_last or answer.id not in self.descriptions:
            return []  # a later question has been asked, or nobody wants the object any more
        self._note(ReportStatus(answer.id, "stalled", answer.reason))
        return self._ask_again(answer.id)

    # Internal commands: they alone start and stop dataflows

    def handle_internal(self, row: Row) -> list[Effect]:
        """Take the next command of the order that all workers share."""
        match row.command:
            case CreateIngestionDataflow() | RunSinkDataflow():
                return self._start(row, row.command)
            case DropDataflow(ids):
                return [effect for id_ in ids for effect in self._end(id_)]
            case SuspendAndRestart() as command:
                return self._suspend(command)
            case UpdateConfiguration(values):
                self.configuration |= values
                return [Configure(values)]
        return []

    def _start(self, row: Row, start: Start) -> list[Effect]:
        """Start a dataflow from the points that worker 0 decided upon, in place of the running one. Source: §8.3."""
        effects, started = self._stop(start.id), Started(row.index, start)
        if isinstance(start, CreateIngestionDataflow):
            points = start.resume_points
            finished = {id_ for id_ in start.description.exports if isinstance(points[id_].upper, Empty)}
            self.uppers |= {id_: EMPTY if id_ in finished else 0 for id_ in start.description.exports}
            open_exports = tuple(id_ for id_ in start.description.exports if id_ not in finished)
            if not open_exports or isinstance(start.as_of, Empty):
                return effects  # nothing is left to do
            start = replace(start, description=replace(start.description, exports=open_exports))
        else:
            self.uppers[start.id] = 0
        self.dataflows[start.id] = started
        self._note(ReportStatus(start.id, "running"))
        return [*effects, StartDataflow(start)]

    def _stop(self, id_: ObjectId) -> list[Effect]:
        return [StopDataflow(id_)] if self.dataflows.pop(id_, None) is not None else []

    def _end(self, id_: ObjectId) -> list[Effect]:
        started = self.dataflows.get(id_)
        for each in (id_,) if started is None else started.collections:
            self.uppers.pop(each, None)
        self._forget_statuses(id_)
        return self._stop(id_)

    def _suspend(self, command: SuspendAndRestart) -> list[Effect]:
        """Stop the dataflow, and let worker 0 start it from fresh points; never what was dropped. Source: §8.4."""
        present = self.dataflows.get(command.id)
        if present is None and command.id not in self.descriptions:
            return [Warn(f"{command.id} is not known: its suspension is left out")]  # it was dropped meanwhile
        if present is None or present.index != command.started_at:
            return []  # that start has ended: another worker said the same
        effects = self._stop(command.id)
        self._note(ReportStatus(command.id, "stalled", command.reason))
        is_wanted = command.id in self.descriptions  # else its drop waits at the companion
        if not (self.decides and is_wanted):
            return effects
        return effects + (self._ask_again(command.id) if command.is_failure else self._ask(command.id))

    # What the dataflows tell

    def advance(self, id_: ObjectId, upper: Frontier) -> None:
        """Note how far this worker's part of a collection, or a sink, came: what runs has done some work."""
        if upper <= self.uppers.get(id_, 0):
            return
        self.uppers[id_] = upper
        for object_id, started in self.dataflows.items():
            if id_ in started.collections and upper > started.resumed_at(id_):
                self._restarts.pop(object_id, None)

    def fail(self, id_: ObjectId, reason: str, *, is_failure: bool = True) -> list[Effect]:
        """Ask all workers to stop a dataflow that failed here, and to start it anew."""
        present = self.dataflows.get(id_)
        return [] if present is None else [Broadcast(SuspendAndRestart(id_, reason, present.index, is_failure))]

    # What the controller is told

    @property
    def frontiers(self) -> dict[ObjectId, Frontier]:
        """How far this worker is with what the controller asked for; nothing before its end marker. Source: §8.5."""
        if self._collected is not None:
            return {}
        return {id_: self.uppers.get(id_, 0) for id_ in sorted(self.reported)}

    @property
    def stalled(self) -> dict[ObjectId, str]:
        """Why objects that are wanted do not run, as worker 0 alone knows."""
        told = {id_: self._statuses[id_] for id_ in self.descriptions if id_ in self._statuses}
        return {id_: each.reason for id_, each in told.items() if each.status == "stalled"}

    def report(self) -> list[ReportStatus]:
        """Return what worker 0 alone tells, if the controller asked for the object and has not been told."""
        if self._collected is not None:
            return []
        told = [status for status in self._new_statuses if status.id in self.reported]
        self._new_statuses = [status for status in self._new_statuses if status.id not in self.reported]
        return told

    def _note(self, status: ReportStatus) -> None:
        if self.decides and self._statuses.get(status.id) != status:
            self._statuses[status.id] = status
            self._new_statuses.append(status)

    def _forget_statuses(self, id_: ObjectId) -> None:
        self._statuses.pop(id_, None)
        self._new_statuses = [status for status in self._new_statuses if status.id != id_]
