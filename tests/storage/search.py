"""Ways through what may happen in a ``Cluster``: at random, or all of them."""

from __future__ import annotations

import pickle
import random
from io import BytesIO
from typing import TYPE_CHECKING

from tests.support.storage import Cluster, Step, ingestion, sink
from tidemark.storage.commands import KINDS, Ingestion, Sink
from tidemark.storage.effects import AskResumePoints, PassThrough, ReportStatus
from tidemark.storage.order import Place, Row, Sender
from tidemark.storage.worker import Started

if TYPE_CHECKING:
    from collections.abc import Sequence

TROUBLES = ("crash", "restart", "advance", "fail", "stall", "lose", "mumble")
STEPS = ("play", "tell", "flush", "answer", "read", "report", "receive")
EAGER = ("tell", "flush", "report", "receive")  # nothing depends on how long these wait, but for what is lost


def play_randomly(cluster: Cluster, seed: int, *, length: int = 80) -> None:
    """Let the cluster take random steps, and settle. Raises ``AssertionError``, or an error of the library.

    Each seed has troubles and delays of its own: what never comes together in a mixture of all comes in one of few.
    """
    draw = random.Random(seed)  # noqa: S311 - not a secret
    weights = {name: draw.choice((0, 0, 1, 3)) for name in TROUBLES}
    weights |= {name: draw.choice((1, 4, 16)) for name in STEPS}
    trouble = draw.choice((0.03, 0.1, 0.2))
    for _ in range(length):
        steps = list(cluster.troubles() if draw.random() < trouble else cluster.steps())
        names = sorted({step[0] for step in steps if weights.get(step[0], 4)})
        if names:
            (name,) = draw.choices(names, [weights.get(name, 4) for name in names])
            cluster.take(draw.choice([step for step in steps if step[0] == name]))
    cluster.settle()


def play_everything(cluster: Cluster) -> int:
    """Let the cluster take all steps in every order, but for ``EAGER`` ones, and settle; return the number of states.

    The workers must have nothing to do but the script. A controller that is restarted may have said a part.
    """
    eager = [name for name in EAGER if name != "tell" or ("restart",) not in cluster.script]
    _hurry(cluster, eager)
    first = dump(cluster)
    seen, waiting = {hash(first)}, [first]  # of the states themselves there would be too many
    while waiting:
        state = waiting.pop()
        before = copy_of(state)
        steps = list(before.steps())
        if not steps:
            before.settle()
        for step in steps:
            after = copy_of(state)
            after.take(step)
            _hurry(after, eager)
            state_after = dump(after)
            if hash(state_after) not in seen:
                seen.add(hash(state_after))
                waiting.append(state_after)
    return len(seen)


def _hurry(cluster: Cluster, eager: Sequence[str]) -> None:
    while (step := next((step for step in cluster.steps() if step[0] in eager), None)) is not None:
        cluster.take(step)


_FROZEN = {*KINDS.values(), Ingestion, Sink, Row, Sender, Place, Started, AskResumePoints, PassThrough, ReportStatus}
_frozen: list[object] = []  # each value once; they are most of a state, and slow to copy
_numbers: dict[str, int] = {}  # by text
_numbers_of: dict[int, int] = {}  # by identity


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> int | None:
        if type(value) not in _FROZEN:
            return None
        number = _numbers_of.get(id(value))
        if number is None or _frozen[number] is not value:
            number = _numbers.setdefault(repr(value), len(_frozen))
            if number == len(_frozen):
                _frozen.append(value)
                _numbers_of[id(value)] = number
        return number


class _Unpickler(pickle.Unpickler):  # noqa: S301 - our own
    def persistent_load(self, number: int) -> object:
        return _frozen[number]


def dump(cluster: Cluster) -> bytes:
    stream = BytesIO()
    pickler = _Pickler(stream)
    pickler.fast = True  # equal states have the same bytes, whatever they share
    pickler.dump(cluster)
    return stream.getvalue()


def copy_of(state: bytes) -> Cluster:
    cluster: Cluster = _Unpickler(BytesIO(state)).load()
    return cluster


def random_script(seed: int) -> list[Step]:
    """Return what somebody wants of three objects: runs, alterations, drops, and runs again under the same id."""
    draw = random.Random(seed)  # noqa: S311 - not a secret
    script: list[Step] = []
    for _ in range(draw.randint(2, 8)):
        id_, version = draw.choice("abs"), draw.randint(1, 3)
        described = sink(version) if id_ == "s" else ingestion(version, id_)
        script.append(("want", id_, None if draw.random() < 0.4 else described))
    return script
