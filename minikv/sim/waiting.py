"""Who waits, in the order in which they will be served."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from minikv.checks import whole_number
from minikv.sim.workload import Request


class Waiting(NamedTuple):
    """A request that waits."""

    key: int  # its number in order of arrival, from 0
    request: Request
    done: int = 0  # tokens it had generated when it was preempted


class Queue:
    """First come, first served; who was preempted goes in front.

    The stream of requests is read one ahead and no further: however many wait, memory holds one of them,
    and those that were preempted, of which there are never more than ran together.

    Args:
        requests: in order of arrival.

    Raises:
        ValueError: (also later, while reading) a request arrives before its forerunner, at no finite time, or
            has no token in or out. TypeError: it has tokens that are no whole number.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self._stream = iter(requests)
        self._preempted: deque[Waiting] = deque()
        self._ahead: Waiting | None = None
        self.next_arrival: float = -math.inf  # microseconds, a whole number; infinity when no more will come
        self._read()

    @property
    def has_more(self) -> bool:
        """True while somebody waits or will come."""
        return bool(self._preempted) or self._ahead is not None

    def head(self, now: int) -> Waiting | None:
        """Who is first at this time, in microseconds; None if nobody waits."""
        if self._preempted:
            return self._preempted[0]
        return self._ahead if self.next_arrival <= now else None

    def pop(self) -> None:
        """The head has been served."""
        if self._preempted:
            self._preempted.popleft()
        else:
            self._read()

    def put_in_front(self, waiting: Waiting) -> None:
        """Somebody was preempted."""
        self._preempted.appendleft(waiting)

    def _read(self) -> None:
        request = next(self._stream, None)
        key = 0 if self._ahead is None else self._ahead.key + 1
        if request is None:
            self._ahead, self.next_arrival = None, math.inf
            return
        if not math.isfinite(request.arrival):
            raise ValueError(f"request {key} arrives at {request.arrival} s; a time is a finite number")
        arrival = round(request.arrival * 1e6)
        if arrival < self.next_arrival:
            raise ValueError(
                f"request {key} arrives at {request.arrival} s, earlier than the one before; "
                "sort them by arrival"
            )
        inputs = whole_number("input_tokens", request.input_tokens)
        outputs = whole_number("output_tokens", request.output_tokens)
        if min(inputs, outputs) < 1:
            raise ValueError(f"request {key} is {request}; it needs at least 1 token in and 1 out")
        self._ahead, self.next_arrival = Waiting(key, request), arrival
