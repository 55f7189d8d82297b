"""Any order of what may happen to workers, and what somebody wants of them: the rules hold, and each one is needed.

A rule is needed if the search finds what goes wrong without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.storage.search import play_everything, play_randomly, random_script
from tests.support.exploration import draw_seed, is_soak
from tests.support.storage import Cluster, MemoryCommandLog, ingestion, sink
from tidemark.errors import TidemarkError
from tidemark.storage.commands import AllowCompaction, DropDataflow, InitializationComplete, RunSink, RunSinkDataflow
from tidemark.storage.controller import Controller
from tidemark.storage.effects import (
    AskResumePoints,
    Broadcast,
    Effect,
    Failed,
    PassThrough,
    Report,
    ReportFrontier,
    StartDataflow,
)
from tidemark.storage.order import Place, Row, Sender
from tidemark.storage.worker import Started, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.storage import Step
    from tidemark.storage.commands import Command, External, SuspendAndRestart
    from tidemark.storage.controller import Part
    from tidemark.storage.worker import Answer

SEEDS = 20_000 if is_soak() else 150
RUN, ALTER, DROP = ("want", "a", ingestion(1, "a")), ("want", "a", ingestion(2, "a")), ("want", "a", None)
RESUMED: list[Step] = [("want", "s", sink()), ("want", "s", None), ("want", "s", sink())]
SHORT: list[list[Step]] = [[RUN, DROP], [RUN, ALTER], [("want", "s", sink()), ("want", "s", None)]]
LONGER: list[list[Step]] = [
    [RUN, ALTER, DROP],
    [RUN, DROP, RUN],
    [RUN, ("fail", 1, "a"), DROP],
    [RUN, ("stall", 0, "a"), DROP],
    RESUMED,
]
THREE: list[Step] = [RUN, ("want", "b", ingestion(1, "b")), ("want", "s", sink())]
TROUBLED: list[list[Step]] = [
    [RUN, ("crash", 0), DROP],
    [RUN, ("crash", 1), ALTER],
    [RUN, ("restart",), DROP],
    [RUN, ("restart",), ("crash", 1)],
    [*THREE, DROP],
]


def test_any_random_order_of_events_ends_with_what_is_wanted_on_all_workers() -> None:
    seed = draw_seed()
    for each in range(seed, seed + SEEDS):
        play_randomly(Cluster(random_script(each)), each)


@pytest.mark.parametrize("script", [*SHORT, *(LONGER + TROUBLED if is_soak() else [])], ids=str)
def test_every_order_of_a_short_history_ends_well_on_two_workers(script: list[Step]) -> None:
    play_all(script, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("script", [*SHORT, THREE, *(LONGER + TROUBLED if is_soak() else [])], ids=str)
def test_every_order_of_a_short_history_ends_well_on_three_workers(script: list[Step]) -> None:
    play_all(script, workers=3)


def play_all(script: list[Step], workers: int) -> None:
    cluster = Cluster(workers=workers)
    cluster.settle()
    cluster.script = list(script)
    assert play_everything(cluster) > 50


# Each class leaves one rule out.


class EveryWorkerDecides(Worker):
    @property
    def decides(self) -> bool:
        return True


class ExternalStarts(Worker):
    def _obey(self, command: External) -> list[Effect]:
        effects = super()._obey(command)
        if isinstance(command, RunSink) and self.decides:
            start = RunSinkDataflow(command.id, command.description, command.as_of)
            self.dataflows[command.id] = Started(0, start)
            return [StartDataflow(start)]
        return effects


class DropOvertakes(Worker):
    def _forget(self, id_: str) -> list[Effect]:
        effects = super()._forget(id_)
        return [Broadcast(each.command) if isinstance(each, PassThrough) else each for each in effects]


class SinkOvertakes(Worker):
    def _ask(self, id_: str) -> list[Effect]:
        effects = super()._ask(id_)
        return [Broadcast(each.command) if isinstance(each, PassThrough) else each for each in effects]


class Resurrects(Worker):
    def _suspend(self, command: SuspendAndRestart) -> list[Effect]:
        present = self.dataflows.get(command.id)
        effects = super()._suspend(command)
        if self.decides and present is not None and command.id not in self.descriptions:
            self.descriptions[command.id] = present.command.description
            self.as_ofs.setdefault(command.id, 0)
            return effects + self._ask(command.id)
        return effects


class RestartsFromOldPoints(Worker):
    def _suspend(self, command: SuspendAndRestart) -> list[Effect]:
        present = self.dataflows.get(command.id)
        effects = super()._suspend(command)
        asked = [each for each in effects if isinstance(each, AskResumePoints)]
        return [PassThrough(present.command)] if asked and present else effects  # type: ignore[arg-type]


class RestartsTwice(Worker):
    def _suspend(self, command: SuspendAndRestart) -> list[Effect]:
        present = self.dataflows.get(command.id)
        return super()._suspend(replace(command, started_at=present.index) if present else command)


class InternalArms(Worker):
    def _start(self, row: Row, start: Any) -> list[Effect]:
        self.reported.add(start.id)
        self.advance(start.id, 1)
        return super()._start(row, start)


class ChangesBeforeTheEnd(Worker):
    def handle_external(self, command: External) -> list[Effect]:
        return self._obey(command) if self._collected == [] else super().handle_external(command)


class RestartsUnchanged(Worker):
    def _reconcile(self) -> list[Effect]:
        runs = [command for command in self._collected or [] if hasattr(command, "collections")]
        effects = super()._reconcile()
        return effects + [effect for run in runs if self.decides for effect in self._ask(run.id)]


class KeepsStale(Worker):
    def _reconcile(self) -> list[Effect]:
        effects = super()._reconcile()
        return [
            each for each in effects if not (isinstance(each, PassThrough) and isinstance(each.command, DropDataflow))
        ]


class StartsAtReplay(Worker):
    def replay(self, rows: Iterable[Row]) -> list[Effect]:
        effects = super().replay(rows)
        return [each for each in effects if not isinstance(each, Broadcast)]


class ReplaysInternalCommandsAlone(Worker):
    def replay(self, rows: Iterable[Row]) -> list[Effect]:
        return super().replay([row for row in rows if row.external is None])


class ReplaysTheLastControllerAlone(Worker):
    def replay(self, rows: Iterable[Row]) -> list[Effect]:
        rows = list(rows)
        last = max((row.sender.life for row in rows if row.external is not None), default=0)
        return super().replay([row for row in rows if row.external is None or row.sender.life == last])


class MixesControllers(Worker):
    def take(self, row: Row) -> list[Effect]:
        if row.external is not None and self.controller_life:
            self.controller_life = row.sender.life
        return super().take(row)


class AsksAgainThoughAsked(Worker):
    def handle_answer(self, answer: Answer) -> list[Effect]:
        if isinstance(answer, Failed) and answer.id in self.descriptions:
            return self._ask(answer.id)
        return super().handle_answer(answer)


class GivesUp(Worker):
    def handle_answer(self, answer: Answer) -> list[Effect]:
        effects = super().handle_answer(answer)
        return [] if isinstance(answer, Failed) else effects


class ForgetsStatuses(Worker):
    def connect(self) -> None:
        self._statuses.clear()
        super().connect()


class TellsMaximum(Controller):
    def _merge(self, part: Part, worker: int, id_: str, upper: Any) -> list[Report]:
        part.uppers = [upper] * self.workers
        return super()._merge(part, worker, id_, upper)


class TellsFirstDrop(Controller):
    def _acknowledge(self, worker: int, id_: str) -> list[Report]:
        if id_ in self.dropping:
            self.dropping[id_] = {*range(self.workers)} - {worker}
        return super()._acknowledge(worker, id_)


class RunsBeforeDropIsTold(Controller):
    def _run(self, id_: str, description: Any) -> list[External]:
        dropping, self.dropping = self.dropping, {}
        commands = super()._run(id_, description)
        self.dropping = dropping | self.dropping
        return commands


class TellsFrontiersAgain(Controller):
    def _merge(self, part: Part, worker: int, id_: str, upper: Any) -> list[Report]:
        news = super()._merge(part, worker, id_, upper)
        return news or ([ReportFrontier(id_, part.merged)] if part.merged else [])


class TakesADropForRead(Controller):
    def hear(self, worker: int, read_to: int, frontiers: Any) -> list[Report]:
        return super().hear(worker, read_to + 3, frontiers)


class EndsBeforeEverythingIsSaid(Controller):
    def begin(self) -> list[External]:
        return [InitializationComplete(), *(each for each in super().begin() if each != InitializationComplete())]


class TellsTheDropOfTheIngestionAlone(Controller):
    def _drop(self, id_: str) -> list[External]:
        return [each for each in super()._drop(id_) if isinstance(each, AllowCompaction) and each.id != id_]


class RepeatsAppends(MemoryCommandLog):
    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        self.places[sender.name] = Place(sender.life, first_number)
        super().append(sender, first_number, commands)


class ReordersASender(MemoryCommandLog):
    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        super().append(sender, first_number, commands[::-1])


class FencesNobody(MemoryCommandLog):
    def append(self, sender: Sender, first_number: int, commands: Sequence[Command]) -> None:
        place = self.places[sender.name]
        is_old = place.life != sender.life
        number = place.next_number if is_old else first_number
        super().append(Sender(sender.name, place.life), number, commands)


BROKEN: dict[str, dict[str, Any]] = {
    **{
        worker.__name__: {"make_worker": worker}
        for worker in (
            EveryWorkerDecides,
            ExternalStarts,
            DropOvertakes,
            Resurrects,
            RestartsFromOldPoints,
            RestartsTwice,
            InternalArms,
            ChangesBeforeTheEnd,
            RestartsUnchanged,
            KeepsStale,
            StartsAtReplay,
            ReplaysInternalCommandsAlone,
            ReplaysTheLastControllerAlone,
            MixesControllers,
            GivesUp,
            ForgetsStatuses,
        )
    },
    **{
        controller.__name__: {"make_controller": controller}
        for controller in (
            TellsMaximum,
            TellsFirstDrop,
            RunsBeforeDropIsTold,
            TellsFrontiersAgain,
            TakesADropForRead,
            EndsBeforeEverythingIsSaid,
            TellsTheDropOfTheIngestionAlone,
        )
    },
    "AsksAgainThoughAsked": {"make_worker": AsksAgainThoughAsked, "script": [RUN, ALTER]},
    "SinkOvertakes": {"make_worker": SinkOvertakes, "script": RESUMED},
    "RepeatsAppends": {"log": RepeatsAppends},
    "ReordersASender": {"log": ReordersASender},
    "FencesNobody": {"log": FencesNobody},
    "CompanionOfOneController": {"is_companion_of_controller": True},
    "CompanionInDisorder": {"is_companion_in_order": False},
}


@pytest.mark.slow  # a rule that few orders need is searched for the longest
@pytest.mark.parametrize("rule", BROKEN)
def test_the_search_finds_what_goes_wrong_without_a_rule(rule: str) -> None:
    assert any(_fails(BROKEN[rule], seed) for seed in range(500))


def _fails(broken: dict[str, Any], seed: int) -> bool:
    parts = {"script": random_script(seed)} | broken
    make_log = parts.pop("log", MemoryCommandLog)
    try:
        play_randomly(Cluster(log=make_log(), **parts | {"script": list(parts["script"])}), seed)
    except (AssertionError, TidemarkError):
        return True
    return False
