"""### Move the system's own catalog back from the persist catalog to the stash

As `migrate_catalog`, the other way: `plan` → `approve` → `wait_for_tasks` → `fence` → `see_fences` → `read_tombstone` →
`copy_and_flip` makes the stash equal to the persist catalog and clears the tombstone, **in one transaction** →
`see_tombstone` waits until everybody sees it → `verify` compares item by item, before anybody may join → `announce`
lets tasks join again → `check_after`. If a task fails for good, `lead_again` lets tasks go on where the truth is then,
but not on a stash that nobody verified.

Nothing that was acknowledged since the migration is lost. The persist catalog stays as it is, and is garbage from then
on; the next migration replaces all of it.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: the stash is the truth already, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| `check_back_ends` scheduled, and never runs | load `airflow_settings.yaml`: the pool `catalog` is missing |
| `wait_for_tasks` red | clear it, or trigger again without `wait_for_tasks`: tasks are fenced, and start over |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| a task up to `copy_and_flip` red | clear `fence` with what follows: `lead_again` has opened the catalog, or somebody |
| `see_tombstone` or a later task red | clear that task with everything after it, or trigger `migrate_catalog` |

If the persist catalog cannot be read any more, see *Emergency* in `docs/catalog-migration.md`.
"""

from __future__ import annotations

from airflow.sdk import dag

from tidemark.orchestration.tasks.catalog_dag import DAG_ARGUMENTS, move_truth


@dag(schedule=None, **DAG_ARGUMENTS, doc_md=__doc__)
def rollback_catalog() -> None:
    move_truth("rollback")


rollback_catalog()
