"""`tidemark deployment status` and `promote`: a newer deployment beside the leading one, and how it takes over."""

from __future__ import annotations

import sys
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.batches import print_flush_details
from tidemark.cli.console import print_failures, print_json, print_line, print_table, stderr, working
from tidemark.cli.options import AsJson, connect_shards, current_user, load_settings, load_settings_to_look
from tidemark.clock import SystemClock
from tidemark.entry_points import record
from tidemark.errors import UsageError
from tidemark.interval import duration_text, time_text

if TYPE_CHECKING:
    from tidemark.collections.deployment import StoredMode
    from tidemark.deployment.readiness import Readiness

deployment = typer.Typer(
    name="deployment",
    help="Upgrade without a pause: a newer deployment catches up, and takes over.",
    no_args_is_help=True,
)

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the deployment is ready, or leads.")]
Force = Annotated[bool, typer.Option("--force", help="Promote though it is not caught up; needs a reason.")]
Why = Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the record.")]
Yes = Annotated[bool, typer.Option("--yes", help="Promote without a question.")]
_WAIT_S = 2.0


@deployment.command()
def status(*, wait: Wait = False, as_json: AsJson = False) -> None:
    """Show who leads, how far this deployment is, and of each object why it is not caught up yet.

    This deployment is the one of TIDEMARK_GENERATION. A newer one than the leader runs everything, and stages; a larger
    number in the catalog than this one means that it was replaced (77).
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.deployment.readiness import read_readiness  # noqa: PLC0415

    settings, clock = load_settings_to_look(), SystemClock()
    found = read_readiness(deployment_of(settings), clock=clock)
    while wait and not found.is_ready:
        sleep(_WAIT_S)
        found = read_readiness(deployment_of(settings), clock=clock)
    if as_json:
        print_json(found.to_json())
        return
    _print_readiness(found)


@deployment.command()
def promote(*, force: Force = False, why: Why = "", yes: Yes = False, as_json: AsJson = False) -> int:
    """Let this deployment lead in place of the older one, which is fenced for good; then flush what was staged.

    Refused (65), with the table, while it is not caught up. A promotion that died goes on with the same command; of a
    deployment that leads already it leaves the mode as it is, and flushes if that mode is read-write.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg
    from tidemark.collections.deployment import Mode  # noqa: PLC0415
    from tidemark.collections.reconcile.stale import reconcile_stale  # noqa: PLC0415
    from tidemark.collections.staged.flush import flush_all  # noqa: PLC0415
    from tidemark.deployment import promotion  # noqa: PLC0415
    from tidemark.spark.session import spark_on_demand  # noqa: PLC0415

    settings, clock, who = load_settings(writes=True), SystemClock(), current_user()
    plan, approved = promotion.make_plan(deployment_of(settings), clock=clock, is_forced=force), None
    if not plan.has_begun:
        promotion.check_plan(plan)
        if not yes:
            stderr().print(promotion.plan_text(plan), markup=False, soft_wrap=True)
            if not sys.stdin.isatty():
                raise UsageError("a promotion fences the older deployment for good", hint="say --yes, if that is meant")
            typer.confirm("Promote?", abort=True, err=True)
            approved = plan.digest
            plan = promotion.make_plan(deployment_of(settings), clock=clock, is_forced=force)  # the answer took a while
    shards, own = connect_shards(settings), deployment_of(settings, who=who)
    stored = promotion.promote(shards, own, plan, approved=approved, who=who, why=why)
    if stored.mode is Mode.READ_ONLY:  # it leads already, and somebody made it read-only
        _print_read_only(stored, as_json=as_json)
        return 0
    own = deployment_of(settings, who=who)  # under the epoch of the promotion
    report = flush_all(shards, own, (), clock=clock)
    with spark_on_demand(settings, app_name="tidemark-promote", starting=partial(working, "Starting Spark")) as start:
        report = reconcile_stale(report, own, start_spark=start, clock=clock)
    record(settings, report, clock=clock)
    if as_json:
        print_json({"generation": stored.generation, "mode": stored.mode.value, "since": stored.since_ms,
                    "flush": report.to_json()})  # fmt: skip
        return report.exit_code
    why = f": {stored.why}" if stored.why else ""
    since = f" since {time_text(stored.since_ms // 1000 * 1000)}" if stored.since_ms else ""
    print_line(f"deployment {stored.generation} leads{since}{why}")
    flushed = [
        (name, each.outcome.value, each.batches, each.inserted, each.retracted)
        for name, each in report.collections.items()
    ]
    if flushed:
        print_table(["collection", "outcome", "batches", "inserted", "retracted"], flushed)
    print_flush_details(report)
    print_failures(report)
    return report.exit_code


def _print_read_only(stored: StoredMode, *, as_json: bool) -> None:
    if as_json:
        print_json({"generation": stored.generation, "mode": stored.mode.value, "since": stored.since_ms,
                    "flush": None})  # fmt: skip
        return
    why = f" ({stored.why})" if stored.why else ""
    print_line(f"deployment {stored.generation} leads already, and is {stored.mode.value}{why}: nothing is changed")
    print_line("To publish what is staged: `tidemark mode read-write`, then `tidemark flush`.")


def _print_readiness(found: Readiness) -> None:
    from tidemark.catalog.items.kinds import DeploymentState  # noqa: PLC0415 - help is shown without pydantic

    stored = found.stored
    if stored.generation == found.generation:
        leads = "leads" if found.state is DeploymentState.IS_LEADER else f"is {found.state.value}"
        print_line(f"deployment {found.generation} {leads}, and is {stored.mode.value}")
        return
    leader = f"deployment {stored.generation} leads, and is {stored.mode.value}"
    print_line(f"deployment {found.generation} is {found.state.value}; {leader}")
    rows = [
        (
            each.name,
            each.kind.value,
            each.progress.value,
            "" if each.lag_ms is None else duration_text(each.lag_ms),
            each.staged,
            each.stale,
            each.why,
        )
        for each in found.objects
    ]
    print_table(["object", "kind", "state", "lag", "staged", "stale", "why"], rows)
    for each in found.obstacles:
        if each.hint:
            print_line(f"{each.name}: → {each.hint}")
    if found.is_ready:
        print_line("Ready: `tidemark deployment promote`, or in Airflow the DAG `promote_deployment`.")
