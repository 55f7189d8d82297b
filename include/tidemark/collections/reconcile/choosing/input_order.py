"""Works on many collections at once, each after those that it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TypeVar

from tidemark.collections.declarations.collection import Declaration
from tidemark.collections.declarations.files import sort_by_inputs

T = TypeVar("T")


def run_inputs_first(
    declarations: Mapping[str, Declaration],
    run: Callable[[Declaration, Mapping[str, T]], T],
    *,
    threads: int,
    in_thread: Callable[[Callable[[], T]], Callable[[], T]] = lambda work: work,
) -> dict[str, T]:
    """Run the collections in threads; each waits for those that its source reads, and gets their results.

    ``in_thread`` makes, in the thread of the caller, what a thread is to call. If an error ends the caller's wait, what
    has not begun does not begin any more.
    """
    sorter = sort_by_inputs(declarations)
    results: dict[str, T] = {}
    running: dict[Future[T], str] = {}
    pool = ThreadPoolExecutor(min(threads, len(declarations) or 1))
    try:
        while sorter.is_active():
            for name in sorter.get_ready():
                inputs = {read: results[read] for read in declarations[name].inputs if read in results}
                running[pool.submit(in_thread(partial(run, declarations[name], inputs)))] = name
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(done)
                results[name] = done.result()
                sorter.done(name)
    finally:
        pool.shutdown(cancel_futures=True)
    return results
