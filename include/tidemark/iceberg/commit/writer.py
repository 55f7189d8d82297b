"""The writer of a shard holds its largest token; the commits that only a writer may make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tidemark.errors import CorruptState, Fenced, NotPossible, Sealed
from tidemark.frontier import EMPTY, Frontier
from tidemark.iceberg.commit.batch import Batch, main_change, open_change, updates_change
from tidemark.iceberg.commit.checks import (
    add_ranges,
    check_branches,
    check_deleted_from,
    check_schema,
    check_times,
    check_upper,
)
from tidemark.iceberg.commit.publisher import Proposal, Publication, Published
from tidemark.iceberg.files.manifests import read_data_files
from tidemark.iceberg.shard.head import ShardHead
from tidemark.iceberg.shard.shard import Shard
from tidemark.iceberg.shard.state import CommitKind, ShardKind, ShardState
from tidemark.iceberg.shard.token import Token


@dataclass(frozen=True, slots=True)
class Writer:
    """May write to a shard while its token is the largest."""

    shard: Shard
    token: Token
    generation: int  # the deployment that joined; the token may be that of an older deployment

    @classmethod
    def join(cls, shard: Shard, generation: int) -> Writer:
        """Take the shard's present token, without a commit.

        Raises ``FencedByGeneration`` if a newer deployment owns the shard, ``Sealed`` if the shard is sealed.
        """
        state = shard.load().state
        _check_generation(state, generation, shard=shard.name)
        return cls(shard, state.token, generation)

    @classmethod
    def lead(cls, shard: Shard, generation: int) -> Writer:
        """Join; the first writer of a newer deployment raises the token instead, which fences the older deployment.

        Only for a deployment that may write. Raises as ``join``.
        """
        is_newer = shard.load().state.token.generation < generation
        return cls.raise_token(shard, generation) if is_newer else cls.join(shard, generation)

    @classmethod
    def raise_token(cls, shard: Shard, generation: int) -> Writer:
        """Take the next token in one commit, which fences everybody who joined before. Raises as ``join``."""
        publication = Publication(shard, is_fence=True)
        for head in publication.heads():
            publication.commit(head, propose_fence(publication, head, generation))
        return cls(shard, publication.published.state.token, generation)

    def publish(
        self,
        *batches: Batch,
        lower: Frontier,
        new_upper: Frontier,
        digest: bytes | None = None,
        digest_parts: bytes | None = None,
        digest_note: str = "",
        commit_id: str | None = None,
        raise_to: int | None = None,
        kind: CommitKind | None = None,
        properties: Mapping[str, str] | None = None,
        outdates_staged: bool = False,
    ) -> Published:
        """Publish batches if the upper is still ``lower``: one commit, all or nothing.

        The commit also adds the batches' ranges to the ledgers, and removes their staging branches. On a differential
        shard it resets main to our own state if foreign commits lie above it.

        Args:
            batches: The written files; may be empty.
            lower: The upper that the batches were computed against.
            new_upper: The upper afterwards; every ``_time`` lies in ``[lower, new_upper)``.
            digest: The digest of the contents after the batches; without one, the next run has to scan.
            digest_parts: The digests of which that is the sum.
            digest_note: How the digest was made; stored as ``tidemark.digest``.
            commit_id: Give one to find the commit again after a crash; a UUID.
            raise_to: Raise the token for this generation in the same commit, which fences every writer that joined
                before, this one included.
            kind: The kind of the commit in the history; None: ``CORRECT`` on a differential shard, else ``APPEND``.
            properties: Table properties to set in the same commit, for readers without a JVM.
            outdates_staged: Whether no correction that was staged before can be published any more, also if the batches
                have no rows.

        Raises:
            UpperMismatch: If somebody else published; nothing was written.
            Fenced: If a larger token owns the shard.
            Sealed: If the shard is sealed.
            InvalidBatch: If a time or diff breaks the rules.
            RangeOverlap: If a batch's range shares a number with a published range.
            InputsGone: If maintenance rewrote files that a batch deletes from, the schema changed, or a staging branch
                is gone or was staged again.
            ConflictsUnsettled: If other commits kept winning.
        """
        publication = Publication(self.shard, commit_id)
        live: dict[int, set[str]] = {}  # by snapshot: reading manifests again on every attempt would be slow
        for head in publication.heads():
            self.check_token(head)
            check_upper(head.state, lower, new_upper)
            check_branches(batches, head.staged_branches, shard=self.shard.name)
            schema = head.table.schema()
            check_schema(batches, schema.schema_id, shard=self.shard.name)
            time = check_times(batches, schema, layout=head.state.layout, lower=lower, new_upper=new_upper)
            contents = head.contents
            if any(batch.deleted_from and batch.pinned_snapshot_id != contents.snapshot_id for batch in batches):
                paths = live.setdefault(contents.snapshot_id, set(read_data_files(head.table.io, contents)))
                check_deleted_from(batches, paths, shard=self.shard.name)
            plain_kind = CommitKind.CORRECT if head.state.layout is ShardKind.DIFFERENTIAL else CommitKind.APPEND
            state = publication.next_state(
                head.state,
                kind or plain_kind,
                token=self.token if raise_to is None else self.token.raised(raise_to),
                lower=lower if time is None else time,  # main holds the new contents from the batch's time on
                upper=new_upper,
                digest=digest_note if digest is not None else "",
                ledgers=add_ranges(head.state.ledgers, batches, shard=self.shard.name),
            )
            proposal = Proposal(
                state=state,
                main=main_change(batches),
                updates=updates_change(batches, head.state.layout),
                open=open_change(batches),
                branches=tuple(branch for batch in batches for branch in batch.branches),
                set_properties=properties or {},
                digest=digest,
                digest_parts=digest_parts,
                outdates_staged=outdates_staged,
                resets_foreign=True,
                resets_foreign_updates=True,
            )
            publication.commit(head, proposal)
        return publication.published

    def advance(
        self,
        *,
        lower: Frontier,
        new_upper: Frontier,
        digest: bytes | None = None,
        digest_parts: bytes | None = None,
        digest_note: str | None = None,
        digest_schema_id: int | None = None,
        branches: tuple[tuple[str, int], ...] = (),
        outdates_staged: bool = False,
    ) -> Published:
        """Move the upper from ``lower`` to ``new_upper`` without a change: all times below ``new_upper`` are final now.

        Foreign commits on main stay; those on the change log are undone, because nobody reads them as changes.

        ``digest`` is another digest of the same contents, for example a finer one, and ``digest_note`` says how it was
        made; None keeps what is stored. ``digest_parts`` are the digests of which it is the sum. ``digest_schema_id``
        is the schema of the hashed rows; None: the current one. ``branches`` are staging branches, with the snapshots
        they point at, that the same commit removes. With ``outdates_staged`` no correction that was staged before can
        be published any more.

        Raises as ``publish``; ``InputsGone`` if the schema has changed since.
        """
        publication = Publication(self.shard)
        for head in publication.heads():
            self.check_token(head)
            check_upper(head.state, lower, new_upper)
            nothing = Batch(schema_id=digest_schema_id, branches=branches)
            check_branches([nothing], head.staged_branches, shard=self.shard.name)
            check_schema([nothing], head.table.metadata.current_schema_id, shard=self.shard.name)
            note = head.state.digest if digest_note is None else digest_note
            state = publication.next_state(head.state, CommitKind.ADVANCE, upper=new_upper, digest=note)
            new_digest: bytes | Literal["keep"] = "keep" if digest is None else digest
            proposal = Proposal(
                state=state,
                branches=branches,
                digest=new_digest,
                digest_parts=digest_parts,
                outdates_staged=outdates_staged,
                resets_foreign_updates=True,
            )
            publication.commit(head, proposal)
        return publication.published

    def seal(self, *, now_ms: int, keeps_holds: bool = False) -> Published:
        """Set upper and since to EMPTY: nothing will ever be written again, history may be dropped.

        Raises ``NotPossible`` if a live hold still needs history, unless ``keeps_holds``: then the since stays, and so
        do the live holds.
        """
        publication = Publication(self.shard)
        for head in publication.heads():
            self.check_token(head)
            live = {reader: hold for reader, hold in head.state.holds.items() if hold.is_live(now_ms)}
            if live and not keeps_holds:
                raise NotPossible(
                    f"shard {self.shard.name!r} cannot be sealed: {', '.join(sorted(live))} hold its history",
                    hint="release the holds first",
                )
            since = head.state.since if live else EMPTY
            state = publication.next_state(head.state, CommitKind.SEAL, upper=EMPTY, since=since, holds=live)
            publication.commit(head, Proposal(state=state))
        return publication.published

    def check_token(self, head: ShardHead) -> None:
        """Refuse this writer if a larger token has fenced it out; the first of all checks.

        A deployment that joined with an older deployment's token, or that of the genesis, and then raised it, fenced
        its writers by epoch.

        Raises:
            Fenced: If the shard shows a larger token.
            Sealed: If nothing can be written to the shard any more.
            CorruptState: If the shard shows a smaller token, as after a restore of the catalog from a backup.
        """
        state, where = head.state, f"shard {self.shard.name!r}"
        if state.token > self.token:
            mine = replace(self.token, generation=max(self.token.generation, self.generation))
            raise Fenced.by(mine=mine, theirs=state.token, where=where)
        if state.token < self.token:
            raise CorruptState(
                f"{where} shows token {state.token}, older than the writer's {self.token}",
                hint="the catalog went back in time: start every writer anew",
            )
        if state.is_sealed:
            raise Sealed(f"{where} is sealed", hint="nothing can be written to it any more")


def propose_fence(publication: Publication, head: ShardHead, generation: int) -> Proposal:
    """Return the commit that takes the next token. Raises as ``Writer.join``."""
    _check_generation(head.state, generation, shard=publication.shard.name)
    token = head.state.token.raised(generation)
    return Proposal(state=publication.next_state(head.state, CommitKind.FENCE, token=token))


def _check_generation(state: ShardState, generation: int, *, shard: str) -> None:
    if state.token.generation > generation:
        mine = replace(state.token, generation=generation)
        raise Fenced.by(mine=mine, theirs=state.token, where=f"shard {shard!r}")
    if state.is_sealed:
        raise Sealed(f"shard {shard!r} is sealed", hint="nothing can be written to it any more")
