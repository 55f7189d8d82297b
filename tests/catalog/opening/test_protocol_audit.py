"""Each flip of the truth has one audit event, also where the open died before it could say so."""

from __future__ import annotations

import json

import pytest

from tests.support.catalog.migration_parts import Workflow
from tests.support.homes import EMERGENCY, MIGRATE, ROLLBACK, Home
from tidemark.catalog.items.kinds import AUDIT_EVENT
from tidemark.catalog.opening.protocol import CLEAR_TOMBSTONE, FENCE_PERSIST, SET_TOMBSTONE, WRITE_PERSIST, WRITE_STASH

pytestmark = pytest.mark.slow  # stores that are really written, again and again


def test_a_flip_that_died_before_its_audit_is_audited_by_the_next_open_and_only_once(home: Home) -> None:
    home.open(ROLLBACK)
    home.die_after(MIGRATE, SET_TOMBSTONE)
    home.open(MIGRATE)
    home.open(MIGRATE)
    with home.catalog.join() as handle:
        assert len(handle.snapshot().of_kind(AUDIT_EVENT.name)) == 1


def test_a_copy_that_died_before_its_flip_is_not_audited_as_one(home: Home) -> None:
    home.open(MIGRATE)
    home.open(ROLLBACK)
    home.die_after(MIGRATE, WRITE_PERSIST)
    home.open()
    home.die_after(ROLLBACK, FENCE_PERSIST)
    home.open()
    assert audited(home) == ["migrate", "rollback"]
    home.die_after(MIGRATE, SET_TOMBSTONE)
    home.open()
    home.die_after(ROLLBACK, WRITE_STASH)
    home.open()
    assert audited(home) == ["migrate", "rollback"] * 2


def test_the_very_first_migration_is_audited_by_the_next_open_too(home: Home) -> None:
    home.die_after(MIGRATE, SET_TOMBSTONE)
    home.open()
    home.open()
    assert audited(home) == ["migrate"]


def test_a_flip_that_died_is_audited_before_the_one_that_undoes_it(home: Home) -> None:
    home.die_after(MIGRATE, SET_TOMBSTONE)
    home.open(ROLLBACK)
    assert audited(home) == ["migrate", "rollback"]
    home.open(MIGRATE)
    home.die_after(ROLLBACK, WRITE_STASH)
    home.open(MIGRATE)
    assert audited(home) == ["migrate", "rollback"] * 2 + ["migrate"]


def test_a_flip_that_died_is_audited_before_the_workflow_that_undoes_it(home: Home) -> None:
    home.die_after(MIGRATE, SET_TOMBSTONE)
    Workflow(home, ROLLBACK).run()
    assert audited(home) == ["migrate", "rollback"]
    home.open(MIGRATE)
    home.die_after(ROLLBACK, WRITE_STASH)
    Workflow(home, MIGRATE).run()
    assert audited(home) == ["migrate", "rollback"] * 2 + ["migrate"]


def test_an_emergency_that_died_is_audited_once(any_home: Home) -> None:
    """Whoever comes next: one that looks at both sides, or the next emergency, which does not."""
    any_home.open(MIGRATE)
    any_home.die_after(EMERGENCY, CLEAR_TOMBSTONE)
    any_home.open()
    assert audited(any_home) == ["emergency"], "the migration's event was given up with everything else"
    any_home.open(MIGRATE)
    any_home.die_after(EMERGENCY, CLEAR_TOMBSTONE)
    any_home.open(EMERGENCY, is_forced=True)
    any_home.open(EMERGENCY, is_forced=True)
    assert audited(any_home) == ["emergency", "emergency"]


def audited(home: Home) -> list[str]:
    with home.catalog.join() as handle:
        events = handle.snapshot().of_kind(AUDIT_EVENT.name)
    numbered = sorted((json.loads(key)["id"], json.loads(value)["operation"]) for key, value in events.items())
    return [operation for _, operation in numbered]
