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
from threading import Condition, Thread

from tidemark.errors import Dropped, StaleState, TidemarkError, UnknownCollection, Unreachable
from tidemark.iceberg.shards import Shards
from tidemark.retry import back_off_s
from tidemark.secrets.redaction import first_line
from tidemark.storage.commands import CreateIngestionDataflow, ObjectId, ResumePoint
from tidemark.storage.definitions import name_of
from tidemark.storage.effects import AskResumePoints, Failed, PassThrough
from tidemark.storage.worker import Answer

log = logging.getLogger(__name__)

Question = AskResumePoints | PassThrough
_THREADS = 8
_PAUSE_S = 0.1  # after the first try to reach the stores, and twice as long after each other one
_LONGEST_PAUSE_S = 30.0
_LONGEST_REST_S = 60.0  # before a dataflow is started again that came to nothing


@dataclass(slots=True)
class _Line:
    """The questions about one object; the first one is answered when it is due."""

    questions: deque[Question] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = _PAUSE_S  # before the next try
    is_in_hand: bool = False

    def rest(self) -> None:
        """Let the first question wait: a lasting error must not restart a dataflow all the time."""
        self.due_s, self.pause_s, restarts = 0.0, _PAUSE_S, self.questions[0].restarts
        if restarts and len(self.questions) == 1:  # a later question ends the wait
            self.due_s = time.monotonic() + back_off_s(restarts, longest_s=_LONGEST_REST_S)


@dataclass(slots=True)
class Companion:
    """Answers with ``read``, on a few threads; who waits for a time takes none of them."""

    read: Callable[[AskResumePoints], Answer]
    _lines: dict[ObjectId, _Line] = field(default_factory=dict)  # of objects that have questions
    _answers: deque[Answer] = field(default_factory=deque)
    _changed: Condition = field(default_factory=Condition)
    _threads: int = 0
    _has_ended: bool = False

    def ask(self, question: Question) -> None:
        """Queue a question. A later question about an object ends the wait of the one before."""
        with self._changed:
            line = self._lines.setdefault(question.id, _Line())
            line.questions.append(question)
            if not line.is_in_hand and line.pause_s == _PAUSE_S:  # it has not been tried yet
                line.rest()
            if self._threads < min(_THREADS, len(self._lines)):
                self._threads += 1
                Thread(target=self._run, name="companion", daemon=True).start()
            self._changed.notify()

    def answers(self) -> list[Answer]:
        """Return the answers that have come since the last call."""
        with self._changed:
            found = list(self._answers)
            self._answers.clear()
        return found

    @property
    def is_busy(self) -> bool:
        """Whether a question has no answer yet."""
        with self._changed:
            return bool(self._lines or self._answers)

    def close(self) -> None:
        """Give no further answers; a later life of the worker asks again."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (question := self._take()) is not None:
            answer = self._answer(question)
            with self._changed:
                self._put(question.id, answer)

    def _take(self) -> Question | None:
        """Wait for a question that is due, and take its object in hand; None once there are no questions."""
        with self._changed:
            while self._lines and not self._has_ended:
                free = [line for line in self._lines.values() if not line.is_in_hand]
                first = min(free, key=lambda line: line.due_s, default=None)
                now_s = time.monotonic()
                if first is not None and first.due_s <= now_s:
                    first.is_in_hand = True
                    return first.questions[0]
                self._changed.wait(None if first is None else first.due_s - now_s)
            self._threads -= 1
            self._changed.notify_all()  # the others end, too
            return None

    def _put(self, id_: ObjectId, answer: Answer | None) -> None:
        """Let go of an object: its first question has its answer, or None if it is to be tried again later."""
        line = self._lines[id_]
        line.is_in_hand = False
        if answer is None:
            line.due_s = time.monotonic() + line.pause_s
            line.pause_s = min(2 * line.pause_s, _LONGEST_PAUSE_S)
        else:
            self._answers.append(answer)
            line.questions.popleft()
            if line.questions:
                line.rest()
            else:
                del self._lines[id_]
        self._changed.notify()

    def _answer(self, question: Question) -> Answer | None:
        """Return the answer to one question; None if it is not known yet, for a reason that may pass by itself."""
        if isinstance(question, PassThrough):
            return question.command
        try:
            return self.read(question)
        except (Unreachable, StaleState) as error:
            log.info("where %s goes on is not known yet: %s", question.id, error)
            return None
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
