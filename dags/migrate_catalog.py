"""### Move the system's own catalog from the stash to the persist catalog

`plan` does it on copies that are thrown away and writes down what comes of it, under a digest → `approve` asks a person
(Required Actions), for exactly that plan → `fence` stops everybody who works with the catalog, the stash first →
`read_tombstone` sees which side is the truth, now that nobody changes it → `copy` makes the persist catalog equal to
the stash: a Spark application that writes the net difference, in one commit → `verify` compares item by item → `flip`
sets the tombstone: **from here on the persist catalog is the truth** → `announce` lets tasks join again →
`see_tombstone` and `check_after` look at it as everybody else does.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: it was migrated before, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| a task red, *start over from the task that fences* | clear `fence` with what follows: somebody opened the catalog |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| anything else red | clear that task with everything after it, or go back: trigger `rollback_catalog` |

Every task may be killed, retried, cleared or run twice at once; two runs fence each other, and at most one gets to its
end. What to do after a crash is in `docs/catalog-migration.md`.
"""

from __future__ import annotations

from airflow.sdk import dag

from tidemark.orchestration.tasks.catalog_dag import DAG_ARGUMENTS, move_truth


@dag(schedule=None, **DAG_ARGUMENTS, doc_md=__doc__)
def migrate_catalog() -> None:
    move_truth("migrate")


migrate_catalog()
