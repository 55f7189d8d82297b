"""`tidemark storage run`, `status`, `suspend` and `restart`: workers that run ingestions and sinks all the time."""

from __future__ import annotations

import signal
from functools import partial
from threading import Event
from typing import Annotated, Any

import typer

from tidemark.cli.console import print_line, print_result, print_table, working
from tidemark.cli.options import (
    AsJson,
    check_home,
    connect_shards,
    current_user,
    load_deployment,
    load_settings,
    load_settings_to_look,
)
from tidemark.clock import SystemClock
from tidemark.collections.declarations.append_only import duration_ms, read_duration
from tidemark.collections.deployment import StatusKind
from tidemark.errors import Paused, TidemarkError, UnknownObject, UsageError
from tidemark.report import ErrorReport
from tidemark.settings import Settings
from tidemark.spark.session import spark_on_demand

storage = typer.Typer(
    name="storage", help="Workers that run ingestions and sinks all the time, in small commits.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A collection that reads a buffer, or a sink.")]
Workers = Annotated[int, typer.Option(min=1, max=64, metavar="N", help="How many workers share the work.")]
OneWorker = Annotated[int | None, typer.Option("--worker", min=0, metavar="I", help="Be this one, in this process.")]
ForTime = Annotated[str | None, typer.Option("--for", metavar="TIME", help="End after that time, as 55m; else never.")]
UntilDrained = Annotated[bool, typer.Option("--until-drained", help="End once nothing waits any more.")]
Parent = Annotated[int | None, typer.Option("--parent", hidden=True, help="End when that process is gone.")]
RunId = Annotated[str, typer.Option("--run", hidden=True, help="The run of the DAG, which watches this worker.")]
RestFor = Annotated[str, typer.Option("--for", metavar="TIME", help="How long, at most an hour.")]
_LONGEST_REST_MS = 3_600_000
_NOTHING_TO_RUN = (
    "Nothing declares `every` yet. Declare `every: 5s` in the `source` of a collection that reads a write buffer, or "
    "in a sink, and apply it: the workers begin with it by themselves."
)


@storage.command()
def run(
    *,
    workers: Workers = 2,
    worker: OneWorker = None,
    for_: ForTime = None,
    until_drained: UntilDrained = False,
    parent: Parent = None,
    run_id: RunId = "",
) -> int:
    """Run the objects that declare `every`, until it is stopped: each round is one commit of what came.

    Starts a process for each worker, and starts one that dies again. Workers of a later call take over from those that
    run, without a gap. In read-only mode the workers wait.
    """
    from tidemark.storage.processes.process import Until, run_worker  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.storage.processes.supervision import LOOK_S, Supervision  # noqa: PLC0415

    seconds = None if for_ is None else _milliseconds(for_) / 1000
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    settings = load_settings(writes=True)
    check_home(settings)
    if worker is not None and worker >= workers:
        raise UsageError(f"there is no worker {worker} of {workers}", hint="the first one is 0")
    if parent is None:  # else that process has said it
        these = f"storage workers: {workers}" if worker is None else f"storage worker {worker} of {workers}"
        ends = [*([f"for {for_}"] if for_ else []), *(["until nothing waits"] if until_drained else [])]
        _announce(settings, f"{these}, {' or '.join(ends) or 'until Ctrl-C'}")
    if worker is None:
        arguments = ["--until-drained"] if until_drained else []
        supervision = Supervision(settings, range(workers), workers, seconds, arguments)
        supervision.begin()
        while supervision.look() and not stop.wait(LOOK_S):
            pass
        return supervision.end()
    starting = partial(working, "Starting Spark")
    with spark_on_demand(settings, app_name=f"tidemark-worker-{worker}", starting=starting) as start_spark:
        end = run_worker(
            settings,
            index=worker,
            workers=workers,
            until=Until(seconds=seconds, drained=until_drained),
            stop=stop,
            clock=SystemClock(),
            start_spark=start_spark,
            parent=parent,
            run=run_id,
        )
    print_line(f"storage worker {worker}: {end}")
    return 0


