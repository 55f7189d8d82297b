"""`tidemark init` and `tidemark doctor`: make an installation, and check whether it is sound."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.catalog.items import load_catalog
from tidemark.cli.console import print_result, red, working
from tidemark.cli.options import AsJson, check_home, connect_shards
from tidemark.clock import SystemClock
from tidemark.errors import ConfigurationInvalid, CorruptState, NotPossible, TidemarkError, UsageError
from tidemark.exit_codes import ExitCode, most_severe
from tidemark.iceberg.stores import check_warehouse
from tidemark.locations import is_read_only
from tidemark.settings import Settings
from tidemark.spark.class_archive import class_archive, make_class_archive
from tidemark.spark.jars import resolve_jars
from tidemark.spark.session import spark_on_demand
from tidemark.spark.toolchain import Finding, check_environment, check_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.catalog.opening.catalog import Catalog
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.collections.deployment import StoredMode
    from tidemark.iceberg.shard.head import ShardHead
    from tidemark.iceberg.shard.shard import Shard
    from tidemark.iceberg.shards import Shards

    Look = Callable[[Shard, ShardHead], str]  # what else is to be said of a collection

_SHOWN_RANGES = 5  # without rows
SPARK_ROWS = 2_000_000  # one process adds up so many rows in memory, in seconds; Spark adds up more

InitialCatalog = Annotated[
    str | None,
    typer.Option("--catalog", metavar="stash|persist", help="Where a new catalog is kept; without it: in the stash."),
]
Deep = Annotated[
    bool,
    typer.Option(
        "--deep",
        help="Also look for every file, compare every ledger with the batches in the rows, and the sum of every change "
        "log with the contents; reads all data.",
    ),
]
Contents = Annotated[
    bool,
    typer.Option("--contents", help="With --deep: read every value of every file, and check the digests with Spark."),
]
Jars = Annotated[
    bool, typer.Option("--jars", help="First fetch Spark's jars into TIDEMARK_JARS, unless they are there already.")
]


def init(*, catalog: InitialCatalog = None, jars: Jars = False, as_json: AsJson = False) -> None:
    """Create the tables' catalog, the warehouse and the system's own catalog, where they are not there yet.

    What is there stays as it is: `tidemark catalog migrate` and `rollback` move it.
    """
    settings = Settings.load(os.environ)
    if catalog not in {None, "stash", "persist"}:
        raise UsageError(f"the catalog cannot be in {catalog!r}", hint="there are stash and persist")
    if jars and not check_jars(settings.jars).ok:
        with working("Fetching Spark's jars"):
            resolve_jars(settings.jars)
    if jars and (archive := class_archive(settings.jars, os.environ)) is not None and not archive.exists():
        with working("Making an archive of Spark's classes"):
            make_class_archive(settings.jars, os.environ)  # without one, runs only start later
    connect_shards(settings)
    truth = _initialise(load_catalog(), catalog)
    try:
        settings.reports.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationInvalid(
            f"the folder for reports cannot be made: {error}", hint="check TIDEMARK_REPORTS, or TIDEMARK_HOME"
        ) from error
    places = {
        "home": str(settings.home),
        "catalog": str(settings.catalog_uri),
        "stash": str(settings.stash_uri),
        "truth": truth,
        "warehouse": settings.warehouse,
        "reports": str(settings.reports),
        **({"jars": str(settings.jars)} if jars else {}),
        "generation": settings.generation,
    }
    print_result(places, ["what", "where"], places.items(), as_json=as_json)


def _initialise(catalog: Catalog, wanted: str | None) -> str:
    """Open the catalog unless an earlier open was completed; return the name of the truth.

    Raises ``NotPossible`` if there is a catalog already, and its truth is not the ``wanted`` back end.
    """
    from tidemark.catalog.opening.opening import Direction  # noqa: PLC0415
    from tidemark.catalog.opening.truth import find_truth  # noqa: PLC0415

    truth = find_truth(catalog.ends)
    if truth is not None and truth.was_led:
        if wanted not in {None, truth.name}:
            raise NotPossible(
                f"there is a catalog already, and the {truth.name} is its truth",
                hint=f"run `tidemark catalog {'migrate' if wanted == 'persist' else 'rollback'}`",
            )
        return truth.name
    directions = {"persist": Direction.MIGRATE, "stash": Direction.ROLLBACK}
    # A first open that died is completed in its own direction, unless another one is wanted.
    with closing(catalog.open(None if wanted is None else directions[wanted])) as opening:
        return opening.truth.name


def doctor(*, deep: Deep = False, contents: Contents = False, as_json: AsJson = False) -> int:
    """Check this machine, the stores and every collection; say what to repair."""
    if contents and not deep:
        raise UsageError("--contents needs --deep", hint="run `tidemark doctor --deep --contents`")
    settings = Settings.load(os.environ)
    findings = [Finding(subject="Home", ok=True, message=str(settings.home))]
    findings += check_environment(settings.jars, os.environ)
    codes = [ExitCode.CONFIGURATION for finding in findings if not finding.ok]
    with spark_on_demand(settings, app_name="tidemark-doctor") as start_spark:
        look = partial(_look_deeper, start_spark=start_spark, contents=contents) if deep else None
        for finding, code in _check_stores(settings, look):
            findings.append(finding)
            codes.append(code)
    result = {"ok": all(finding.ok for finding in findings), "checks": [asdict(finding) for finding in findings]}
    rows = []
    for finding in findings:
        hint = f"; {finding.hint}" if finding.hint and not finding.ok else ""
        rows.append((finding.note or "ok" if finding.ok else red("WRONG"), finding.subject, finding.message + hint))
    print_result(result, ["", "what", "finding"], rows, as_json=as_json)
    return most_severe(codes)


def _check_stores(settings: Settings, look: Look | None) -> list[tuple[Finding, ExitCode]]:
    from tidemark.catalog.deployment.modes import look_at_mode  # noqa: PLC0415 - help is shown without pydantic

    try:
        check_home(settings)
        shards = connect_shards(settings)
        names = shards.names()
    except TidemarkError as error:
        return [_failure("Catalog", error)]
    declared, finding = _check_declarations(names, settings)
    findings = [_success("Catalog", f"answers, {len(names)} collections"), _check_warehouse(settings), finding]
    leader = cache(lambda: look_at_mode(load_catalog().ends))  # asked once, and only if something is staged
    for name in names:
        with working(f"Checking {name}"):
            findings.append(_check_collection(shards, name, declared.get(name), leader, look))
            findings += _check_holds(name, settings)
    return [*findings, *_check_objects(shards, settings)]


def _check_objects(shards: Shards, settings: Settings) -> list[tuple[Finding, ExitCode]]:
    """Return what does not run, and what was dropped and waits for its removal; each with the reason."""
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.collections.maintenance.dropped_tables import look_at_remains  # noqa: PLC0415
    from tidemark.iceberg.shard.state_reader import DROPPED  # noqa: PLC0415

    try:
        objects, now_ms = deployment_of(settings).objects, SystemClock().now_ms()
        findings = [_success(name, str(each), note=each.state) for name, each in sorted(objects.read().items())]
        remains = [look_at_remains(shards, dropped, now_ms=now_ms) for dropped in objects.dropped()]
    except TidemarkError as error:
        return [_failure("Objects", error)]
    for each in remains:
        findings.append(_success("Dropped", str(each)))
        findings += _check_holds(each.dropped.table, settings, DROPPED)
    return findings


def _check_warehouse(settings: Settings) -> tuple[Finding, ExitCode]:
    is_copy = settings.catalog_is_sqlite and is_read_only(settings.catalog_path)  # of which nothing is to be written
    try:
        check_warehouse(settings.warehouse, writes=not is_copy)
    except TidemarkError as error:
        return _failure("Warehouse", error)
    allowed = "can be read; this copy of the home cannot be written" if is_copy else "can be written"
    return _success("Warehouse", f"{settings.warehouse} {allowed}")


def _check_declarations(
    stored: Collection[str], settings: Settings
) -> tuple[Mapping[str, Declaration], tuple[Finding, ExitCode]]:
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415

    try:
        declared = deployment_of(settings).registry.read().declarations
    except TidemarkError as error:
        return {}, _failure("Declarations", error)
    without_table = sorted(declared.keys() - set(stored))
    if without_table:
        message = f"declared, but without a table: {', '.join(without_table)}"
        return declared, _failure("Declarations", NotPossible(message, hint="run `tidemark apply` with their files"))
    return declared, _success("Declarations", f"{len(declared)} applied")


def _check_collection(
    shards: Shards, name: str, declaration: Declaration | None, leader: Callable[[], StoredMode], look: Look | None
) -> tuple[Finding, ExitCode]:
    try:
        shard = shards.open(name)
        head = shard.load()
        message = f"{head.row_count} rows, upper {head.state.upper}"
        message += _foreign_text(head, declaration) + _staged_text(head, name, leader)
        message += look(shard, head) if look else ""
    except TidemarkError as error:
        return _failure(name, error)
    return _success(name, message)


def _check_holds(name: str, settings: Settings, namespace: str | None = None) -> list[tuple[Finding, ExitCode]]:
    """Return the overdue and the dead holds on a collection, or on a table of ``namespace``.

    Nothing if the table cannot be read, which another finding says.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.collections.holds import find_dead, find_overdue  # noqa: PLC0415
    from tidemark.iceberg.shard.state_reader import read_state  # noqa: PLC0415

    try:
        seen = read_state(settings, name, namespace)
    except TidemarkError:
        return []
    name = name if namespace is None else f"{namespace}.{name}"
    now_ms, registry = SystemClock().now_ms(), deployment_of(settings).registry
    try:
        overdue = find_overdue(name, seen.state, seen.oldest_ms, now_ms=now_ms, registry=registry)
        dead = find_dead(name, seen.state, registry=registry)
    except TidemarkError as error:
        return [_failure(f"{name}: holds", error)]
    return [
        (Finding(subject=f"{name}: holds", ok=False, message=held.warning, hint=held.hint), ExitCode.TRANSIENT)
        for held in overdue
    ] + [
        _success(f"{name}: holds", f"{reader!r} is of a sink that is gone: maintenance releases it", note="dead")
        for reader in dead
    ]


