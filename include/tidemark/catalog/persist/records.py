"""The records in the log of the persist catalog, items and exactly one fence token, and their copy in the table's head.

The token is a record among the updates, so a process that reads on sees the token before any update of a later leader.
The shard has a token of its own (``tidemark.generation``, ``.epoch``). The mode of the deployment and maintenance raise
the shard's token for every shard; it does not say who leads the catalog, and a handle joins it anew with each commit.
A commit cannot overtake an open, because of the upper alone: the token's record moves the upper, and a handle commits
only at the upper up to which it has read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidemark.catalog.back_end import Head
from tidemark.catalog.items.contents import Contents
from tidemark.catalog.items.item import Item, canonical_json
from tidemark.catalog.items.kinds import CONFIG, DEPLOYMENT, config_item
from tidemark.errors import CorruptState, Fenced
from tidemark.iceberg.shard.token import Token

NAME: Final = "persist"
WHERE: Final = "the persist catalog"
SHARD: Final = "catalog"
FENCE_TOKEN: Final = "fence_token"  # noqa: S105 - the kind of the record; no kind of items has this name
PROPERTY: Final = "tidemark.catalog"  # the head: a table property, set by the same commits, readable without the log
SHOWN: Final = (CONFIG.name, DEPLOYMENT.name)  # the kinds whose items the head holds: they are few and small
FIRST_EPOCH: Final = 1  # of a catalog that nobody opened yet
RESTORE: Final = (
    "somebody edited the table `system.catalog`: restore it. If `tidemark catalog status` says that the stash is the "
    "truth, drop the table instead, as docs/catalog-migration.md shows; the next open makes it anew"
)


def token_text(token: Token) -> str:
    """Return the stored form of a fence token."""
    return canonical_json({"deploy_generation": token.generation, "epoch": token.epoch})


def head_items(head: Head) -> Contents:
    """Return the items in a head: all items of the kinds in ``SHOWN``."""
    deployments = (Item(DEPLOYMENT.name, *pair) for pair in head.deployments.items())
    return Contents([*(config_item(key, value) for key, value in head.config.items()), *deployments])


def token_damage(records: Mapping[str, int], shown: Token | None) -> CorruptState | None:
    """Return the error if the token's ``records``, with their multiplicities, differ from the token in the head.

    Each open sets both. If they differ, the token in the head is valid: the last open set it, and no open wrote the
    records.
    """
    if dict(records) == ({} if shown is None else {token_text(shown): 1}):
        return None
    return CorruptState(
        f"{WHERE} holds the fence tokens {dict(records)}, and its head shows {shown}: somebody else wrote to its table",
        hint=RESTORE if shown is None else "`tidemark catalog open` keeps the one that is shown, and fences everybody",
    )


def check_not_fenced(mine: Token, found: Token) -> None:
    """Compare the token of the caller with the token that the log shows.

    Raises:
        Fenced: If somebody opened the catalog since.
        CorruptState: If the log shows an older token.
    """
    if found > mine:
        raise Fenced.by(mine=mine, theirs=found, where=WHERE)
    if found < mine:
        raise CorruptState(
            f"{WHERE} shows token {found}, older than this handle's {mine}",
            hint="it went back in time, as by a restore: open the catalog anew",
        )


def config_of(contents: Contents) -> dict[str, int]:
    """Return all config values by plain key."""
    texts = contents.of_kind(CONFIG.name)
    return {CONFIG.parse_key(key).root: CONFIG.parse_value(value).root for key, value in texts.items()}


def head_text(token: Token, contents: Contents) -> str:
    """Return the property (``PROPERTY``); ``contents`` have at least all items of the kinds in ``SHOWN``."""
    return canonical_json(
        {
            "epoch": token.epoch,
            "generation": token.generation,
            "config": config_of(contents),
            "deployments": dict(contents.of_kind(DEPLOYMENT.name)),
        }
    )


def parse_head(properties: Mapping[str, str]) -> Head:
    """Return the head, empty if the catalog was never fenced. Raises ``CorruptState`` if somebody edited the head."""
    return _parse(properties)[1]


def shown_token(properties: Mapping[str, str]) -> Token | None:
    """Return the token in the head; None if the catalog was never fenced. Raises as ``parse_head``.

    The head moves in the same commits as the token's record. So a process that commits at the upper that it saw with
    this token need not read the log to know that nobody has fenced since.
    """
    return _parse(properties)[0]


def _parse(properties: Mapping[str, str]) -> tuple[Token | None, Head]:
    text = properties.get(PROPERTY)
    if text is None:
        return None, Head(None, {})
    try:
        fields = json.loads(text)
        token = Token(int(fields["generation"]), int(fields["epoch"]))
        config = {str(key): int(value) for key, value in fields["config"].items()}
        deployments = {str(key): str(value) for key, value in fields["deployments"].items()}
        head = Head(token.epoch, config, deployments)
        head_items(head)  # refuses keys and values that the config cannot have
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, CorruptState) as error:
        raise CorruptState(f"the head of {WHERE} cannot be read: {text!r}", hint=RESTORE) from error
    return token, head
