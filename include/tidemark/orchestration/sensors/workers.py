"""The sensor that watches the storage workers of one run of the DAG, until each has ended, or was replaced."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings
from tidemark.storage.board import Board
from tidemark.storage.sharing import WORKERS

if TYPE_CHECKING:
    from airflow.sdk import Context

LOST_MS: Final = 120_000  # a worker that dies is started again at once, and silent for seconds only


def see_workers(settings: Settings, run: str, workers: int, before: Collection[int]) -> Seen:
    """Return which workers of a run were seen by now (``seen``), run still, or are silent for two minutes (``lost``).

    ``before`` are those that earlier looks have seen: one that is not on the board any more was replaced.

    Raises ``Unreachable`` as ``Board.read``.
    """
    board = Board(settings)
    try:
        entries, now_ms = board.read(WORKERS)
    finally:
        board.close()
    own = {int(entry.place.removeprefix(WORKERS)): entry for entry in entries if entry.value["run"] == run}
    running = {index for index, entry in own.items() if not entry.value["ended"]}
    lost = sorted(index for index in running if now_ms - own[index].written_ms > LOST_MS)
    seen = {*before, *own}
    facts: Facts = {"seen": sorted(seen), "running": sorted(running), "lost": lost}
    if lost:
        return Seen(facts)
    starting = sorted(set(range(workers)) - seen)
    obstacles = [f"workers {sorted(running)} ran"] if running else []
    obstacles += [f"workers {starting} have not begun"] if starting else []
    return Seen(facts, " and ".join(obstacles))


class WorkersSensor(WaitingSensor):
    """Wait until the workers of this run have ended, or the next run's have replaced them; fail if one is lost.

    The run goes on with the others; what the lost one had in hand is shared out among them.
    """

    watch = "WorkersTrigger"

    def __init__(self, *, workers: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.workers, self.run = workers, ""

    template_fields = ("workers",)

    def execute(self, context: Context) -> Facts:
        self.run = str(context["run_id"])
        return super().execute(context)

    def execute_complete(self, context: Context, event: Facts, deadline_ms: int, seen: Facts | None = None) -> Facts:
        self.run = str(context["run_id"])
        return super().execute_complete(context, event, deadline_ms, event if "seen" in event else seen)

    def look(self, before: Facts | None) -> Seen:
        seen = see_workers(load_settings(), self.run, int(self.workers), (before or {}).get("seen", []))
        if lost := seen.facts["lost"]:
            raise AirflowFailException(
                f"storage workers {lost} are silent for two minutes: see the log of their tasks, and whether their "
                "machine runs; the others have taken over what they had in hand"
            )
        return seen

    def watched(self, seen: Seen) -> dict[str, Any]:
        return {"run": self.run, "workers": int(self.workers), "seen": seen.facts["seen"]}