def _foreign_text(head: ShardHead, declaration: Declaration | None) -> str:
    """Return what another engine wrote, and what the next run does about it; empty if nobody else wrote."""
    from tidemark.collections.declarations.collection import OnForeignCommit  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.iceberg.shard.state import ShardKind  # noqa: PLC0415

    found = head.foreign or head.foreign_updates
    if found is None:
        return ""
    if head.state.layout is not ShardKind.DIFFERENTIAL:
        return f"; {found}, which " + ("stay as they are" if found.snapshot_ids else "the next append goes on from")
    if declaration is None:
        return f"; {found}, which stay until it is declared again and reconciled"
    if declaration.on_foreign_commit is OnForeignCommit.FAIL:
        return f"; {found}, which the next reconcile refuses (`on_foreign_commit: fail`)"
    return f"; {found}, which the next reconcile puts right"


def _staged_text(head: ShardHead, name: str, leader: Callable[[], StoredMode]) -> str:
    """Return who publishes what is staged for a collection, and what is stale; empty if nothing is staged."""
    from tidemark.collections.staged.batches import describe_waiting, queued_in  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.staged.slices import describe_stale  # noqa: PLC0415

    queued = queued_in(head, collection=name)
    return "; ".join(["", describe_waiting(queued, leader()), *describe_stale(queued)]) if queued else ""


