"""Names as Spark SQL takes them."""

from __future__ import annotations

import re


def quoted(name: str) -> str:
    """Return ``name`` for SQL, DDL and ``F.col``: in backquotes if it is not a plain identifier."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else "`" + name.replace("`", "``") + "`"
