"""Storage workers in one process, stepped by hand: a log that can lose answers, workers that crash, a slow companion.

Whoever steps the ``Cluster`` chooses what happens next; nothing else is random. After each step the cluster checks what
must always hold, with a few lines of its own in place of the library's; ``settle`` checks what must hold in the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemark.errors import CommitStateUnknown, FencedByEpoch
from tidemark.storage.commands import (
    Command,
    CreateIngestionDataflow,
    Description,
    DropDataflow,
    External,
    Ingestion,
    InitializationComplete,
    ObjectId,
    ResumePoint,
    RunSinkDataflow,
    Sink,
    Start,
    SuspendAndRestart,
)
from tidemark.storage.controller import Controller
from tidemark.storage.effects import (
    AskResumePoints,
    Broadcast,
    Effect,
    PassThrough,
    Report,
    ReportDropped,
    ReportFrontier,
    StartDataflow,
    StopDataflow,
)
from tidemark.storage.order import Cursor, Outbox, Place, Row, Sender, check_from, choose_new
from tidemark.storage.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tidemark.frontier import Frontier

Step = tuple[str, *tuple[object, ...]]


def ingestion(version: int = 1, *exports: str) -> Ingestion:
    return Ingestion(f"v{version}", exports)


def sink(version: int = 1) -> Sink:
    return Sink(f"v{version}", "c")


@dataclass
class MemoryCommandLog:
    """Implements ``CommandLog``; ``loses_answer`` lets the next append land and fail."""

    rows: list[Row] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    start: int = 0
    loses_answer: bool = False

    def join(self, name: str) -> Sender:
        self.places[name] = self.places.get(name, Place()).next_life()
        return Sender(name, self.places[name].life)

    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        for command in choose_new(sender, self.places.get(sender.name), first_number, commands):
            place = self.places[sender.name]
            self.rows.append(Row(len(self.rows), sender, place.next_number, command))
            self.places[sender.name] = Place(place.life, place.next_number + 1)
        if self.loses_answer:
            self.loses_answer = False
            raise CommitStateUnknown("the answer was lost")

    def read(self, from_index: int) -> list[Row]:
        check_from(from_index, self.start)
        return self.rows[from_index:]


@dataclass
class Node:
    """One life of a worker: its state, what runs in its process, and its channels."""

    worker: Worker
    outbox: Outbox
    cursor: Cursor = field(default_factory=Cursor)
    companion: list[AskResumePoints | PassThrough] = field(default_factory=list)
    running: dict[ObjectId, Start] = field(default_factory=dict)
    inbox: list[External] = field(default_factory=list)  # from the controller
    reports: list[Report] = field(default_factory=list)  # to the controller
    told: dict[ObjectId, Frontier] = field(default_factory=dict)  # frontiers, since the controller connected
    born: int = 0  # the end of the log at the start of this life
    is_connected: bool = False
    may_report: bool = False  # whether something happened since its last turn
    untouched: dict[ObjectId, Description] | None = None  # descriptions, until the end marker

    def apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast(command):
                    self.outbox.put(command)
                case AskResumePoints() | PassThrough():
                    self.companion.append(effect)
                case StartDataflow(start):
                    assert start.id not in self.running, f"{start.id} runs twice"
                    self.running[start.id] = start
                case StopDataflow(id_):
                    self.running.pop(id_, None)
                case effect if isinstance(effect, Report):
                    self.tell(effect)

    def tell(self, report: Report) -> None:
        assert self.is_connected, "a report to nobody"
        if isinstance(report, ReportFrontier):
            assert report.upper > self.told.get(report.id, 0), f"{report} says nothing new"
            self.told[report.id] = report.upper
        if isinstance(report, ReportDropped):
            self.told.pop(report.id, None)
        self.reports.append(report)


@dataclass
class Cluster:
    """A controller and its workers; ``script`` is what somebody, or fate, will do: one after the other, at any time."""

    script: list[Step] = field(default_factory=list)
    workers: int = 3
    make_worker: Callable[[int], Worker] = Worker
    make_controller: Callable[[int], Controller] = Controller
    log: MemoryCommandLog = field(default_factory=MemoryCommandLog)
    is_companion_of_client: bool = False  # whether a companion goes when the controller connects anew
    desired: dict[ObjectId, Description] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    zombies: list[Node] = field(default_factory=list)
    changes: int = 0  # of what is wanted, that start something
    restarts: int = 0  # of worker 0, which cannot know what its predecessor was about to start
    drops: Counter[ObjectId] = field(default_factory=Counter)  # commands, less acknowledgements
    merged: dict[ObjectId, Frontier] = field(default_factory=dict)
    reads: int = 0

    def __post_init__(self) -> None:
        self.controller = self.make_controller(self.workers)
        self.nodes = [self.new_node(index) for index in range(self.workers)]
        for index in range(self.workers):
            self.connect(index)

    def new_node(self, index: int) -> Node:
        node = Node(self.make_worker(index), Outbox(self.log.join(f"worker-{index}")), born=len(self.log.rows))
        node.apply(node.worker.replay(node.cursor.read(self.log)))
        return node

    # What may happen next

    def steps(self) -> Iterator[Step]:
        """Yield what is under way: each may come next, and they come to an end."""
        if self.script:
            yield ("play",)
        for index, node in enumerate(self.nodes):
            due = {
                "connect": not node.is_connected,
                "external": node.inbox,
                "flush": node.outbox.commands,
                "answer": node.companion,
                "internal": node.cursor.next_index < len(self.log.rows),
                "report": node.may_report,
                "receive": node.reports,
            }
            yield from ((name, index) for name, is_due in due.items() if is_due)
        for index, node in enumerate(self.zombies):
            if node.companion or node.outbox.commands:
                yield ("haunt", index)

    def troubles(self) -> Iterator[Step]:
        """Yield what may come in between, any number of times."""
        for index, node in enumerate(self.nodes):
            yield ("crash", index)
            yield ("reconnect", index)
            yield from (("advance", index, id_) for id_ in node.running)
            yield from (("fail", index, id_) for id_ in node.running)
            if node.outbox.commands:
                yield ("lose", index)
        yield ("restart",)

    def take(self, step: Step) -> None:
        """Let it happen, and check what must always hold."""
        name, *rest = step
        getattr(self, name)(*rest)
        self.check()

    def play(self) -> None:
        name, *rest = self.script.pop(0)
        getattr(self, name)(*rest)

    def want(self, id_: ObjectId, description: Description | None = None) -> None:
        self.desired.pop(id_, None)
        if description is not None:
            self.desired[id_] = description
            self.changes += 1
        self.follow()

    def follow(self) -> None:
        dropping = {*self.controller.dropping}
        commands = self.controller.follow(self.desired)
        for id_ in self.controller.dropping.keys() - dropping:
            self.drops[id_] += 1
        for index in self.controller.connected:
            self.nodes[index].inbox += commands

    def connect(self, index: int) -> None:
        node = self.nodes[index]
        commands, news = self.controller.connect(index)
        node.inbox, node.reports, node.told = list(commands), [], {}
        node.worker.connect()
        node.is_connected, node.untouched = True, dict(node.worker.descriptions)
        if self.is_companion_of_client:
            node.companion = []
        self.hear(news)

    def external(self, index: int) -> None:
        node = self.nodes[index]
        command = node.inbox.pop(0)
        if isinstance(command, InitializationComplete):
            node.untouched = None
        self.turn(node, external=[command])

    def turn(self, node: Node, external: Sequence[External] = (), internal: Sequence[Row] = ()) -> None:
        node.apply(node.worker.turn(external=external, internal=internal))
        node.may_report = True

    def report(self, index: int) -> None:
        self.turn(self.nodes[index])
        self.nodes[index].may_report = False

    def flush(self, index: int) -> None:
        self.nodes[index].outbox.flush(self.log)

    def lose(self, index: int) -> None:
        self.log.loses_answer = True
        try:
            self.flush(index)
        except CommitStateUnknown:
            return  # the outbox repeats it

    def answer(self, index: int) -> None:
        node = self.nodes[index]
        node.apply(node.worker.handle_answer(self.decide(node.companion.pop(0))))

    def decide(self, question: AskResumePoints | PassThrough) -> Start | DropDataflow:
        if isinstance(question, PassThrough):
            return question.command  # type: ignore[return-value]
        self.reads += 1
        exports = question.description.exports or (question.id,)
        points = {id_: ResumePoint(0, {"read": self.reads}) for id_ in exports}
        return CreateIngestionDataflow(question.id, question.description, 0, points)

    def internal(self, index: int) -> None:
        node = self.nodes[index]
        (row,) = self.log.read(node.cursor.next_index)[:1]
        node.cursor.check_order([row])
        self.turn(node, internal=[row])

    def receive(self, index: int) -> None:
        self.hear(self.controller.receive(index, self.nodes[index].reports.pop(0)))

    def hear(self, news: Iterable[Report]) -> None:
        for report in news:
            if isinstance(report, ReportFrontier):
                least = min(node.told.get(report.id, 0) for node in self.nodes)
                assert self.merged.get(report.id, 0) < report.upper <= least, f"{report} is not the minimum"
                self.merged[report.id] = report.upper
            if isinstance(report, ReportDropped):
                self.drops[report.id] -= 1
                self.merged.pop(report.id, None)
                assert self.drops[report.id] >= 0, f"{report} twice"
                told = [id_ for node in self.nodes for id_ in node.worker.reported if node.untouched is None]
                assert report.id not in told, f"{report} before all workers know"
                self.follow()

    def crash(self, index: int) -> None:
        self.zombies.append(self.nodes[index])  # it may only seem dead
        self.controller.disconnect(index)
        self.nodes[index] = self.new_node(index)
        self.restarts += index == 0

    def haunt(self, index: int) -> None:
        node = self.zombies[index]
        if node.companion:
            node.apply(node.worker.handle_answer(self.decide(node.companion.pop(0))))
        try:
            node.outbox.flush(self.log)
        except FencedByEpoch:
            node.outbox.commands.clear()

    def reconnect(self, index: int) -> None:
        self.controller.disconnect(index)
        node = self.nodes[index]
        node.worker.disconnect()
        node.is_connected, node.inbox, node.reports = False, [], []

    def restart(self) -> None:
        """Let another controller begin, which knows the catalog alone."""
        self.controller = self.make_controller(self.workers)
        self.drops.clear()
        self.merged.clear()
        for index in range(self.workers):
            self.reconnect(index)
        self.controller.follow(self.desired)

    def advance(self, index: int, id_: ObjectId) -> None:
        node = self.nodes[index]
        node.worker.advance(id_, node.worker.uppers.get(id_, 0) + 1)
        node.may_report = True

    def fail(self, index: int, id_: ObjectId) -> None:
        node = self.nodes[index]
        node.apply(node.worker.fail(id_, "broken"))

    # What must hold

    def check(self) -> None:
        numbers = Counter((row.sender, row.number) for row in self.log.rows)
        assert all(count == 1 for count in numbers.values()), "a command is there twice"
        starts, cause = expected_dataflows(self.log.rows), self.changes
        reads = [next(iter(start.resume_points.values())).next_numbers["read"] for start in starts.created]
        assert len(set(reads)) == len(reads), "a dataflow was started from old points"
        if not self.restarts:
            assert starts.count <= cause + starts.suspended, "a dataflow was started without a cause"
        for node in self.nodes:
            wanted = starts.at[node.cursor.next_index]
            assert node.running.items() <= {id_: start for id_, (_, start) in wanted.items()}.items()
            young = {id_ for id_, (index, _) in wanted.items() if index >= node.born}
            assert young <= node.running.keys(), "a dataflow is missing"
            if node.untouched is not None:
                assert node.untouched == node.worker.descriptions, "a change before the end marker"

    def settle(self) -> None:
        """Let everything that is under way come to its end, and check that what runs is what is wanted."""
        for _ in range(2000):
            step = next(self.steps(), None)
            if step is None:
                break
            self.take(step)
        else:
            raise AssertionError("it never comes to rest")
        for node in self.nodes:
            assert {id_: start.description for id_, start in node.running.items()} == self.desired
            assert node.worker.descriptions == self.desired
        assert not self.controller.dropping, "a drop is never acknowledged"
        assert not +self.drops, "a drop is never told"
        self.check_frontiers()

    def check_frontiers(self) -> None:
        for node in self.nodes:
            known = {id_: upper for id_, upper in node.worker.uppers.items() if id_ in node.worker.reported}
            assert all(upper <= node.told.get(id_, 0) for id_, upper in known.items()), "the controller was not told"
        workers = [node.worker for node in self.nodes]
        top = 1 + max(upper for worker in workers for upper in (0, *worker.uppers.values(), *worker.reported.values()))
        for index, node in enumerate(self.nodes):
            for id_, description in self.desired.items():
                exports = description.exports if isinstance(description, Ingestion) else ()
                for each in exports or (id_,):
                    node.worker.advance(each, top)
            self.turn(node)
            while node.reports:
                self.receive(index)
        assert all(self.merged.get(id_) == top for id_ in self.desired), "a frontier is never told"


@dataclass
class Expected:
    """The dataflows by the log alone: those after so many rows, and the causes of all starts."""

    at: list[dict[ObjectId, tuple[int, Start]]]
    created: list[CreateIngestionDataflow] = field(default_factory=list)
    count: int = 0
    suspended: int = 0


def expected_dataflows(rows: Sequence[Row]) -> Expected:
    found = Expected([{}])
    present: dict[ObjectId, tuple[int, Start]] = {}
    for row in rows:
        present = dict(present)
        command = row.command
        if isinstance(command, CreateIngestionDataflow | RunSinkDataflow):
            present[command.id] = row.index, command
            found.count += 1
            if isinstance(command, CreateIngestionDataflow):
                found.created.append(command)
        elif isinstance(command, DropDataflow):
            for id_ in command.ids:
                present.pop(id_, None)
        elif isinstance(command, SuspendAndRestart) and present.get(command.id, (None,))[0] == command.started_at:
            del present[command.id]
            found.suspended += 1
        found.at.append(present)
    return found
