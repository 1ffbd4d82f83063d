"""Who holds what, and who notices when it is wrong: what notebook 04 asks of a manager and a bench.

note = CountNotes(manager, block_id=0)
note("A stores its prompt")             # its count and the free queue, as a line
who_notices(manager, manager.dec_ref, 0)
print(rows(bench, "B", "C"))            # two rows of the map as text
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from minikv.decode import Request
from minikv.errors import InvariantError, RefCountError
from minikv.lab.block_map_text import queue_line, slot_texts
from minikv.lab.event_log import EventLog
from minikv.lab.workbench import Workbench
from minikv.manager import KVCacheManager


class CountNotes:
    """Notes the count of one block each time it is called.

    Attributes:
        counts: the count at each call.
        free_at: the numbers of the calls, from 1, that found the block in the free queue.
    """

    def __init__(self, manager: KVCacheManager, block_id: int) -> None:
        self.manager, self.block_id = manager, block_id
        self.counts: list[int] = []
        self.free_at: list[int] = []

    def __call__(self, what: str) -> str:
        """What has just happened, as a line with the block's count and the free queue."""
        self.counts.append(self.manager.blocks[self.block_id].ref_count)
        number, queue = len(self.counts), self.manager.free_queue
        if self.block_id in queue:
            self.free_at.append(number)
        return f"{number}  {what:25}  count {self.counts[-1]}   free queue {' '.join(map(str, queue))}"


class Logged(Protocol):
    """Whatever has an event log: a bench, or a tryout of a learner's code."""

    @property
    def log(self) -> EventLog: ...


class Noticed(NamedTuple):
    """Who noticed a wrong call, and what was said."""

    who: str  # refused | check | nobody
    sentence: str


def who_notices(manager: KVCacheManager, call: Callable[..., Any], *arguments: Any) -> Noticed:
    """Make a wrong call, then count everything again.

    Returns:
        "refused" if the call itself raises RefCountError, "check" if `check()` finds it, else "nobody".
    """
    try:
        call(*arguments)
        manager.check()
    except RefCountError as error:
        return Noticed("refused", str(error))
    except InvariantError as error:
        return Noticed("check", str(error))
    return Noticed("nobody", "")


def rows(bench: Logged, *names: str, step: int | None = None) -> str:
    """The rows of some requests as the map shows them, block by block, and the free queue below.

    Args:
        step: of the log; None is the last one.

    Raises:
        KeyError: no such request. IndexError: no such step.
    """
    state = bench.log.state(len(bench.log) - 1 if step is None else step)
    lines = []
    for name in names:
        request = state.requests[name]
        for index, block_id in enumerate(request.block_ids):
            words = " ".join(slot_texts(state, request, index))
            lines.append(f"{name if index == 0 else '':{len(name)}}  L{index} → P{block_id}  {words}")
    return "\n".join([*lines, queue_line(state)])


def sees_its_own_words(bench: Workbench, request: Request) -> bool:
    """Whether the slots that the request's table gives hold the words that it stored."""
    stored = request.token_ids[request.num_dropped : request.num_stored]
    shown = bench.log.state(len(bench.log) - 1).text_of(request.name)
    return list(shown) == [bench.model.text([token]) for token in stored]
