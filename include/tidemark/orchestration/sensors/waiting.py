"""What all sensors have in common: they look first, and wait only if they have to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.exceptions import AirflowSensorTimeout

from tidemark.clock import SystemClock
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task

if TYPE_CHECKING:
    from airflow.sdk import Context

RESCHEDULE_SECONDS = 60.0
Facts = dict[str, Any]  # a state as JSON


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look saw, and what has not come yet; without an ``obstacle`` the wait is over. Stale at once."""

    facts: Facts
    obstacle: str = ""


class WaitingSensor(BaseSensorOperator):
    """Wait until ``look`` sees the wanted state, and return its facts. The answer may be stale at once.

    The wait ends after ``timeout`` seconds; the failure says what the last look saw.

    Args:
        deferrable: Wait in the triggerer, which sees the change within ``poll_seconds``. Otherwise the task is
            scheduled again every ``poke_interval`` seconds, which needs no triggerer.
        poll_seconds: How often the triggerer looks.
    """

    template_fields: Sequence[str] = ()
    watch: ClassVar[str]  # the name of the trigger that waits

    def __init__(self, *, deferrable: bool = True, poll_seconds: float = 1.0, **kwargs: Any) -> None:
        kwargs.setdefault("mode", "poke" if deferrable else "reschedule")
        kwargs.setdefault("poke_interval", RESCHEDULE_SECONDS)
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.deferrable, self.poll_seconds = deferrable, poll_seconds
        self.last_obstacle = ""

    def look(self, before: Facts | None) -> Seen:
        """Return the present state; ``before`` are the facts of an earlier look in the same wait."""
        raise NotImplementedError

    def watched(self, seen: Seen) -> dict[str, Any]:
        """Return the arguments of the trigger."""
        return {}

    def execute(self, context: Context) -> Facts:
        if not self.deferrable:
            try:
                facts: Facts = super().execute(context)
            except AirflowSensorTimeout as error:
                raise self._timed_out(self.last_obstacle) from error
            return facts
        return self._finish_or_wait(SystemClock().now_ms() + int(self.timeout * 1000), before=None)

    def execute_complete(self, context: Context, event: Facts, deadline_ms: int, seen: Facts | None = None) -> Facts:
        """Look again: the event is as old as the queue in front of this worker."""
        return self._finish_or_wait(deadline_ms, before=seen)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a trigger; when the trigger's time is up, look once more, to say what is missing."""
        reason = (next_kwargs or {}).get("error")
        if next_method == TRIGGER_FAIL_REPR and reason == TriggerFailureReason.TRIGGER_TIMEOUT:
            next_method, next_kwargs = "execute_complete", {"event": {}, "deadline_ms": 0}
        return super().resume_execution(next_method, next_kwargs, context)

    def poke(self, context: Context) -> PokeReturnValue:
        with ending_task():
            seen = self.look(None)
        self.last_obstacle = seen.obstacle
        if self.last_obstacle:
            self.log.info("waiting: %s (%s)", self.last_obstacle, seen.facts)
        return PokeReturnValue(is_done=not self.last_obstacle, xcom_value=None if self.last_obstacle else seen.facts)

    def _finish_or_wait(self, deadline_ms: int, *, before: Facts | None) -> Facts:
        with ending_task():
            seen = self.look(before)
        if not seen.obstacle:
            return seen.facts
        left_s = (deadline_ms - SystemClock().now_ms()) / 1000
        if left_s <= 0:
            raise self._timed_out(seen.obstacle)
        self.log.info("waiting: %s (%s)", seen.obstacle, seen.facts)
        import tidemark_triggers  # type: ignore[import-not-found]  # noqa: PLC0415 -- of plugins/

        self.defer(
            trigger=getattr(tidemark_triggers, self.watch)(**self.watched(seen), poll_seconds=self.poll_seconds),
            method_name="execute_complete",
            kwargs={"deadline_ms": deadline_ms, "seen": seen.facts},
            timeout=timedelta(seconds=left_s),
        )

    def _timed_out(self, obstacle: str) -> AirflowSensorTimeout:
        return AirflowSensorTimeout(f"{obstacle} for {self.timeout:.0f} s")
