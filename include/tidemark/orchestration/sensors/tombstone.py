"""The sensor that waits until a back end of the system's own catalog is the truth."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowSensorTimeout

from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.retry_policy import RETRY_POLICY, ending_task
from tidemark.orchestration.sensors.tombstone_reader import SeenTombstone, see_tombstone

if TYPE_CHECKING:
    from airflow.sdk import Context

RESCHEDULE_SECONDS = 60.0


class TombstoneSensor(BaseSensorOperator):
    """Wait until the tombstone has the wanted value; return it with the epoch under which it was seen.

    The sensor looks first, and waits only if it has to. Its answer may be stale at once: a task that works on the
    catalog joins the leader, and the next open fences the task; the epoch tells whether the leader is still the same.

    The sensor waits while the tombstone is unset. It fails at once if the stash was never opened, if a newer deployment
    leads, and, if ``deferrable``, if the stash was restored or made anew during the wait. Without ``deferrable`` the
    sensor cannot compare with its last look: Airflow clears a task's XComs whenever it schedules the task again.

    Args:
        wanted: True: until the persist catalog is the truth; False: until the stash is the truth *again*.
        or_unset: Whether an unset tombstone is as good as ``wanted``: then False is until the stash is the truth.
        deferrable: Wait in the triggerer, which sees the flip within ``poll_seconds``. Otherwise the task is scheduled
            again every ``poke_interval`` seconds, which needs no triggerer.
        poll_seconds: How often the triggerer looks.
    """

    template_fields: Sequence[str] = ()

    def __init__(
        self,
        *,
        wanted: bool,
        or_unset: bool = False,
        deferrable: bool = True,
        poll_seconds: float = 1.0,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("mode", "poke" if deferrable else "reschedule")
        kwargs.setdefault("poke_interval", RESCHEDULE_SECONDS)
        kwargs.setdefault("retry_policy", RETRY_POLICY)
        super().__init__(**kwargs)
        self.wanted, self.or_unset = wanted, or_unset
        self.deferrable, self.poll_seconds = deferrable, poll_seconds

    def execute(self, context: Context) -> dict[str, Any]:
        if not self.deferrable:
            seen: dict[str, Any] = super().execute(context)
            return seen
        return self._finish_or_wait(SystemClock().now_ms() + int(self.timeout * 1000), before=None)

    def execute_complete(
        self, context: Context, event: dict[str, Any], deadline_ms: int, seen: dict[str, Any]
    ) -> dict[str, Any]:
        """Look again: the event is as old as the queue in front of this worker."""
        return self._finish_or_wait(deadline_ms, before=SeenTombstone.parse(seen))

    def poke(self, context: Context) -> PokeReturnValue:
        seen = self._look(None)
        is_done = self._is_done(seen)
        return PokeReturnValue(is_done=is_done, xcom_value=seen.facts if is_done else None)

    def _finish_or_wait(self, deadline_ms: int, *, before: SeenTombstone | None) -> dict[str, Any]:
        from tidemark_triggers import TombstoneTrigger  # type: ignore[import-not-found]  # noqa: PLC0415 -- of plugins/

        seen = self._look(before)
        if self._is_done(seen):
            return seen.facts
        left_s = (deadline_ms - SystemClock().now_ms()) / 1000
        if left_s <= 0:
            raise AirflowSensorTimeout(f"the tombstone stayed {seen.value} for {self.timeout:.0f} s")
        self.log.info("waiting for the tombstone to be %s: %s", self.wanted, seen.facts)
        self.defer(
            trigger=TombstoneTrigger(wanted=self.wanted, seen=seen.facts, poll_seconds=self.poll_seconds),
            method_name="execute_complete",
            kwargs={"deadline_ms": deadline_ms, "seen": seen.facts},
            timeout=timedelta(seconds=left_s),
        )

    def _is_done(self, seen: SeenTombstone) -> bool:
        return seen.value is self.wanted or (self.or_unset and seen.value is None)

    def _look(self, before: SeenTombstone | None) -> SeenTombstone:
        with ending_task():
            return see_tombstone(load_settings(), before)
