"""Arguments and options that several commands share."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemark.collections.deployment import Applied, Deployment
from tidemark.entry_points import join_deployment, parse_time
from tidemark.errors import ConfigurationInvalid, TidemarkError
from tidemark.iceberg.shard.state_reader import check_reachable
from tidemark.iceberg.stores import check_stores
from tidemark.settings import Settings

if TYPE_CHECKING:
    from tidemark.iceberg.shards import Shards


def selected(what: str, *, otherwise: str) -> Any:
    """Return the argument of a command that takes the words of ``select``, and works on ``otherwise`` without any."""
    rules = "`tag:TAG`, `+NAME` (with all that it reads), `NAME+` (with all that read it)"
    text = f"{what}, or {rules}; without any: {otherwise}."
    return typer.Argument(metavar="[NAME…]", help=text, autocompletion=complete_selection)


def complete_selection(incomplete: str) -> list[str]:
    """Return the words of ``select`` that begin so, for the shell; none if no store answers."""
    applied = _read_applied()
    tags = {f"tag:{tag}" for declaration in applied.declarations.values() for tag in declaration.tags}
    prefix = "+" if incomplete.startswith("+") else ""
    return [word for name in (*applied.declarations, *sorted(tags)) if (word := prefix + name).startswith(incomplete)]


def complete_collection(incomplete: str) -> list[str]:
    """Return the names of collections that begin so, for the shell; none if no store answers."""
    return [name for name in _read_applied().declarations if name.startswith(incomplete)]


def complete_object(incomplete: str) -> list[str]:
    """Return the names of collections and sinks that begin so, for the shell; none if no store answers."""
    applied = _read_applied()
    return [name for name in (*applied.declarations, *applied.sinks) if name.startswith(incomplete)]


def _read_applied() -> Applied:
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pyiceberg

    try:
        return deployment_of(load_settings_to_look()).registry.read()
    except (TidemarkError, OSError):  # a person is typing: whatever is wrong is told by the command
        return Applied()


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document for programs instead of tables.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A declared collection.", autocompletion=complete_collection)]
Names = Annotated[
    list[str], typer.Argument(metavar="NAME…", help="Declared collections.", autocompletion=complete_collection)
]
IntervalOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="START END",
        help="The data interval, end excluded: dates or times in ISO form (UTC). "
        "Collections with a scope are limited to the slice it touches.",
    ),
]
Limit = Annotated[int | None, typer.Option(min=0, metavar="N", help="At most N rows; no order is promised.")]


def parse_frontier_time(text: str) -> int:
    """Return ms since the Unix epoch; ``text`` is a whole number of ms, or a date or time in ISO form (UTC).

    Raises ``UsageError`` if ``text`` is neither.
    """
    return int(text) if text.isdecimal() else parse_time(text)


def load_settings(*, writes: bool = False) -> Settings:
    """Return the settings once the catalog has answered, and the warehouse if needed; call this before slow imports.

    Raises:
        ConfigurationInvalid: If a setting is wrong.
        Unreachable: If a store does not answer within seconds.
    """
    settings = Settings.load(os.environ)
    if writes:
        check_stores(settings)
    else:
        check_reachable(settings)
    return settings


def load_settings_to_look() -> Settings:
    """Return the settings of a home that is there: a command that only looks makes none.

    Raises:
        ConfigurationInvalid: As ``check_home``.
        Others as ``load_settings``.
    """
    settings = load_settings()
    check_home(settings)
    return settings


def check_home(settings: Settings) -> None:
    """Raise ``ConfigurationInvalid`` if everything is embedded in a home that does not exist."""
    if settings.catalog_is_sqlite and not settings.home.exists() and not settings.catalog_path.exists():
        raise ConfigurationInvalid(
            f"there is no home at {str(settings.home)!r}",
            hint="check TIDEMARK_HOME; `tidemark init` makes a home there, and so does `tidemark apply PATH`",
        )


def load_deployment(*, writes: bool = True) -> Deployment:
    """Return the deployment once all stores have answered; call this before slow imports.

    Raises:
        ConfigurationInvalid: If a setting is wrong.
        TidemarkError: As ``join_deployment``.
    """
    return join_deployment(Settings.load(os.environ), who=current_user(), writes=writes)


def connect_shards(settings: Settings) -> Shards:
    """Return the collections of the installation; imports pyiceberg, which takes a second."""
    from tidemark.iceberg.shards import Shards  # noqa: PLC0415 - help is shown without pyiceberg

    return Shards.connect(settings)


def current_user() -> str:
    """Return who runs the command, for the record."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run as a user without a name; which of them depends on Python
        return str(os.getuid())
