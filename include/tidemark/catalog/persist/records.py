"""What the log of the persist catalog holds: items, and exactly one fence token; and what its head shows of them.

The token is a record among the updates, so that whoever reads on sees it at its place, before anything that a later
leader wrote. The shard has a token of its own (``tidemark.generation``, ``.epoch``): it belongs to the mode of the
deployment and to maintenance, which raise it for every shard, and says nothing about who leads the catalog. It is no
second fence: a handle joins it anew with each commit. That a commit cannot pass an open follows from the upper alone:
the token's record moves it, and a commit is only made at the upper up to which its handle has read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidemark.catalog.back_end import Head
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Item, canonical_json
from tidemark.catalog.items.kinds import CONFIG, DEPLOYMENT, config_item
from tidemark.errors import CorruptState, Fenced
from tidemark.iceberg.shard.token import Token

if TYPE_CHECKING:
    from collections.abc import Mapping


NAME: Final = "persist"
WHERE: Final = "the persist catalog"
SHARD: Final = "catalog"
FENCE_TOKEN: Final = "fence_token"  # noqa: S105 - the kind of the record, which no kind of item has for a name
PROPERTY: Final = "tidemark.catalog"  # of the table, set by the same commits: readable without the log
SHOWN: Final = (CONFIG.name, DEPLOYMENT.name)  # the kinds that it shows in full: few items, and small ones
FIRST_EPOCH: Final = 1  # of a catalog that nobody opened yet
RESTORE: Final = (
    "somebody edited the table `system.catalog`: restore it. If `tidemark catalog status` says that the stash is the "
    "truth, drop the table instead, as docs/catalog-migration.md shows; the next open makes it anew"
)


def token_text(token: Token) -> str:
    """Return the stored form of a fence token."""
    return canonical_json({"deploy_generation": token.generation, "epoch": token.epoch})


def shown_items(head: Head) -> Contents:
    """Return the items that a head shows in full: all of the kinds in ``SHOWN``."""
    deployments = (Item(DEPLOYMENT.name, *pair) for pair in head.deployments.items())
    return Contents([*(config_item(key, value) for key, value in head.config.items()), *deployments])


def token_damage(records: Mapping[str, int], shown: Token | None) -> CorruptState | None:
    """Compare the token's records with the token that the table's head shows: each open sets both in one commit.

    Args:
        records: Stored texts of tokens, with their multiplicities, none with 0.
        shown: As ``shown_token`` returned it.

    Returns:
        What to say if they differ. Then the one that is shown is the present one: whoever else holds one got it from an
        open before that, and the records were written by none.
    """
    if dict(records) == ({} if shown is None else {token_text(shown): 1}):
        return None
    return CorruptState(
        f"{WHERE} holds the fence tokens {dict(records)}, and its head shows {shown}: somebody else wrote to its table",
        hint=RESTORE if shown is None else "`tidemark catalog open` keeps the one that is shown, and fences everybody",
    )


def check_not_fenced(mine: Token, found: Token) -> None:
    """Compare the token that the log shows with the one that is held.

    Raises:
        FencedByGeneration: If a newer deployment opened the catalog.
        FencedByEpoch: If it was opened since.
        CorruptState: If the log shows an older one.
    """
    if found > mine:
        raise Fenced.by(mine=mine, theirs=found, where=WHERE)
    if found < mine:
        raise CorruptState(
            f"{WHERE} shows token {found}, older than this handle's {mine}",
            hint="it went back in time, as by a restore: open the catalog anew",
        )


def config_of(contents: Contents) -> dict[str, int]:
    """Return all config values."""
    texts = contents.of_kind(CONFIG.name)
    return {CONFIG.parse_key(key).root: CONFIG.parse_value(value).root for key, value in texts.items()}


def head_text(token: Token, contents: Contents) -> str:
    """Return the property that goes with a commit which leaves ``token`` and ``contents``.

    Args:
        token: The leader's.
        contents: At least all items of the kinds in ``SHOWN``.
    """
    return canonical_json(
        {
            "epoch": token.epoch,
            "generation": token.generation,
            "config": config_of(contents),
            "deployments": dict(contents.of_kind(DEPLOYMENT.name)),
        }
    )


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the property says: the present token, and the head that goes with it."""

    token: Token | None
    head: Head


def parse_head(properties: Mapping[str, str]) -> Head:
    """Return what the properties of the table say; nothing if the catalog was made and never fenced.

    Raises:
        CorruptState: If somebody edited them.
    """
    return _parse(properties).head


def shown_token(properties: Mapping[str, str]) -> Token | None:
    """Return the token that goes with what ``parse_head`` returns; None if the catalog was never fenced.

    The property moves in the same commits as the token's record: whoever commits at the upper that he saw with it need
    not read the log to know that nobody has fenced since.

    Raises:
        CorruptState: If somebody edited it.
    """
    return _parse(properties).token


def _parse(properties: Mapping[str, str]) -> _Shown:
    text = properties.get(PROPERTY)
    if text is None:
        return _Shown(None, Head(None, {}))
    try:
        found = json.loads(text)
        token = Token(int(found["generation"]), int(found["epoch"]))
        config = {str(key): int(value) for key, value in found["config"].items()}
        deployments = {str(key): str(value) for key, value in found["deployments"].items()}
        head = Head(token.epoch, config, deployments)
        shown_items(head)  # refuses what no config can be
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, CorruptState) as error:
        raise CorruptState(f"the head of {WHERE} cannot be read: {text!r}", hint=RESTORE) from error
    return _Shown(token, head)
