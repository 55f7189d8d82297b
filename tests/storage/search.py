"""Ways through what may happen in a ``Cluster``: at random, or all of them."""

from __future__ import annotations

import pickle
import random

from tests.support.storage import Cluster, Step, ingestion, sink

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

    The workers must have nothing to do but the script.
    """
    _hurry(cluster)
    first = pickle.dumps(cluster)
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
            _hurry(after)
            dump = pickle.dumps(after)
            if hash(dump) not in seen:
                seen.add(hash(dump))
                waiting.append(dump)
    return len(seen)


def _hurry(cluster: Cluster) -> None:
    while (step := next((step for step in cluster.steps() if step[0] in EAGER), None)) is not None:
        cluster.take(step)


def copy_of(state: bytes) -> Cluster:
    cluster: Cluster = pickle.loads(state)  # noqa: S301 - our own
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
