"""`tidemark hold list|take|release`: the history that readers keep for their next run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tidemark.cli.console import print_json, print_line, print_result, red
from tidemark.cli.options import (
    AsJson,
    Name,
    connect_shards,
    load_deployment,
    load_settings_to_look,
    parse_frontier_time,
)
from tidemark.clock import SystemClock
from tidemark.errors import CorruptState, UnknownCollection, UsageError
from tidemark.iceberg.shard.state_reader import DROPPED
from tidemark.interval import duration_text

if TYPE_CHECKING:
    from tidemark.collections.holds import ReaderHold
    from tidemark.iceberg.shard.state_reader import ShardSummary

SomeNames = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME…]", help="Collections, also dropped ones; without any: all.")
]
HeldName = Annotated[
    str, typer.Argument(metavar="NAME", help="A collection, or dropped.NAME_NUMBER: the table of a dropped one.")
]
Reader = Annotated[str, typer.Argument(metavar="READER", help="Who reads: letters, digits, - and _.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        help="The first time to keep: ms since 1970, or ISO (UTC). Without it the hold stays where it is, or keeps all "
        "that is there.",
    ),
]
For = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="When it expires, such as 12h or 7d (the default).")
]
Durable = Annotated[bool, typer.Option("--durable", help="The hold never expires: it stays until it is released.")]

_DROPPED = f"{DROPPED}."

hold = typer.Typer(
    name="hold", help="Holds: the history that readers of changes keep for their next run.", no_args_is_help=True
)


@hold.command("list")
def list_(names: SomeNames = None, *, as_json: AsJson = False) -> None:
    """List who holds history of which collection, since when and until when; overdue holds are red.

    A hold is overdue if its reader stands still: a durable one after a day, or after `warn_after` of its sink; one that
    expires once it keeps more than the week that maintenance keeps anyway. The tables of dropped collections, which
    stay as long as somebody holds their history, are called dropped.NAME_NUMBER.
    """
    from tidemark.catalog.deployment.deployment import deployment_of  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.collections.holds import list_holds, read_sink_holds  # noqa: PLC0415

    settings = load_settings_to_look()
    states = _read_states_of(names or ())
    sink_holds = read_sink_holds(deployment_of(settings).registry)
    now_ms = SystemClock().now_ms()
    found = [
        held
        for name, seen in states.items()
        for held in list_holds(name, seen.state, seen.oldest_ms, now_ms=now_ms, sink_holds=sink_holds)
    ]
    if not found and not as_json:
        print_line("Nobody holds history.")
        return
    print_result(
        {"holds": [held.to_json() for held in found]},
        ["collection", "reader", "first kept time", "expires", "keeps", ""],
        map(_row_of, found),
        as_json=as_json,
    )


@hold.command()
def take(
    name: Name,
    reader: Reader,
    *,
    since: Since = None,
    for_: For = None,
    durable: Durable = False,
    as_json: AsJson = False,
) -> None:
    """Keep history of NAME for READER from a time on, or move and renew the hold that READER has.

    A read-only deployment takes holds that expire; only a leader takes durable ones.
    """
    from tidemark.collections.holds import moment_text, take_hold  # noqa: PLC0415 - help is shown without pydantic
    from tidemark.iceberg.shard.state import NEVER  # noqa: PLC0415

    if durable and for_ is not None:
        raise UsageError("a durable hold does not expire", hint="give --for or --durable, not both")
    lasts_ms = _parse_duration(for_ or "7d")
    start = None if since is None else parse_frontier_time(since)
    deployment = load_deployment()
    shard = connect_shards(deployment.settings).open(name)
    expires_at_ms = NEVER if durable else SystemClock().now_ms() + lasts_ms
    first_kept = take_hold(shard, reader, since=start, expires_at_ms=expires_at_ms, deployment=deployment)
    if as_json:
        expires_at = None if durable else expires_at_ms
        print_json({"collection": name, "reader": reader, "since": first_kept, "expires_at": expires_at})
        return
    until = "it is released" if durable else moment_text(expires_at_ms)
    print_line(f"{name}: {reader!r} holds history from {first_kept} ({moment_text(first_kept)}) on, until {until}")


@hold.command()
def release(name: HeldName, reader: Reader, *, as_json: AsJson = False) -> None:
    """Give up the hold of READER on NAME: the next maintenance may drop what it kept.

    The hold of a sink goes when the sink is dropped.
    """
    from tidemark.collections.holds import release_hold  # noqa: PLC0415 - help is shown without pydantic

    deployment = load_deployment()
    shards = connect_shards(deployment.settings)
    table = name.removeprefix(_DROPPED)
    shard = shards.open(table, DROPPED) if table != name else shards.open(name)
    was_held = release_hold(shard, reader, deployment=deployment)
    if as_json:
        print_json({"collection": name, "reader": reader, "released": was_held})
    elif was_held:
        print_line(f"{name}: {reader!r} holds no history any more")
    else:
        readers = ", ".join(sorted(shard.load().state.holds)) or "nobody"
        print_line(f"{name}: {reader!r} held no history, so nothing was released; who holds some: {readers}")


def _read_states_of(names: list[str] | tuple[()]) -> dict[str, ShardSummary]:
    """Return the states of the named collections, or of all that can be read; also of dropped ones.

    Raises:
        UnknownCollection: If no table has, or had, one of the names.
        CorruptState: If a named collection cannot be read.
    """
    from tidemark.iceberg.shard.state_reader import read_states  # noqa: PLC0415 - help is shown without pydantic

    settings = load_settings_to_look()
    states = read_states(settings)
    states |= {_DROPPED + table: seen for table, seen in read_states(settings, DROPPED).items()}
    chosen = {title for title in states if not names}
    for name in names:
        found = {
            title for title in states if title == name or re.fullmatch(re.escape(_DROPPED + name) + r"_\d+", title)
        }
        if not found:
            raise UnknownCollection.named(name, states)
        if isinstance(damaged := states.get(name), CorruptState):
            raise damaged
        chosen |= found
    return {title: seen for title, seen in states.items() if title in chosen and not isinstance(seen, CorruptState)}


def _row_of(held: ReaderHold) -> tuple[object, ...]:
    from tidemark.collections.holds import moment_text  # noqa: PLC0415 - help is shown without pydantic

    ending = "never" if held.expires_at_ms is None else moment_text(held.expires_at_ms)
    expires = ending if held.is_live else f"{ending} (expired)"
    first_kept = f"{held.hold.since} ({moment_text(held.hold.since)})"
    return (
        held.collection,
        held.reader,
        first_kept,
        expires,
        duration_text(held.age_ms),
        red("OVERDUE") if held.is_overdue else "",
    )


def _parse_duration(text: str) -> int:
    """Return a duration in ms. Raises ``UsageError`` if ``text`` is not one."""
    from tidemark.collections.declarations.append_only import duration_ms  # noqa: PLC0415 - help is shown without pydantic

    if not re.fullmatch(r"[1-9][0-9]{0,5}[smhd]", text):
        raise UsageError(f"{text!r} is not a duration", hint="for example 12h, or 7d")
    return duration_ms(text)
