"""### Move the system's own catalog back from the persist catalog to the stash

As `migrate_catalog`, the other way: `plan` → `approve` → `fence` → `read_tombstone` → `copy_and_flip` makes the stash
equal to the persist catalog and clears the tombstone, **in one transaction** → `verify` compares item by item, before
anybody may join → `announce` lets tasks join again → `see_tombstone`, `check_after`.

Nothing that was acknowledged since the migration is lost. The persist catalog stays as it is, and is garbage from then
on; the next migration replaces all of it.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: the stash is the truth already, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| a task red, *start over from the task that fences* | clear `fence` with what follows: somebody opened the catalog |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| anything else red | clear that task with everything after it, or go back: trigger `migrate_catalog` |

If the persist catalog cannot be read any more, see *Emergency* in `docs/catalog-migration.md`.
"""

from __future__ import annotations

from airflow.sdk import dag

from tidemark.orchestration.tasks.catalog_dag import DAG_ARGUMENTS, move_truth


@dag(schedule=None, **DAG_ARGUMENTS, doc_md=__doc__)
def rollback_catalog() -> None:
    move_truth("rollback")


rollback_catalog()
