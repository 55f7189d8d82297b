"""The companion of worker 0: it reads where dataflows go on, beside the main loop, for as long as the worker lives.

Questions about one object are answered in the order in which they were asked, so that no drop overtakes a start.
Different objects do not wait for each other. Source: reference, collections_catalog_storage §8.3.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

from tidemark.errors import Dropped, StaleState, TidemarkError, UnknownCollection, Unreachable
from tidemark.iceberg.shards import Shards
from tidemark.secrets.redaction import first_line
from tidemark.storage.commands import CreateIngestionDataflow, ObjectId, ResumePoint
from tidemark.storage.definitions import name_of
from tidemark.storage.effects import AskResumePoints, Failed, PassThrough
from tidemark.storage.worker import Answer

log = logging.getLogger(__name__)

Question = AskResumePoints | PassThrough
_LONGEST_PAUSE_S = 30.0  # between two tries to reach the stores
_LOOK_S = 0.1
_LONGEST_REST_S = 60.0  # before a dataflow is started again that came to nothing


@dataclass(slots=True)
class Companion:
    """Answers with ``read``; a thread for each object that has questions."""

    read: Callable[[AskResumePoints], Answer]
    _waiting: dict[ObjectId, deque[Question]] = field(default_factory=dict)  # an object is here while its thread runs
    _answers: deque[Answer] = field(default_factory=deque)
    _lock: Lock = field(default_factory=Lock)
    _ends: Event = field(default_factory=Event)

    def ask(self, question: Question) -> None:
        """Queue a question."""
        id_ = question.id
        with self._lock:
            if id_ in self._waiting:
                self._waiting[id_].append(question)
                return
            self._waiting[id_] = deque([question])
        Thread(target=self._run, args=(id_,), name=f"companion {id_}", daemon=True).start()

    def answers(self) -> list[Answer]:
        """Return the answers that have come since the last call."""
        with self._lock:
            found = list(self._answers)
            self._answers.clear()
        return found

    @property
    def is_busy(self) -> bool:
        """Whether a question has no answer yet."""
        with self._lock:
            return bool(self._waiting or self._answers)

    def close(self) -> None:
        """Give no further answers; a later life of the worker asks again."""
        self._ends.set()

    def _run(self, id_: ObjectId) -> None:
        while not self._ends.is_set():
            with self._lock:
                if not self._waiting[id_]:
                    del self._waiting[id_]
                    return
                question = self._waiting[id_][0]
            answer = self._answer(question)
            with self._lock:
                self._answers.append(answer)
                self._waiting[id_].popleft()

    def _rest(self, question: Question) -> None:
        """Wait: a lasting error must not restart a dataflow all the time. A later question ends the wait."""
        until_s = time.monotonic() + min(2.0 ** (question.restarts - 1), _LONGEST_REST_S)
        while time.monotonic() < until_s and len(self._waiting[question.id]) == 1:
            if self._ends.wait(_LOOK_S):
                return

    def _answer(self, question: Question) -> Answer:
        """Return the answer to one question; what may pass by itself is tried until the answer is known."""
        if question.restarts:
            self._rest(question)
        if isinstance(question, PassThrough):
            return question.command
        pause_s = 0.1
        while True:
            try:
                return self.read(question)
            except (Unreachable, StaleState) as error:
                log.info("where %s goes on is not known yet: %s", question.id, error)
                if self._ends.wait(pause_s):
                    return Failed(question.id, first_line(error))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except TidemarkError as error:
                return Failed(question.id, str(error))
            except Exception as error:
                log.exception("where %s goes on cannot be read", question.id)
                return Failed(question.id, first_line(error))


def read_resume_points(shards: Shards, question: AskResumePoints) -> Answer:
    """Return the start of an ingestion from what its collections have: their uppers, and the next numbers by producer.

    The buffer is not asked, so that no outage of a broker keeps an ingestion from starting. Raises as ``Shard.load``.
    """
    points: dict[ObjectId, ResumePoint] = {}
    name = name_of(question.description.definition)
    for export in question.description.exports:
        try:
            state = shards.open(name).load().state
        except (UnknownCollection, Dropped) as error:
            return Failed(question.id, str(error))
        next_numbers = {producer: ledger.ranges[0].end for producer, ledger in state.ledgers.items() if ledger.ranges}
        points[export] = ResumePoint(state.upper, next_numbers)
    as_of = min((point.upper for point in points.values()), default=0)
    return CreateIngestionDataflow(question.id, question.description, as_of, points)
