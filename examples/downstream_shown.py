"""A part of the demo: a DAG that nobody triggers starts whenever months are complete, and computes them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from examples.steps import PARSED_SECONDS, RUN_SECONDS, console, finish_run, is_parsed, say
from tidemark.errors import StaleState
from tidemark.settings import PROJECT_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tools.local_airflow.client import AirflowClient

FOLDER = PROJECT_ROOT / "examples" / "dags"
DAG = "monthly_weather"

Statistics = dict[str, dict[str, Any]]  # by origin


def unpause_downstream(client: AirflowClient) -> None:
    """Let assets start the DAG from now on."""
    client.wait_until(lambda: is_parsed(client, DAG), what=f"{DAG} to be parsed", timeout_s=PARSED_SECONDS)
    client.unpause(DAG)


def show_downstream(
    client: AirflowClient, months: Sequence[str], observations: Iterable[dict[str, Any]], *, earlier_runs: int
) -> None:
    """Wait for the next run of the DAG, say what the run computed, and check that.

    Args:
        client: Of the Airflow that has the DAG.
        months: What the run is to compute, such as ``2013-01``.
        observations: All that are visible.
        earlier_runs: How many runs there were before.

    Raises:
        StaleState: If no run starts, or computes other months, or other numbers than those of ``observations``.
    """
    with console.status(f"Airflow starts {DAG}"):
        runs = client.wait_until(
            lambda: client.runs(DAG)[earlier_runs:], what=f"{DAG} to start by itself", timeout_s=RUN_SECONDS
        )
        run = runs[0]["dag_run_id"]
        finish_run(client, DAG, run)
    computed: dict[str, Statistics] = client.xcom(DAG, run, "compute_months")
    say(f"{DAG} started by itself; months computed: {len(computed)}")
    for month, statistics in computed.items():
        rows = sum(each["rows"] for each in statistics.values())
        means = ", ".join(f"{origin} {each['mean_temp']:.1f} °F" for origin, each in statistics.items())
        say(f"  {month}: {rows:,} observations, {means}")
    if runs[0]["run_type"] != "asset_triggered":
        raise StaleState(f"{run} was to be started by the asset of closed months, and is {runs[0]['run_type']}")
    check_computed(computed, months, observations)


def check_computed(
    computed: dict[str, Statistics], months: Sequence[str], observations: Iterable[dict[str, Any]]
) -> None:
    """Check what a run computed.

    Raises:
        StaleState: If these are other months, or other numbers than those of ``observations``.
    """
    if sorted(computed) != sorted(months):
        raise StaleState(f"{DAG} was to compute {', '.join(months)}, and computed {', '.join(computed)}")
    wanted = compute_from(observations)
    for month, statistics in computed.items():
        if not are_same(statistics, wanted[month]):
            raise StaleState(f"{DAG} computed {statistics} for {month}; the observations say {wanted[month]}")


def compute_from(observations: Iterable[dict[str, Any]]) -> dict[str, Statistics]:
    """Return the statistics of each month, from the observations themselves."""
    temperatures: defaultdict[str, defaultdict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for row in observations:
        temperatures[row["time_hour"][:7]][row["origin"]].append(row.get("temp"))
    return {
        month: {origin: describe(values) for origin, values in by_origin.items()}
        for month, by_origin in temperatures.items()
    }


def describe(values: Sequence[float | None]) -> dict[str, Any]:
    """Return the statistics of one origin in one month."""
    known = [value for value in values if value is not None]
    return {"rows": len(values), "mean_temp": sum(known) / len(known)}


def are_same(computed: Statistics, wanted: Statistics) -> bool:
    """Tell whether two statistics are equal but for how floating point rounds."""
    return computed.keys() == wanted.keys() and all(
        each["rows"] == wanted[origin]["rows"] and math.isclose(each["mean_temp"], wanted[origin]["mean_temp"])
        for origin, each in computed.items()
    )