@storage.command()
def status(*, as_json: AsJson = False) -> None:
    """Show the workers, and of each object that declares `every` how far it came, what waits, and its last error."""
    from tidemark.storage.view import LEVELS, RUNNING, WAITING, read_whole_view  # noqa: PLC0415 - help is shown without pyiceberg

    view = read_whole_view(load_settings_to_look(), clock=SystemClock())
    columns = ["name", "state", "holder", "workers", *LEVELS, "error"]
    rows = [[_shown(each[column]) for column in columns] for each in view["objects"]]
    print_result(view, columns, rows, as_json=as_json, title="objects")
    if not as_json:
        if view["objects"] and not any(each["state"] in (RUNNING, WAITING) for each in view["workers"]):
            print_line("These declare `every`, and no worker runs them; scheduled runs do. To start workers:")
            print_line("`tidemark storage run`, or in Airflow the DAG `run_storage_workers`.")
        columns = ["worker", "state", "life", "process", "since", "objects"]
        print_table(columns, [[each[column] for column in columns] for each in view["workers"]], title="workers")


@storage.command()
def suspend(name: Name, *, for_: RestFor = "10m") -> None:
    """Let NAME rest for a while: workers and scheduled runs leave it out; `tidemark resume NAME` ends that."""
    rest_ms = _milliseconds(for_)
    if rest_ms > _LONGEST_REST_MS:
        raise UsageError(f"{for_!r} is longer than an hour", hint=f"`tidemark pause {name}` lasts until you resume it")
    deployment = load_deployment()
    objects = deployment.registry.objects()
    if name not in objects:
        raise UnknownObject.named(name, objects)
    if objects[name].kind is StatusKind.COLLECTION:
        raise UsageError(
            f"{name!r} reads no write buffer, and is no sink: nothing heeds its rest",
            hint=f"`tidemark pause {name}` keeps all its runs away until you resume it",
        )
    error = ErrorReport(kind="Suspended", message=f"by {current_user()}, for {for_}")
    standing = deployment.objects.suspend(name, objects[name].id, error, back_off=lambda _attempts: rest_ms)
    print_line(f"{name}: {standing or 'paused, or dropped meanwhile: nothing to do'}")


@storage.command()
def restart(name: Name) -> None:
    """Stop the dataflow of NAME on all workers, and start it anew from what is stored; end its rest, if it rests."""
    deployment = load_deployment()
    from tidemark.storage.processes.restart import restart_dataflow  # noqa: PLC0415 - help is shown without pyiceberg

    standing, known = deployment.objects.read().get(name), deployment.registry.objects().get(name)
    if standing is not None and standing.is_paused:
        raise Paused(f"{name!r} is {standing}", hint=f"`tidemark resume {name}` lets it run again; a restart does not")
    if standing is not None and known is not None and deployment.objects.recover(name, known.id):
        print_line(f"{name}: runs again; it was {standing}")
        return
    shards = connect_shards(deployment.settings)
    restart_dataflow(shards, deployment, name, who=current_user(), clock=SystemClock())
    print_line(f"{name}: is started anew")


def _announce(settings: Settings, what: str) -> None:
    """Print what starts, and how many objects there are for it; workers wait for a catalog that does not answer yet."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pydantic

    try:
        paced = deployment_of(settings).registry.read().paced
    except TidemarkError as error:
        print_line(f"{what}; the workers wait until the catalog says what to run: {error}")
        return
    print_line(f"{what}; objects that declare `every`: {len(paced)}")
    if not paced:
        print_line(_NOTHING_TO_RUN)


def _milliseconds(text: str) -> int:
    try:
        return duration_ms(read_duration(text))
    except ValueError as error:
        raise UsageError(f"--for: {error}", hint="for example 30s or 10m") from error


def _shown(value: Any) -> Any:
    if value is None:  # no worker tells it
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list) else value
