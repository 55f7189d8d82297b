"""Processes that share the rounds of one ingest, each with an open buffer of its own; what they say travels as JSON."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.errors import TidemarkError
from tidemark.ingest.parts import (
    Engine,
    Ingesting,
    Minted,
    Part,
    Share,
    append,
    mint,
    open_ingesting,
    share_out,
    write_part,
)
from tidemark.ingest.publish import name_attempt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from tests.support.homes import Home
    from tidemark.collections.declarations.collection import Declaration
    from tidemark.report import CollectionReport

Message = TypeVar("Message", Minted, Part, Share)


def travel(message: Message) -> Message:
    """Return what arrives in another process."""
    return type(message).from_json(json.loads(json.dumps(message.to_json())))


@contextmanager
def workers(home: Home, declaration: Declaration, count: int, **engine: Any) -> Iterator[list[Ingesting]]:
    """Open the same ingest in as many processes."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                open_ingesting(
                    home.of_generation(1).shards,
                    declaration,
                    deployment=home.deployment,
                    clock=home.clock,
                    engine=Engine(**engine),
                )
            )
            for _ in range(count)
        ]


def minted_by(run: Ingesting) -> Minted:
    minted = mint(run)
    assert isinstance(minted, Minted), minted
    return travel(minted)


def write(run: Ingesting, minted: Minted, share: Share) -> Part:
    """Write a part as a worker does: an error is handed on."""
    try:
        return travel(write_part(run, minted, travel(share), branch=name_attempt(run.target)))
    except TidemarkError as error:
        return travel(Part.failed(minted, share, error))


def write_all(runs: Sequence[Ingesting], minted: Minted, *, but: Collection[int] = ()) -> list[Part]:
    """Write all parts, without those of lost workers."""
    shares = share_out(minted, range(len(runs)), 0)
    return [write(runs[worker], minted, share) for worker, share in shares.items() if worker not in but]


def take_round(runs: Sequence[Ingesting], *, but: Collection[int] = (), measures: bool = True) -> CollectionReport:
    """Take one round, which the first worker leads."""
    minted = mint(runs[0])
    if not isinstance(minted, Minted):
        return minted
    minted = travel(minted)
    return append(runs[0], minted, write_all(runs, minted, but=but), measures=measures)
