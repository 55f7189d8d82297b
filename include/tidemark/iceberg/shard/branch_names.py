"""The names of staging branches, which say what the branch holds."""

from __future__ import annotations

import re
from uuid import uuid4

STAGED = "staged/"  # and then GENERATION/WRITER/BATCH
STAGED_LOWER = "tidemark.staged-lower"  # in the summary of a staged correction: the upper it was computed against
COMPACTION = "_compact"  # the writer of what a compaction stages; no producer can be called so
_PENDING = re.compile(r".+/[^/]+\.[0-9a-f]{32}")


def pending_name(branch: str) -> str:
    """Return a name that nobody else uses, for a batch that becomes ``branch`` when it is whole."""
    return f"{branch}.{uuid4().hex}"


def is_passing(branch: str) -> bool:
    """Tell whether a staging branch is pending or belongs to a compaction: its writer can write the rows again."""
    return branch.split("/")[2:3] == [COMPACTION] or _PENDING.fullmatch(branch) is not None
