"""The controller, as a part of worker 0: follows the catalog, and takes what the workers say of themselves.

The controller says its commands in the log, under a name of its own, so that every worker reads all commands in one
order. What the workers report are levels on the board: a lost or repeated word does no harm.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.collections.deployment import Deployment, Mode
from tidemark.collections.mode import read_mode
from tidemark.frontier import parse_frontier
from tidemark.storage.board import Entry
from tidemark.storage.controller import Controller, Desired, find_desired
from tidemark.storage.order import CONTROLLER, CommandLog, Outbox, Row
from tidemark.storage.sharing import place_of

WORKERS: Final = "workers"  # the setting that says how many there are


@dataclass(slots=True)
class Control:
    """One life of the controller, which begins with worker 0."""

    workers: int
    outbox: Outbox
    controller: Controller = field(init=False)
    has_begun: bool = False
    _may_write: bool = False  # whether that was said

    def __post_init__(self) -> None:
        self.controller = Controller(self.workers)

    @classmethod
    def begin(cls, log: CommandLog, *, workers: int) -> Control:
        """Begin a life, which ends that of another controller."""
        return cls(workers, Outbox(log.join(CONTROLLER)))

    def see(self, row: Row) -> None:
        """Take a row of the log, of whatever sender."""
        if row.sender == self.outbox.sender:
            self.controller.note(row)

    def turn(self, deployment: Deployment, board: Mapping[str, Entry], live: Iterable[int], *, now_ms: int) -> None:
        """Follow the catalog and the workers; what there is to say waits in the outbox.

        Raises as ``Registry.read``.
        """
        registry = deployment.registry
        desired = find_desired(registry.read(), registry.objects(), deployment.objects.read(), now_ms=now_ms)
        if not self.has_begun:
            self._begin(desired)
        self._listen(board, {*live})
        commands = self.controller.follow(desired)
        if not self._may_write and read_mode(deployment) is Mode.READ_WRITE:
            self._may_write = True
            commands += self.controller.allow_writes()
        for command in commands:
            self.outbox.put(command)

    def _begin(self, desired: Desired) -> None:
        """Say all that is wanted: each worker reconciles with that at the end marker."""
        self.controller.configure({WORKERS: str(self.workers)})
        self.controller.follow(desired)
        for command in self.controller.begin():
            self.outbox.put(command)
        self.has_begun = True

    def _listen(self, board: Mapping[str, Entry], live: set[int]) -> None:
        """Take what the workers that obey this life say of themselves.

        A worker that is lost keeps no drop waiting: its next life begins with what the log says by then.
        """
        for index in range(self.workers):
            entry = board.get(place_of(index))
            if entry is None or index not in live:
                self.controller.hear(index, sys.maxsize, {})
            elif entry.value["obeys"] == self.outbox.sender.life:
                frontiers = {id_: parse_frontier(str(upper)) for id_, upper in entry.value["frontiers"].items()}
                self.controller.hear(index, entry.value["read_to"], frontiers)
