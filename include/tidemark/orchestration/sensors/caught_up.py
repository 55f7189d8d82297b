"""The sensor that waits until this deployment, which stands by, is ready to lead."""

from __future__ import annotations

from tidemark.clock import SystemClock
from tidemark.orchestration.connections import load_settings
from tidemark.orchestration.sensors.waiting import Facts, Seen, WaitingSensor
from tidemark.settings import Settings


def see_readiness(settings: Settings) -> Seen:
    """Look how far this deployment is, without a JVM. Raises as ``read_readiness``."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 -- not needed to parse a DAG
    from tidemark.deployment.readiness import read_readiness  # noqa: PLC0415

    found = read_readiness(deployment_of(settings), clock=SystemClock())
    late = "; ".join(f"{each.name}: {each.why}" for each in found.obstacles)
    obstacle = f"deployment {found.generation} was {found.state.value} ({late})"
    return Seen(found.to_json(), "" if found.is_ready else obstacle)


class CaughtUpSensor(WaitingSensor):
    """Wait until this deployment is ready to lead, or leads; return the table of all objects.

    It fails at once if a newer deployment leads. It is politeness: the promotion itself looks again.

    Args:
        force: Do not wait: whoever promotes has a reason. (templated)
    """

    watch = "CaughtUpTrigger"
    template_fields = ("force",)

    def __init__(self, *, force: str = "", **kwargs: object) -> None:
        kwargs.setdefault("poll_seconds", 5.0)
        super().__init__(**kwargs)  # type: ignore[arg-type]  # those of Airflow
        self.force = force

    def look(self, before: Facts | None) -> Seen:
        seen = see_readiness(load_settings())
        return Seen(seen.facts) if str(self.force).lower() == "true" else seen
