"""Generate many C files in several processes, since Python uses one core in each."""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe

from tilewright.errors import TilewrightError, ToolchainError
from tilewright.runtime.machine.host import usable_cpus

from .sources import Made, Order, make

_WORKER = (sys.executable, "-m", "tilewright.runtime.library.worker")
#: Minimum number of files for which processes are started. Starting a process takes about as long
#: as generating so many files.
_WORTH = 24


class _Answers:
    """The generated files by the index of their order, and the first error."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self.made: list[Made | None] = [None] * len(orders)
        self.error: tuple[Order, Exception] | None = None
        self._left: queue.SimpleQueue[tuple[int, Order]] = queue.SimpleQueue()
        for place in enumerate(orders):
            self._left.put(place)

    def take(self) -> tuple[int, Order] | None:
        """Return the next order with its index, None if none is left or an order failed."""
        try:
            return None if self.error else self._left.get_nowait()
        except queue.Empty:
            return None


def make_all(orders: Sequence[Order], jobs: int | None = None) -> list[Made]:
    """Generate the C files of all orders in up to ``jobs`` processes, by default one for each CPU.

    An order that cannot be sent to another process, for example with a user's own post-op, is
    generated here. The first error is raised.
    """
    elsewhere = [i for i, order in enumerate(orders) if _travels(order)]
    jobs = min(usable_cpus() if jobs is None else jobs, len(elsewhere) // (_WORTH // 2))
    if jobs < 2:
        return list(map(_made_here, orders))
    found = _side_by_side([orders[i] for i in elsewhere], jobs)
    by_place = dict(zip(elsewhere, found, strict=True))
    return [by_place[i] if i in by_place else _made_here(each) for i, each in enumerate(orders)]


def _made_here(order: Order) -> Made:
    try:
        return make(order)
    except TilewrightError as error:
        raise _named(order, error) from None


def _named(order: Order, error: Exception) -> Exception:
    """Return the error of an order with the kernel's name added."""
    if not isinstance(error, TilewrightError):
        return error
    return type(error)(
        f"{order.kernel!r} for {order.target}: {error.problem}",
        got=error.got,
        expected=error.expected,
        hint=error.hint,
    )


def _travels(order: Order) -> bool:
    try:
        pickle.loads(pickle.dumps(order))
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return not _is_users_own(order)


def _is_users_own(order: Order) -> bool:
    """Return True if a post-op is defined in the user's program, which other processes do not
    run.
    """
    from tilewright.runtime.pickled import own_programs_of

    return bool(own_programs_of(order.spec))


def _side_by_side(orders: Sequence[Order], jobs: int) -> list[Made]:
    answers = _Answers(orders)
    threads = [threading.Thread(target=_work, args=(answers,)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if answers.error is not None:
        raise _named(*answers.error)
    return [made for made in answers.made if made is not None]


def _work(answers: _Answers) -> None:
    """Have one process generate files until there are no more orders."""
    mine, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [*_WORKER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    with mine:
        while (found := answers.take()) is not None:
            place, order = found
            try:
                mine.send(order)
                answer = mine.recv()
            except (EOFError, OSError):
                answer = ToolchainError(
                    "a process that generates C ended",
                    got=f"status {process.wait()}",
                    hint=" ".join(_WORKER),
                )
            if isinstance(answer, Exception):
                answers.error = order, answer
            else:
                answers.made[place] = answer
    process.wait()
