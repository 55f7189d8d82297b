from __future__ import annotations

import pytest

from tidemark.iceberg.shard.branch_names import COMPACTION, STAGED, is_passing, pending_name

BATCH = f"{STAGED}1/planes/0:5"


@pytest.mark.parametrize(
    "branch", [pending_name(BATCH), f"{STAGED}1/{COMPACTION}/0f8fad5b"], ids=["pending", "compaction"]
)
def test_pending_branch_and_one_of_a_compaction_are_passing(branch: str) -> None:
    assert is_passing(branch)


@pytest.mark.parametrize("branch", [BATCH, f"{BATCH}.7", f"{STAGED}1/planes/{COMPACTION}"])
def test_branch_of_a_batch_stays(branch: str) -> None:
    assert not is_passing(branch)


def test_pending_names_of_one_branch_differ() -> None:
    assert pending_name(BATCH) != pending_name(BATCH)
