"""The sensor that watches the storage workers of one run of the DAG, until each has ended, or was replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.mode import see_mode
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings
from tidemark.storage.board import look_once
from tidemark.storage.sharing import WORKERS, find_live, outlives

if TYPE_CHECKING:
    from airflow.sdk import Context

LOST_MS: Final = 120_000  # a worker that dies is started again at once, and silent for seconds only
BEGUN_WITHIN_MS: Final = 600_000  # its task waits for a slot, and is tried again
_MINUTE_MS: Final = 60_000


def see_workers(settings: Settings, run: str, *, workers: int, minutes: int, before: Facts | None) -> Seen:
    """Return which workers of a run were seen by now (``seen``), run still, are ``lost``, or come too ``late``.

    ``before`` are the facts of the look before. A worker that was seen, and is not on the board any more, was replaced;
    so was, if it ever came, one in whose place a worker stands that began after the first look. One in whose place a
    worker is at work for longer than this run counts as seen: it ends at once.
    While the deployment is read-only no worker begins; one that has not when its ``minutes`` are over comes no more.

    Raises as ``Board.read`` and ``see_mode``.
    """
    entries, now_ms = look_once(settings, WORKERS)
    before = before or {}
    first_ms, able_ms = before.get("first_ms") or now_ms, before.get("able_ms") or now_ms
    own = {int(entry.place.removeprefix(WORKERS)): entry for entry in entries if entry.value["run"] == run}
    running = sorted(index for index, entry in own.items() if not entry.value["ended"])
    until_ms, live = first_ms + minutes * _MINUTE_MS, find_live(entries, now_ms=now_ms)
    longer = {index for index, entry in live.items() if index < workers and outlives(entry, until_ms)}
    seen = {*before.get("seen", ()), *own} | longer
    later = {int(entry.place.removeprefix(WORKERS)) for entry in entries if entry.value["began_ms"] > first_ms}
    starting = sorted(set(range(workers)) - seen - later)
    if now_ms - first_ms > minutes * _MINUTE_MS + BEGUN_WITHIN_MS:
        starting = []
    if starting and not see_mode(settings).is_writable:
        able_ms = now_ms
    facts: Facts = {
        "seen": sorted(seen),
        "running": running,
        "lost": [index for index in running if now_ms - own[index].written_ms > LOST_MS],
        "late": starting if now_ms - able_ms > BEGUN_WITHIN_MS else [],
        "first_ms": first_ms,
        "able_ms": able_ms,  # when the deployment was read-only last, or the first look
    }
    if facts["lost"] or facts["late"]:
        return Seen(facts)
    obstacles = [f"workers {running} ran"] if running else []
    obstacles += [f"workers {starting} have not begun"] if starting else []
    return Seen(facts, " and ".join(obstacles))


class WorkersSensor(WaitingSensor):
    """Wait until the workers of this run have ended, or the next run's have replaced them; fail if one is lost.

    The run goes on with the others; what the lost one had in hand is shared out among them. It waits in the triggerer
    only, which keeps what it has seen.

    Args:
        workers: How many the run has. (templated)
        minutes: The time of the workers. (templated)
        run_name: As of ``StorageWorkerOperator``. (templated)
    """

    watch = "WorkersTrigger"
    template_fields = ("workers", "minutes", "run_name")

    def __init__(self, *, workers: Any, minutes: Any, run_name: str = "{{ run_id }}", **kwargs: Any) -> None:
        kwargs.setdefault("poll_seconds", 5.0)
        super().__init__(deferrable=True, **kwargs)
        self.workers, self.minutes, self.run_name = workers, minutes, run_name

    def execute_complete(self, context: Context, event: Facts, deadline_ms: int, seen: Facts | None = None) -> Facts:
        """Look again, with what the trigger has seen: a replaced worker is not on the board any more."""
        return super().execute_complete(context, event, deadline_ms, event if "seen" in event else seen)

    def look(self, before: Facts | None) -> Seen:
        seen = see_workers(load_settings(), self.run_name, **self._wanted, before=before)
        if lost := seen.facts["lost"]:
            raise AirflowFailException(
                f"storage workers {lost} are silent for two minutes: see the log of their tasks, and whether their "
                "machine runs; the others have taken over what they had in hand"
            )
        if late := seen.facts["late"]:
            raise AirflowFailException(
                f"storage workers {late} have not begun within ten minutes: see the log of their tasks, and whether "
                "the pool has a slot for them; scheduled runs do their work, or the other workers"
            )
        return seen

    def watched(self, seen: Seen) -> dict[str, Any]:
        return {"run": self.run_name, **self._wanted, "seen": seen.facts}

    @property
    def _wanted(self) -> dict[str, int]:
        return {"workers": int(self.workers), "minutes": int(self.minutes)}
