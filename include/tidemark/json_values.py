"""Values of rows as JSON has them: for programs that read reports and answers, and that know no NaN."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def plain(value: object) -> Any:
    """Return ``value`` in what JSON has; the text of a date or number is what Spark SQL shows."""
    if isinstance(value, dict):
        return _plain_mapping(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return _plain_scalar(value)


def _plain_scalar(value: object) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def _plain_mapping(value: Mapping[object, object]) -> dict[str, Any]:
    return {key if isinstance(key, str) else str(plain(key)): plain(each) for key, each in value.items()}