def _look_deeper(shard: Shard, head: ShardHead, *, start_spark: Callable[[], SparkSession], contents: bool) -> str:
    """Return what was checked; ``NotPossible`` if something is wrong."""
    from tidemark.iceberg.shard.damage import describe, find_damage, naming_damage  # noqa: PLC0415
    from tidemark.iceberg.shard.state import ShardKind  # noqa: PLC0415

    while damaged := find_damage(head, is_read=lambda _: contents):
        fresh = shard.load()
        if fresh.table.metadata_location == head.table.metadata_location:
            raise describe(head, damaged)
        head = fresh  # commits came meanwhile, and what they left behind may be gone: look again
    text = "; every file can be read" if contents else "; every file is there"
    with naming_damage(lambda: head, is_read=lambda _: True):
        if head.state.layout is ShardKind.LOG:
            return text
        if head.state.layout is ShardKind.APPEND_ONLY:
            return text + _ledger_text(head, shard.name)
        text += _invariant_text(shard, start_spark() if head.row_count > SPARK_ROWS else None)
        return text + (_digest_text(shard, head, start_spark) if contents else "")


def _ledger_text(head: ShardHead, name: str) -> str:
    from tidemark.iceberg.reading.invariant import check_ledgers  # noqa: PLC0415

    unknown, without_rows = check_ledgers(head)
    if unknown:
        raise NotPossible(
            f"rows of {name!r} are of batches that the ledgers of their producers lack: {dict(unknown)}",
            hint="who appends these batches again has their rows twice: first have another engine delete the rows",
        )
    shown = ", ".join(without_rows[:_SHOWN_RANGES])
    empty = f"; without a row, since it had none or a retention took them: {shown}" if without_rows else ""
    return f"; the ledgers have the batches of all rows{empty}"


def _digest_text(shard: Shard, head: ShardHead, start_spark: Callable[[], SparkSession]) -> str:
    from tidemark.collections.apply.execute import read_stored  # noqa: PLC0415
    from tidemark.collections.reconcile.pinned_snapshot import pin_snapshot  # noqa: PLC0415
    from tidemark.iceberg.shard.digest_file import bound_file  # noqa: PLC0415

    if (kept := bound_file(head)) is None:
        return ""
    if wrong := pin_snapshot(start_spark(), shard, head, read_stored(head.table).key).wrong_buckets():
        raise NotPossible(
            f"the digest of {shard.name!r} is not that of its rows, in {wrong} buckets",
            hint=f"remove {kept.statistics_path}: the next reconcile then reads all rows, and keeps a new one",
        )
    return "; the digest is that of the rows"


def _invariant_text(shard: Shard, spark: SparkSession | None) -> str:
    """Return what was checked; ``NotPossible`` if the change log and the contents disagree."""
    from tidemark.iceberg.reading.invariant import check_invariant  # noqa: PLC0415

    check = check_invariant(shard, spark=spark)
    if not check.holds:
        raise NotPossible(
            f"{check.wrong_rows} rows of the change log and the contents disagree, for example {check.sample}",
            hint="keep a copy of the table, then reconcile: it makes the contents equal to the source",
        )
    return "; the change log adds up to the contents" if check.grounded else "; the change log has no negative rows"


def _success(subject: str, message: str, *, note: str = "") -> tuple[Finding, ExitCode]:
    return Finding(subject=subject, ok=True, message=message, note=note), ExitCode.OK


def _failure(subject: str, error: TidemarkError) -> tuple[Finding, ExitCode]:
    damage = error.sample if isinstance(error, CorruptState) else []
    return Finding(subject=subject, ok=False, message=str(error), hint=error.hint, damage=damage), error.exit_code
