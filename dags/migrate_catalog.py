"""### Move the system's own catalog from the stash to the persist catalog

`plan` does it on copies that are thrown away and writes down what comes of it, under a digest → `approve` asks a person
(Required Actions), for exactly that plan → `wait_for_tasks` lets running tasks end, unless the run was triggered
without it → `fence` stops everybody who works with the catalog, the stash first → `see_fences` waits until everybody
sees the fences → `read_tombstone` sees which side is the truth, now that nobody changes it → `copy` makes the persist
catalog equal to the stash: a Spark application that writes the net difference, in one commit → `verify` compares item
by item → `flip` sets the tombstone: **from here on the persist catalog is the truth** → `see_tombstone` waits until
everybody sees the tombstone → `announce` lets tasks join again → `check_after` looks at the catalog as tasks do.

From `fence` to `announce` nobody leads, and tasks wait (`wait_until_led`). If a task fails for good, `lead_again` lets
them go on where the truth is then.

| you see | do |
|---|---|
| everything after `is_to_be_done` skipped | nothing: it was migrated before, or `plan_only` was set |
| everything after `approve` skipped | nothing: it was rejected |
| `check_back_ends` scheduled, and never runs | load `airflow_settings.yaml`: the pool `catalog` is missing |
| `wait_for_tasks` red | clear it, or trigger again without `wait_for_tasks`: tasks are fenced, and start over |
| `fence` or `read_tombstone` red, *ask again* | clear `plan` with everything after it: the catalog was changed |
| a task up to `flip` red | clear `fence` with what follows: `lead_again` has opened the catalog, or somebody else |
| `see_tombstone` or a later task red | clear that task with everything after it, or trigger `rollback_catalog` |

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
