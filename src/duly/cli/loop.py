"""
Run coroutines on the fastest event loop there is.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from duly.logs import BRIEF, describe

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Coroutine, Iterator

    from duly.app import Duly

T = TypeVar("T")

END_S = 2.0  #: how long the tasks that handlers have left behind may take to end

OBJECTS = 10  #: about as many as a running job has
_USUAL = gc.get_threshold()


class Ask(Protocol):
    """
    Runs one coroutine to its end.
    """

    def __call__(self, question: Coroutine[Any, Any, T], /) -> T:
        """
        Return what the coroutine returned.
        """


def run(main: Coroutine[Any, Any, T]) -> T:
    """
    Run *main* to its end.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)


def run_worker(main: Coroutine[Any, Any, None], log: logging.Logger, concurrency: int) -> None:
    """
    Run *main*, which runs handlers and answers signals by itself, whatever the tasks of handlers do.

    A loop ends when any of its tasks raises SystemExit or KeyboardInterrupt, also one that a handler has
    started; whoever awaits that task gets the exception as well, so the loop is run on.  So it is when a
    handler stops it.  Nor does it close before each of its tasks has ended, and some never do.
    """
    collect_less(concurrency)
    runner = asyncio.Runner(loop_factory=_factory())
    loop = runner.get_loop()
    task = loop.create_task(main)
    try:
        _run_through(loop, task, log)
    finally:
        left = asyncio.all_tasks(loop)
        _run_through(loop, loop.create_task(_end(left)), log)
        if all(each.done() for each in left):
            runner.close()


def collect_less(concurrency: int) -> None:
    """
    Look for cycles only after as many new objects as *concurrency* jobs have, and never among old ones.

    A thousand jobs that run at once are as many tasks that all live.  To go through them after every few
    hundred new objects takes a fifth of a worker's time, and finds nothing.  What cycles hold meanwhile is no
    more than what running jobs hold.  An app that has set thresholds itself keeps them.
    """
    if gc.get_threshold() == _USUAL and OBJECTS * concurrency > _USUAL[0]:
        gc.freeze()
        gc.set_threshold(OBJECTS * concurrency, 1, 1)


def _run_through(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None], log: logging.Logger) -> None:
    while True:
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # As long as the loop does not handle it, Ctrl-C raises anywhere.
            if task.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise
            log.error(  # noqa: TRY400  # with its description in the line, which goes without its traceback
                "%s, raised by a task that a handler started; the worker goes on",
                describe(error),
                exc_info=error,
                extra=BRIEF,
            )
        except RuntimeError:
            if task.done() or loop.is_closed():
                raise
            log.error("a handler stopped the event loop; the worker goes on")  # noqa: TRY400  # as above
        else:
            return


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_S)


@contextmanager
def session(app: Duly) -> Iterator[Ask]:
    """
    Ask *app* one thing after the other, and close it in the end.

    The loop stands still between two questions, so that Ctrl-C ends a prompt or a read from a pipe at once.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        try:
            yield runner.run
        finally:
            runner.run(app.aclose())


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # an accelerator: used where it is there
    except ImportError:
        return None
    return uvloop.new_event_loop
