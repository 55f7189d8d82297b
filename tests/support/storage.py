"""Storage workers in one process, stepped by hand: a log that can lose answers, workers that crash, a slow companion.

Whoever steps the ``Cluster`` chooses what happens next; nothing else is random. After each step the cluster checks what
must always hold, with a few lines of its own in place of the library's; ``settle`` checks what must hold in the end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tidemark.errors import CommitStateUnknown, ReplacedBySuccessor
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
    Failed,
    PassThrough,
    Report,
    ReportDropped,
    ReportFrontier,
    ReportStatus,
    StartDataflow,
    StopDataflow,
)
from tidemark.storage.order import CONTROLLER, Cursor, Outbox, Place, Row, Sender, check_from, choose_new
from tidemark.storage.worker import Answer, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tidemark.frontier import Frontier

Step = tuple[str, *tuple[object, ...]]
Question = AskResumePoints | PassThrough


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
    read_places: dict[str, Place] = field(default_factory=dict)  # as of the last read

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
        self.read_places = dict(self.places)
        return self.rows[from_index:]

    def life_of(self, name: str) -> int:
        return self.read_places.get(name, Place()).life


class Level(NamedTuple):
    """What a worker writes on the board, in place of what it wrote before."""

    controller_life: int
    read_to: int
    frontiers: dict[ObjectId, Frontier]


@dataclass
class Node:
    """One life of a worker: its state, what runs in its process, and its channels."""

    worker: Worker
    outbox: Outbox
    cursor: Cursor = field(default_factory=Cursor)
    companion: list[Question] = field(default_factory=list)
    running: dict[ObjectId, Start] = field(default_factory=dict)
    posted: Level | None = None
    born: int = 0  # the end of the log at the start of this life
    untouched: dict[ObjectId, Description] | None = None  # descriptions, until the end marker

    @property
    def level(self) -> Level:
        return Level(self.worker.controller_life, self.cursor.next_index, self.worker.frontiers)

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


@dataclass
class Cluster:
    """A controller and its workers; ``script`` is what somebody, or fate, will do: one after the other, at any time."""

    script: list[Step] = field(default_factory=list)
    workers: int = 3
    make_worker: Callable[[int], Worker] = Worker
    make_controller: Callable[[int], Controller] = Controller
    log: MemoryCommandLog = field(default_factory=MemoryCommandLog)
    is_companion_of_controller: bool = False  # whether a companion goes when the controller begins anew
    is_companion_in_order: bool = True  # of one object; there is no order between objects
    desired: dict[ObjectId, Description] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    zombies: list[Node] = field(default_factory=list)
    unsaid: list[External] = field(default_factory=list)  # what the controller has decided
    ghosts: list[Outbox] = field(default_factory=list)  # earlier controllers, with what they had decided
    changes: int = 0  # of what is wanted, that start something
    restarts: int = 0  # of worker 0, which cannot know what its predecessor was about to start
    drops: Counter[ObjectId] = field(default_factory=Counter)  # commands, less acknowledgements
    heard: dict[int, Level] = field(default_factory=dict)  # by worker
    told: dict[int, dict[ObjectId, Frontier]] = field(default_factory=dict)  # of these, what this controller counts
    merged: dict[ObjectId, Frontier] = field(default_factory=dict)
    statuses: dict[ObjectId, ReportStatus] = field(default_factory=dict)
    reads: int = 0

    def __post_init__(self) -> None:
        self.nodes = [self.new_node(index) for index in range(self.workers)]
        self.begin()

    def new_node(self, index: int) -> Node:
        worker, outbox = self.make_worker(index), Outbox(self.log.join(f"worker-{index}"))
        node = Node(worker, outbox, born=len(self.log.rows))
        rows = node.cursor.read(self.log)
        node.apply(worker.replay(rows))
        neighbour = Worker(index + 1)  # it has been there all the time
        for row in rows:
            neighbour.take(row)
        for name in ("descriptions", "as_ofs", "dataflows", "reported", "may_write", "controller_life", "frontiers"):
            mine, theirs = getattr(worker, name), getattr(neighbour, name)
            assert mine == theirs, f"{name} of a new life are not those of the others"
        if rows and not _is_complete(rows, worker.controller_life):
            node.untouched = dict(worker.descriptions)
        return node

    def begin(self) -> None:
        """Let a life of the controller begin, which knows the catalog alone."""
        self.controller = self.make_controller(self.workers)
        self.controller.follow(self.desired)
        self.voice = Outbox(self.log.join(CONTROLLER))
        self.unsaid = self.controller.begin()
        for forgotten in (self.drops, self.heard, self.told, self.merged, self.statuses):
            forgotten.clear()

    # What may happen next

    def steps(self) -> Iterator[Step]:
        """Yield what is under way: each may come next, and they come to an end."""
        if self.script:
            yield ("play",)
        if self.unsaid or self.voice.commands:
            yield ("tell",)
        for index, node in enumerate(self.nodes):
            due = {
                "flush": node.outbox.commands,
                "read": node.cursor.next_index < len(self.log.rows),
                "report": node.level != node.posted,
                "receive": node.posted is not None and node.posted != self.heard.get(index),
            }
            yield from ((name, index) for name, is_due in due.items() if is_due)
            yield from (("answer", index, id_) for id_ in _objects(node.companion))
        for index, node in enumerate(self.zombies):
            if node.companion or node.outbox.commands:
                yield ("haunt", index)
        if self.ghosts:
            yield ("haunt_as_controller",)

    def troubles(self) -> Iterator[Step]:
        """Yield what may come in between, any number of times."""
        for index, node in enumerate(self.nodes):
            yield ("crash", index)
            yield from (("advance", index, id_) for id_ in node.running)
            yield from (("fail", index, id_) for id_ in node.running)
            yield from (("stall", index, id_) for id_ in _objects(node.companion))
            if node.outbox.commands:
                yield ("lose", index)
        if self.unsaid:
            yield ("mumble",)
        yield ("restart",)

    def take(self, step: Step) -> None:
        """Let it happen, and check what must always hold."""
        name, *rest = step
        getattr(self, name)(*rest)
        self.check()

    def play(self) -> None:
        name, *rest = self.script.pop(0)
        getattr(self, name)(*rest)

    # The controller

    def want(self, id_: ObjectId, description: Description | None = None) -> None:
        self.desired.pop(id_, None)
        if description is not None:
            self.desired[id_] = description
            self.changes += 1
        self.follow()

    def follow(self) -> None:
        dropping = {*self.controller.dropping}
        self.unsaid += self.controller.follow(self.desired)
        for id_ in self.controller.dropping.keys() - dropping:
            self.drops[id_] += 1

    def tell(self) -> None:
        if self.unsaid and not self.voice.commands:
            self.voice.put(self.unsaid.pop(0))
        self.voice.flush(self.log)
        for row in self.log.rows:
            if row.sender == self.voice.sender and row.number == self.voice.first_number - 1:
                self.controller.note(row)
                # It listens again and again, to those as well that read the row before.
                self.heard = {index: level for index, level in self.heard.items() if level.read_to <= row.index}

    def mumble(self) -> None:
        self.log.loses_answer = True
        try:
            self.tell()
        except CommitStateUnknown:
            return  # its outbox repeats it

    def receive(self, index: int) -> None:
        level = self.nodes[index].posted
        assert level is not None
        self.heard[index] = level
        if level.controller_life == self.voice.sender.life:
            self.told[index] = level.frontiers
            self.hear(self.controller.hear(index, level.read_to, level.frontiers))

    def hear(self, news: Iterable[Report]) -> None:
        for report in news:
            if isinstance(report, ReportFrontier):
                least = min(self.told.get(index, {}).get(report.id, 0) for index in range(self.workers))
                assert self.merged.get(report.id, 0) < report.upper <= least, f"{report} is not the minimum"
                self.merged[report.id] = report.upper
            if isinstance(report, ReportDropped):
                self.drops[report.id] -= 1
                self.merged.pop(report.id, None)
                assert self.drops[report.id] >= 0, f"{report} twice"
                told = [id_ for node in self.nodes for id_ in node.worker.reported if node.untouched is None]
                assert report.id not in told, f"{report} before all workers know"
                self.follow()

    def restart(self) -> None:
        """Let another controller begin; what the one before had to say may come at any time."""
        self.voice.commands += self.unsaid
        self.ghosts.append(self.voice)
        self.begin()

    def haunt_as_controller(self) -> None:
        voice = self.ghosts.pop(0)
        try:
            voice.flush(self.log)
        except ReplacedBySuccessor:
            return

    # The workers

    def read(self, index: int) -> None:
        node = self.nodes[index]
        (row,) = self.log.read(node.cursor.next_index)[:1]
        node.cursor.check_order([row])
        if row.sender.name == CONTROLLER and row.sender.life != node.worker.controller_life:
            node.untouched = dict(node.worker.descriptions)
            if self.is_companion_of_controller:
                node.companion = []
        if isinstance(row.command, InitializationComplete):
            node.untouched = None
        node.apply(node.worker.take(row))

    def report(self, index: int) -> None:
        node = self.nodes[index]
        node.posted = node.level
        for status in node.worker.report():
            assert index == 0, "a status is told more than once"
            self.statuses[status.id] = status

    def flush(self, index: int) -> None:
        self.nodes[index].outbox.flush(self.log)

    def lose(self, index: int) -> None:
        self.log.loses_answer = True
        try:
            self.flush(index)
        except CommitStateUnknown:
            return  # the outbox repeats it

    def answer(self, index: int, id_: ObjectId) -> None:
        node = self.nodes[index]
        node.apply(node.worker.handle_answer(self.decide(self.pop(node, id_))))

    def stall(self, index: int, id_: ObjectId) -> None:
        """Let the companion not find out where the object goes on, if somebody asks."""
        node = self.nodes[index]
        if id_ in _objects(node.companion):
            question = self.pop(node, id_)
            is_passed = isinstance(question, PassThrough)
            self.changes -= not is_passed and id_ in _objects(node.companion)  # what was asked later takes its place
            node.apply(node.worker.handle_answer(self.decide(question) if is_passed else Failed(id_, "broken")))

    def pop(self, node: Node, id_: ObjectId) -> Question:
        questions = [question for question in node.companion if question.id == id_]
        question = questions[0 if self.is_companion_in_order else -1]
        node.companion.remove(question)
        return question

    def decide(self, question: Question) -> Answer:
        if isinstance(question, PassThrough):
            return question.command
        self.reads += 1
        exports = question.description.exports or (question.id,)
        points = {id_: ResumePoint(0, {"read": self.reads}) for id_ in exports}
        return CreateIngestionDataflow(question.id, question.description, 0, points)

    def crash(self, index: int) -> None:
        self.zombies.append(self.nodes[index])  # it may only seem dead
        self.nodes[index] = self.new_node(index)
        self.restarts += index == 0

    def haunt(self, index: int) -> None:
        node = self.zombies[index]
        if node.companion:
            node.apply(node.worker.handle_answer(self.decide(node.companion.pop(0))))
        try:
            node.outbox.flush(self.log)
        except ReplacedBySuccessor:
            node.outbox.commands.clear()

    def advance(self, index: int, id_: ObjectId) -> None:
        worker = self.nodes[index].worker
        worker.advance(id_, worker.uppers.get(id_, 0) + 1)

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
        told = {id_: status.status for id_, status in self.statuses.items() if id_ in self.desired}
        assert told == dict.fromkeys(self.desired, "running"), "a status is never told"
        self.check_frontiers()

    def check_frontiers(self) -> None:
        uppers = [upper for node in self.nodes for upper in node.worker.uppers.values()]
        top = 1 + max((*uppers, *self.merged.values()), default=0)
        for index, node in enumerate(self.nodes):
            for id_, description in self.desired.items():
                exports = description.exports if isinstance(description, Ingestion) else ()
                for each in exports or (id_,):
                    node.worker.advance(each, top)
            self.report(index)
            self.receive(index)
        assert all(self.merged.get(id_) == top for id_ in self.desired), "a frontier is never told"


def _objects(questions: Iterable[Question]) -> list[ObjectId]:
    return list(dict.fromkeys(question.id for question in questions))


def _is_complete(rows: Iterable[Row], life: int) -> bool:
    return any(row.external == InitializationComplete() and row.sender.life == life for row in rows)


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
