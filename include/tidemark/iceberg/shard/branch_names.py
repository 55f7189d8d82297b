"""What staging branches are called, so that whoever sees a ref knows what it is."""

from __future__ import annotations

import re
from uuid import uuid4

STAGED = "staged/"  # and then GENERATION/WRITER/BATCH
COMPACTION = "_compact"  # the writer of what a compaction stages; no producer can be called so
_PENDING = re.compile(r".+/[^/]+\.[0-9a-f]{32}")


def pending_name(branch: str) -> str:
    """Return a name, nobody else's, for what is to become ``branch`` when it is whole."""
    return f"{branch}.{uuid4().hex}"


def is_passing(branch: str) -> bool:
    """Tell whether a staging branch is only on its way, or a compaction's: whoever writes it can do so again."""
    return branch.split("/")[2:3] == [COMPACTION] or _PENDING.fullmatch(branch) is not None
