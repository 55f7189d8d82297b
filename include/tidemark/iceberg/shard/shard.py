"""A shard: one durable collection of updates, and the writer that holds a token for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table.snapshots import Operation

from tidemark.errors import AsOfBeforeSince, CorruptState, Fenced, NotPossible, Sealed, UnknownCollection, UsageError
from tidemark.frontier import EMPTY, Empty, Frontier
from tidemark.iceberg.commit.batch import Batch, main_change, updates_change
from tidemark.iceberg.commit.checks import (
    add_ranges,
    check_branches,
    check_deleted_from,
    check_schema,
    check_times,
    check_token,
    check_upper,
)
from tidemark.iceberg.commit.publisher import Proposal, Published, commit
from tidemark.iceberg.commit.snapshot_builder import SnapshotChange
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.catalog import asking_the_catalog
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.state import HOLD, CommitKind, Hold, ShardKind, ShardState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from tidemark.iceberg.shard.token import Token


_LOADS = 3  # the catalog's answer may be so old that commits have deleted the metadata file: ask again


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard by name; every call looks at the store afresh."""

    iceberg: SqlCatalog
    namespace: str
    name: str
    writer_id: str  # who writes, for people reading the history; not a token

    @property
    def identifier(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def spark_name(self) -> str:
        """The table's name in Spark SQL."""
        return f"tidemark.{self.namespace}.{self.name}"

    def load(self) -> ShardHead:
        """Return the present head.

        Raises:
            UnknownCollection: If the shard does not exist.
            Unreachable: If the catalog does not answer.
            CorruptState: If the metadata file that the catalog names is gone, or damaged.
        """
        with asking_the_catalog():
            try:
                return ShardHead.of(self._load_table(), shard=self.name)
            except NoSuchTableError as error:
                names = [identifier[-1] for identifier in self.iceberg.list_tables(self.namespace)]
                raise UnknownCollection.named(self.name, names) from error
            except FileNotFoundError as error:
                raise CorruptState(
                    f"a metadata file of {self.name!r} is gone: {error}",
                    hint="it was removed by hand, or catalog and warehouse were restored from different backups",
                ) from error

    def _load_table(self) -> Table:
        for _ in range(_LOADS):
            with suppress(FileNotFoundError):
                return self._parse_table()
        return self._parse_table()

    def _parse_table(self) -> Table:
        try:
            return self.iceberg.load_table((self.namespace, self.name))
        except (ValidationError, UnicodeDecodeError) as error:  # no JSON, other JSON, or no text
            reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
            raise CorruptState(
                f"the metadata file of {self.name!r} is damaged: {reason}",
                hint="restore from a backup the file that the catalog names for the table",
            ) from error

    # -- fencing -------------------------------------------------------------------------------------------------

    def join(self, generation: int) -> Writer:
        """Take the shard's present token, without a commit.

        Raises:
            FencedByGeneration: If a newer deployment owns the shard.
            Sealed: If it is sealed.
        """
        state = self.load().state
        _check_generation(state, generation, shard=self.name)
        return Writer(self, state.token, generation)

    def lead(self, generation: int) -> Writer:
        """Join; the first writer of a newer deployment raises the token instead, which fences the older deployment.

        Only for a deployment that may write. Raises as ``join``.
        """
        state = self.load().state
        return self.raise_token(generation) if state.token.generation < generation else self.join(generation)

    def raise_token(self, generation: int) -> Writer:
        """Take the next token in one commit, which fences everybody who joined before.

        Raises:
            FencedByGeneration: If a newer deployment owns the shard.
            Sealed: If it is sealed.
        """

        def propose(head: ShardHead) -> Proposal:
            _check_generation(head.state, generation, shard=self.name)
            token = head.state.token.raised(generation)
            return Proposal(state=self._next(head.state, CommitKind.FENCE, commit_id, token=token), main=NOTHING)

        commit_id = str(uuid4())
        return Writer(self, commit(self, commit_id, propose).state.token, generation)

    # -- history -------------------------------------------------------------------------------------------------

    def hold(self, reader: str, *, since: int | None = None, expires_at_ms: int) -> int:
        """Keep history from ``since`` on (default: as far back as there is) until ``expires_at_ms``; return that since.

        A live hold of the same reader is moved. The commit moves main, so that it cannot race a downgrade. The tag
        ``hold-<reader>`` pins the snapshot with the contents at that since, which another tool's expiry then leaves.

        Raises:
            AsOfBeforeSince: If history from there on is gone already.
        """

        def propose(head: ShardHead) -> Proposal:
            state = head.state
            if isinstance(state.since, Empty):
                raise Sealed(f"shard {self.name!r} is sealed: there is no history to hold")
            start = state.since if since is None else since
            if start < state.since:
                raise AsOfBeforeSince(f"history of {self.name!r} before {state.since} is gone, asked for {start}")
            holds = {**state.holds, reader: Hold(start, expires_at_ms)}
            return Proposal(state=self._next(state, CommitKind.DOWNGRADE, commit_id, holds=holds), main=NOTHING)

        if not reader.replace("-", "").replace("_", "").isalnum():
            raise UsageError(f"a reader's name has letters, digits, - and _, got {reader!r}")
        commit_id = str(uuid4())
        state = commit(self, commit_id, propose).state
        if since is not None:
            return since
        assert isinstance(state.since, int)  # noqa: S101  # the commit left it as it was, and a sealed shard is refused
        return state.since  # of that very commit: by now the hold may have been released again

    def release(self, reader: str) -> None:
        """Give up the hold of ``reader``; nothing happens if there is none."""
        if reader not in self.load().state.holds:
            return

        def propose(head: ShardHead) -> Proposal:
            holds = {name: hold for name, hold in head.state.holds.items() if name != reader}
            state = self._next(head.state, CommitKind.DOWNGRADE, commit_id, holds=holds)
            removed = (HOLD + reader,) if reader in head.state.holds else ()
            return Proposal(state=state, main=NOTHING, removed_properties=removed)

        commit_id = str(uuid4())
        commit(self, commit_id, propose)

    def downgrade_since(self, since: int, *, now_ms: int) -> Frontier:
        """Let history before ``since`` go, as far as live holds and the upper allow; return the since that holds now.

        ``since`` never goes back and stays below the upper. Holds that have expired at ``now_ms`` are dropped.
        """

        def propose(head: ShardHead) -> Proposal:
            state = head.state
            dead = tuple(HOLD + reader for reader, hold in state.holds.items() if not hold.is_live(now_ms))
            holds = {reader: hold for reader, hold in state.holds.items() if hold.is_live(now_ms)}
            new = _reachable_since(state, since, now_ms)
            return Proposal(
                state=self._next(state, CommitKind.DOWNGRADE, commit_id, since=new, holds=holds),
                main=NOTHING,
                removed_properties=dead,
            )

        present = self.load().state
        all_live = all(hold.is_live(now_ms) for hold in present.holds.values())
        if all_live and _reachable_since(present, since, now_ms) == present.since:
            return present.since
        commit_id = str(uuid4())
        return commit(self, commit_id, propose).state.since

    def _next(self, state: ShardState, kind: CommitKind, commit_id: str, **changes: Any) -> ShardState:
        """Return the state after a commit that leaves the contents alone; its snapshot holds them from the upper on."""
        return replace(state, kind=kind, commit_id=commit_id, writer=self.writer_id, lower=state.upper, **changes)


@dataclass(frozen=True, slots=True)
class Writer:
    """What may write to a shard while its token is the largest."""

    shard: Shard
    token: Token
    generation: int  # the deployment that joined; the token may be of an older one, which nobody has raised since

    def compare_and_append(
        self,
        batch: Batch,
        *,
        lower: Frontier,
        new_upper: Frontier,
        digest: bytes | None = None,
        digest_note: str = "",
        commit_id: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Published:
        """Publish one batch if the upper is still ``lower``; afterwards it is ``new_upper``.

        On a differential shard this also puts main back on our own state if foreign commits lie above it.

        Args:
            batch: What was written; may be empty.
            lower: The upper that the batch was computed against.
            new_upper: The upper afterwards; every ``_time`` lies in ``[lower, new_upper)``.
            digest: The digest of the contents after the batch; without one, the next run has to scan.
            digest_note: How the digest was made; stored as ``tidemark.digest``.
            commit_id: Give one to find the commit again after a crash; a UUID.
            properties: Table properties to set in the same commit, for readers without a JVM.

        Raises:
            UpperMismatch: Somebody else published; nothing was written.
            Fenced: A larger token owns the shard.
            Sealed: Nothing can be written any more.
            InvalidBatch: A time or diff breaks the rules.
            InputsGone: Maintenance rewrote files that the batch deletes from, or the schema changed.
            ConflictsUnsettled: Other commits kept winning.
        """
        kind = CommitKind.CORRECT if self.shard.load().state.layout is ShardKind.DIFFERENTIAL else CommitKind.APPEND
        return self._publish(
            [batch],
            kind,
            lower=lower,
            new_upper=new_upper,
            digest=digest,
            digest_note=digest_note,
            commit_id=commit_id,
            properties=properties,
        )

    def publish(
        self,
        batches: Sequence[Batch],
        *,
        lower: Frontier,
        new_upper: Frontier,
        commit_id: str | None = None,
        digest: bytes | None = None,
        digest_note: str = "",
        raise_to: int | None = None,
        kind: CommitKind = CommitKind.FLUSH,
        properties: Mapping[str, str] | None = None,
    ) -> Published:
        """Publish any number of staged batches with their ledgers, remove their branches: one commit, all or nothing.

        Args:
            batches: What was staged, in the order in which it is to be listed.
            lower: The upper that the writer believes in.
            new_upper: The upper afterwards.
            commit_id: Give one to find the commit again after a crash; a UUID.
            digest: As in ``compare_and_append``.
            digest_note: As in ``compare_and_append``.
            raise_to: Raise the token for this generation in the same commit, which fences every writer that joined
                before, this one included.
            kind: What the commit is called in the history.
            properties: As in ``compare_and_append``.

        Raises as ``compare_and_append``, and:
            RangeOverlap: If a batch's range shares a number with a published one.
            InputsGone: If a staging branch is gone or was staged again.
        """
        return self._publish(
            batches,
            kind,
            lower=lower,
            new_upper=new_upper,
            digest=digest,
            digest_note=digest_note,
            commit_id=commit_id,
            raise_to=raise_to,
            properties=properties,
        )

    def advance(
        self,
        *,
        lower: Frontier,
        new_upper: Frontier,
        digest: bytes | None = None,
        digest_note: str | None = None,
        digest_schema_id: int | None = None,
    ) -> Published:
        """Move the upper without a change: everything below ``new_upper`` is final now.

        ``digest`` replaces the stored digest of the same contents, for example with a finer one. Foreign commits on
        main are left as they are; those on the change log are taken back: nobody reads them as changes.

        Args:
            lower: The upper that the writer believes in.
            new_upper: The upper afterwards.
            digest: The digest of the contents as they are; None keeps the stored one.
            digest_note: How it was made; None keeps the stored note.
            digest_schema_id: The schema of the rows that were hashed; None: whichever is current.

        Raises as ``compare_and_append``; ``InputsGone`` if the schema is another one by now.
        """

        def propose(head: ShardHead) -> Proposal:
            self._check_token(head)
            check_upper(head.state, lower, new_upper)
            hashed = Batch(schema_id=digest_schema_id)
            check_schema([hashed], head.table.metadata.current_schema_id, shard=self.shard.name)
            note = head.state.digest if digest_note is None else digest_note
            state = replace(
                head.state,
                kind=CommitKind.ADVANCE,
                commit_id=commit_id,
                writer=self.shard.writer_id,
                lower=lower,
                upper=new_upper,
                digest=note,
            )
            return Proposal(
                state=state, main=NOTHING, digest="keep" if digest is None else digest, resets_foreign_updates=True
            )

        commit_id = str(uuid4())
        return commit(self.shard, commit_id, propose)

    def seal(self, *, now_ms: int) -> Published:
        """Set upper and since to EMPTY: nothing will ever be written again, history may be dropped.

        Raises:
            NotPossible: If a live hold still needs history; release it first.
        """

        def propose(head: ShardHead) -> Proposal:
            self._check_token(head)
            if live := sorted(reader for reader, hold in head.state.holds.items() if hold.is_live(now_ms)):
                raise NotPossible(
                    f"shard {self.shard.name!r} cannot be sealed: {', '.join(live)} hold its history",
                    hint="release the holds first",
                )
            state = replace(
                head.state,
                kind=CommitKind.SEAL,
                commit_id=commit_id,
                writer=self.shard.writer_id,
                lower=head.state.upper,
                upper=EMPTY,
                since=EMPTY,
                holds={},
            )
            expired = tuple(HOLD + reader for reader in head.state.holds)
            return Proposal(state=state, main=NOTHING, removed_properties=expired)

        commit_id = str(uuid4())
        return commit(self.shard, commit_id, propose)

    def _check_token(self, head: ShardHead) -> None:
        check_token(head.state, self.token, shard=self.shard.name, generation=self.generation)

    def _publish(
        self,
        batches: Sequence[Batch],
        kind: CommitKind,
        *,
        lower: Frontier,
        new_upper: Frontier,
        digest: bytes | None,
        digest_note: str,
        commit_id: str | None,
        raise_to: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Published:
        commit_id = commit_id or str(uuid4())
        live: dict[int, set[str]] = {}  # by snapshot: reading manifests again on every attempt would be slow

        def propose(head: ShardHead) -> Proposal:
            self._check_token(head)
            check_upper(head.state, lower, new_upper)
            check_branches(batches, head.staged_branches, shard=self.shard.name)
            schema = head.table.schema()
            check_schema(batches, schema.schema_id, shard=self.shard.name)
            time = check_times(batches, schema, layout=head.state.layout, lower=lower, new_upper=new_upper)
            contents = head.contents
            if any(batch.deleted_from and batch.pinned_snapshot_id != contents.snapshot_id for batch in batches):
                paths = live.setdefault(contents.snapshot_id, set(read_data_files(head.table.io, contents)))
                check_deleted_from(batches, paths, shard=self.shard.name)
            state = replace(
                head.state,
                kind=kind,
                token=self.token if raise_to is None else self.token.raised(raise_to),
                commit_id=commit_id,
                writer=self.shard.writer_id,
                lower=lower if time is None else time,  # main holds the new contents from the batch's time on
                upper=new_upper,
                digest=digest_note if digest is not None else "",
                ledgers=add_ranges(head.state.ledgers, batches, shard=self.shard.name),
            )
            return Proposal(
                state=state,
                main=main_change(batches),
                updates=updates_change(batches, head.state.layout),
                branches=tuple(branch for batch in batches for branch in batch.branches),
                set_properties=properties or {},
                digest=digest,
                resets_foreign=True,
                resets_foreign_updates=True,
            )

        return commit(self.shard, commit_id, propose)


NOTHING = SnapshotChange(operation=Operation.APPEND)


def _check_generation(state: ShardState, generation: int, *, shard: str) -> None:
    if state.token.generation > generation:
        mine = replace(state.token, generation=generation)
        raise Fenced.by(mine=mine, theirs=state.token, where=f"shard {shard!r}")
    if state.is_sealed:
        raise Sealed(f"shard {shard!r} is sealed", hint="nothing can be written to it any more")


def _reachable_since(state: ShardState, wanted: int, now_ms: int) -> Frontier:
    """Return the largest since up to ``wanted`` that live holds and readability allow; never below the present one."""
    limits = [wanted]
    if (hold := state.smallest_hold(now_ms)) is not None:
        limits.append(hold)
    if isinstance(state.upper, int):
        limits.append(state.upper - 1)  # at least one time stays readable
    return max(min(limits), state.since)
