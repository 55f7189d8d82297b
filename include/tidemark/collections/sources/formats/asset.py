"""The Airflow asset by which a source says that it has changed."""

from __future__ import annotations

import re
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from tidemark.secrets.redaction import holds_secret

LONGEST = 1500  # what Airflow's tables take
_OWN_NAMES, _OWN_URIS = "tidemark_", "x-tidemark:"
_RESERVED = "airflow:"  # by Airflow
_LOGIN = re.compile(r"://[^/@?]*:[^/@?]*@")


def read_asset(value: Any) -> Any:
    """Return the fields of an asset whose name, as in Airflow's own ``Asset("orders")``, is its URI as well."""
    return {"name": value, "uri": value} if isinstance(value, str) else value


class NamedAsset(BaseModel):
    """An asset is known by name and URI together: both must be those that its producer gives it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    uri: str

    @model_validator(mode="after")
    def _may_be_an_asset(self, info: ValidationInfo) -> Self:
        for text in (self.name, self.uri):
            if not text.strip() or len(text) > LONGEST or not text.isascii():
                raise ValueError(f"an asset has a name of 1 to {LONGEST} ASCII characters")
            if info.context and (_LOGIN.search(text) or holds_secret(text)):
                raise ValueError("must not hold a user or a password")
            if not text.isprintable():
                raise ValueError("an asset has a name without control characters")
            if text.lower().startswith(_RESERVED):
                raise ValueError("Airflow keeps URIs that begin with `airflow:` for itself: choose another one")
            if text.startswith((_OWN_NAMES, _OWN_URIS)):  # each run emits such events: it would start the next one
                raise ValueError(
                    "is an event of Tidemark's own, and what reads a collection is reconciled with it anyway: name the "
                    "asset of whoever changes the source"
                )
        try:
            urlsplit(self.uri)
        except ValueError as error:
            raise ValueError(f"{self.uri!r} is no URI: {error}") from error
        return self
