"""The sensor that waits for the end of read-only mode."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.sensors.mode import SeenMode, see_mode

if TYPE_CHECKING:
    from airflow.sdk import Context

RESCHEDULE_SECONDS = 60.0


class WritableSensor(BaseSensorOperator):
    """Wait until this deployment may publish; return the mode under which it was seen.

    The sensor looks first, and waits only if it has to. Its answer may be stale at once: the token and the mode stop a
    publish in read-only mode, not this sensor.

    A deployment that is newer than the leading one is read-only until it is promoted: the sensor waits. A deployment
    that a newer one has replaced will never be writable again: the sensor fails at once, as for an unreadable mode.

    Args:
        deferrable: Wait in the triggerer, which sees the switch within ``poll_seconds``. Otherwise the task is
            scheduled again every ``poke_interval`` seconds, which needs no triggerer.
        poll_seconds: How often the triggerer looks.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, deferrable: bool = True, poll_seconds: float = 1.0, **kwargs: Any) -> None:
        kwargs.setdefault("mode", "poke" if deferrable else "reschedule")
        kwargs.setdefault("poke_interval", RESCHEDULE_SECONDS)
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.deferrable, self.poll_seconds = deferrable, poll_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        if not self.deferrable:
            seen: dict[str, Any] = super().execute(context)
            return seen
        return self._finish_or_wait(SystemClock().now_ms() + int(self.timeout * 1000))

    def execute_complete(self, context: Context, event: dict[str, Any], deadline_ms: int) -> dict[str, Any]:
        """Look again: the event is as old as the queue in front of this worker."""
        return self._finish_or_wait(deadline_ms)

    def poke(self, context: Context) -> PokeReturnValue:
        seen = self._look()
        return PokeReturnValue(is_done=seen.is_writable, xcom_value=seen.facts if seen.is_writable else None)

    def _finish_or_wait(self, deadline_ms: int) -> dict[str, Any]:
        from tidemark_triggers import WritableTrigger  # type: ignore[import-not-found]  # noqa: PLC0415 -- of plugins/

        seen = self._look()
        if seen.is_writable:
            return seen.facts
        left_s = (deadline_ms - SystemClock().now_ms()) / 1000
        if left_s <= 0:
            raise AirflowSensorTimeout(f"deployment {seen.generation} stayed read-only for {self.timeout:.0f} s")
        self.log.info("deployment %s is read-only: %s", seen.generation, seen.facts)
        self.defer(
            trigger=WritableTrigger(poll_seconds=self.poll_seconds),
            method_name="execute_complete",
            kwargs={"deadline_ms": deadline_ms},
            timeout=timedelta(seconds=left_s),
        )

    def _look(self) -> SeenMode:
        with ending_task():
            return see_mode(load_settings())
