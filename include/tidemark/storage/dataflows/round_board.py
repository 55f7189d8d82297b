"""The shares of an ingestion's rounds on the board: what the leader hands out, and what the workers hand back.

None of it has to arrive. A worker that lives and does not deliver gets nothing for some rounds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidemark.errors import InputsGone
from tidemark.exit_codes import PASSING
from tidemark.ingest.parts import Held, Minted, Part, Share
from tidemark.storage.dataflows.dataflow import LOOK_S, Surroundings
from tidemark.storage.dataflows.rounds import Rounds
from tidemark.storage.sharing import round_place

log = logging.getLogger(__name__)

PATIENCE_S: Final = 60.0  # with a worker that lives, and does not deliver
LEFT_OUT: Final = 8  # rounds that share nothing out to it afterwards
_TOO_LARGE: Final = "too_large"

Told = Part | Held | None  # what became of a share; None: it takes too much memory


class Task(NamedTuple):
    """What the leader of a round asks of one worker."""

    number: int  # of the round
    minted: Minted
    share: Share | None  # None: nothing
    holds: bool  # whether the rows are to be held, and not written


@dataclass(slots=True)
class RoundBoard:
    """What one worker says and hears there of the rounds of one start of a dataflow."""

    around: Surroundings
    id: str
    started_at: int
    rounds: Rounds
    _number: int = 0  # of the last round that this worker led
    _answered: int = 0  # the last round of another worker
    _left_out: dict[int, int] = field(default_factory=dict)  # workers that did not deliver: for so many rounds

    def choose_workers(self) -> list[int]:
        """Return those that the next round is shared out to: this worker, and all others that delivered lately."""
        own = self.around.index
        self._left_out = {index: rounds - 1 for index, rounds in self._left_out.items() if rounds > 1}
        return [own, *(index for index in self.rounds.members if index not in {own, *self._left_out})]

    @property
    def _last(self) -> int:
        """The number of the round that stands on the board, whoever leads it; 0: none of this start."""
        entry = self.around.seen.board.get(round_place(self.id))
        return entry.number if entry is not None and entry.life == self.started_at else 0

    def hand_out(self, minted: Minted, shares: Mapping[int, Share], *, holds: bool) -> bool:
        """Put a round on the board; return whether this worker leads the round: another one may be faster."""
        place = round_place(self.id)
        self._number = max(self._number, self._last) + 1
        if [*shares] == [self.around.index] and not holds:  # else others hear that they are to hold nothing
            return True
        told = {str(index): share.to_json() for index, share in shares.items()}
        value = {"minted": minted.to_json(), "shares": told, "holds": holds}
        return self.around.board.put(place, value, life=self.started_at, number=self._number)

    def collect(self, workers: Iterable[int]) -> dict[int, Told]:
        """Return what ``workers`` hand back, once all of them have, but for those that are lost or take too long.

        Raises ``InputsGone`` if nobody may write any more: the others wait, too; or if another worker leads a later
        round, for which it waits for this one.
        """
        found: dict[int, Told] = {}
        waited_for, until_s = set(workers), time.monotonic() + PATIENCE_S
        while waited_for:
            if not self.rounds.may_run:
                raise InputsGone("the deployment became read-only, or this worker is to end")
            if self._last > self._number:
                raise InputsGone("another worker leads a later round")
            for index in sorted(waited_for):
                entry = self.around.seen.board.get(round_place(self.id, index))
                if entry is not None and (entry.life, entry.number) == (self.started_at, self._number):
                    found[index] = _from_json(entry.value)
                elif index in self.rounds.members and time.monotonic() < until_s:
                    continue
                else:
                    log.warning("worker %s did not deliver its part of %s", index, self.rounds.item.name)
                waited_for.remove(index)
            time.sleep(LOOK_S / 2 if waited_for else 0)
        return found

    def leave_out(self, shares: Mapping[int, Share], told: Mapping[int, Told]) -> list[int]:
        """Return the other workers that did not deliver what can be used; the next rounds give them nothing."""
        delivered = {index for index, each in told.items() if not (isinstance(each, Part) and passes(each))}
        lacking = sorted(shares.keys() - delivered - {self.around.index})
        self._left_out |= dict.fromkeys(lacking, LEFT_OUT)
        return lacking

    def find_task(self) -> Task | None:
        """Return what the present round asks of this worker, which may be nothing; None once that is handed back."""
        entry = self.around.seen.board.get(round_place(self.id))
        if entry is None or entry.life != self.started_at or entry.number <= self._answered:
            return None
        value = entry.value
        share = value["shares"].get(str(self.around.index))
        asked = None if share is None else Share.from_json(share)
        return Task(entry.number, Minted.from_json(value["minted"]), asked, value["holds"])

    def hand_back(self, task: Task, told: Told) -> None:
        """Put on the board what became of a share, if there is one: whoever leads the round waits for that."""
        if task.share is not None:
            value = {_TOO_LARGE: True} if told is None else told.to_json()
            place = round_place(self.id, self.around.index)
            self.around.board.put(place, value, life=self.started_at, number=task.number)
        self._answered = task.number


def _from_json(value: Mapping[str, Any]) -> Told:
    if _TOO_LARGE in value:
        return None
    return Held.from_json(value) if "ends" in value else Part.from_json(value)


def passes(part: Part) -> bool:
    """Tell whether a part failed for a reason that passes by itself."""
    return part.error is not None and part.error.exit_code in PASSING
