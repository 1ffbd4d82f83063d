"""A learner's manager at work: the log hears what its calls did, and ours does the same sums beside it.

The learner's class knows nothing of logs. What it did is read off afterwards: from the table it was given,
from its `free_queue`, and from its counts (`ref_counts[block_id]` or `blocks[block_id].ref_count`), as far
as it has them. Without counts a block has one holder from the moment it is handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minikv.block_table import BlockTable
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from minikv.news import News
from minikv.pool import BlockPool


class Divergence(NamedTuple):
    """Where a learner's code first went another way than ours."""

    step: int  # of the log
    invariant: str | None  # the one that is broken, if one is
    block_id: int | None
    sentence: str

    @property
    def where(self) -> str:
        """Step, invariant and block, as far as there are."""
        block = "" if self.block_id is None else f", block {self.block_id}"
        return f"step {self.step}, {self.invariant or 'no invariant broken'}{block}"


class Watched:
    """Passes every call on to a learner's manager, and stands in for ours in a `DecodeLoop`.

    A call that their class does not have raises AttributeError; only copy_on_write may be missing, for
    without sharing there is nothing to copy.

    Args:
        theirs: the learner's manager, fresh, for a pool of `num_blocks` blocks.
        log, pool: told of what it does.

    Attributes:
        divergence: the first call after which its answer, the table or the free queue was not as ours; None
            while there is none. What comes after it is not compared.
    """

    def __init__(self, theirs: Any, num_blocks: int, block_size: int, log: EventLog, pool: BlockPool) -> None:
        self.theirs, self.block_size = theirs, block_size
        self.divergence: Divergence | None = None
        self._ours = KVCacheManager(num_blocks, block_size)
        self._twins: dict[int, tuple[Any, BlockTable]] = {}  # by id(): their table, and ours beside it
        self._log, self._pool, self._news = log, pool, News(log)
        self._queue = list(range(num_blocks))  # the free queue as the log has it

    # ---- allocate and free ------------------------------------------------------------------

    def allocate(self, table: Any, num_tokens: int) -> bool:
        """Their allocate; what it answers counts as True or False as in any `if`."""
        twin, before = self._twin(table), tuple(table.block_ids)
        said = self.theirs.allocate(table, num_tokens)
        if said is False and tuple(table.block_ids) == before:
            needed = -(-(table.offset + num_tokens) // self.block_size) - table.num_blocks
            self._tell("full", table, needed=max(0, needed), free=len(self._their_queue()))
        if table.offset and not before and table.num_blocks:
            self._tell("offset", table, offset=table.offset)
        self._tell_entries(table, before, tuple(table.block_ids))
        self._agree_on_the_queue()
        call = f"allocate({self._news.name(table)}, {num_tokens})"
        short = said is True and max(0, table.capacity) < num_tokens
        if self.divergence is None:
            self._compare(call, (said, self._ours.allocate(twin, num_tokens)), table, "I5" if short else None)
        return bool(said)

    def free(self, table: Any) -> None:
        """Their free."""
        twin, before = self._twin(table), tuple(table.block_ids)
        self.theirs.free(table)
        self._tell_entries(table, before, tuple(table.block_ids))
        self._agree_on_the_queue()
        if self.divergence is None:
            self._ours.free(twin)
            self._compare(f"free({self._news.name(table)})", None, table)

    # ---- ref counts and sharing -------------------------------------------------------------

    def inc_ref(self, block_id: int) -> None:
        """Their inc_ref."""
        self.theirs.inc_ref(block_id)
        self._count_changed("inc_ref", block_id, 2)

    def dec_ref(self, block_id: int) -> None:
        """Their dec_ref."""
        self.theirs.dec_ref(block_id)
        self._count_changed("dec_ref", block_id, 0)

    def fork(self, table: Any, name: str | None = None) -> Any:
        """Their fork; what it gives back gets the name that pictures call it."""
        twin, child = self._twin(table), self.theirs.fork(table)
        child.name = name
        for index, block_id in enumerate(child.block_ids):
            facts = {"block_id": block_id, "ref_count": self._count(block_id, 2)}
            self._tell("share", child, index=index, source=self._news.name(table), **facts)
        self._agree_on_the_queue()
        if self.divergence is None:
            self._twins[id(child)] = (child, self._ours.fork(twin))
            self._compare(f"fork({self._news.name(table)})", None, child)
        return child

    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        """Their copy_on_write; the data is copied for them."""
        if not hasattr(self.theirs, "copy_on_write"):
            return None
        twin, before = self._twin(table), tuple(table.block_ids)
        pair = self.theirs.copy_on_write(table, position)
        for index, (source, copy) in enumerate(zip(before, table.block_ids, strict=True)):
            if source != copy:
                counts = {"ref_count": self._count(copy, 1), "source_ref_count": self._count(source, 1)}
                self._tell("copy", table, index=index, block_id=copy, source=source, **counts)
                self._take_off(copy)
                self._pool.copy_block(source, copy)
        self._agree_on_the_queue()
        if self.divergence is None:
            ours = self._ours.copy_on_write(twin, position)
            self._compare(f"copy_on_write({self._news.name(table)}, {position})", (pair, ours), table)
        return None if pair is None else (pair[0], pair[1])

    def note_write(self, table: Any, start: int, stop: int, words: Sequence[str] = ()) -> None:
        """Tell the log what is about to be written; it knows if that is right."""
        slots = [int(slot) for slot in table.slots(start, stop)]
        self._tell("write", table, start=start, slots=slots, words=list(words) or ["·"] * len(slots))

    # ---- what the log is told ---------------------------------------------------------------

    def _tell(self, op: str, table: Any = None, **facts: Any) -> None:
        self._news.add(op, table, **facts)
        self._news.send()

    def _tell_entries(self, table: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        """A table was `before` and is `after`: first what it let go, then what it got."""
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        entries = list(before)
        for block_id in self._as_given_back(before[same:]):
            index = len(entries) - 1 - entries[::-1].index(block_id)
            del entries[index]
            count = self._count(block_id, 0)
            self._tell("drop", table, index=index, block_id=block_id, ref_count=count)
            self._tell_if_queued(block_id, count)
        for index, block_id in enumerate(after[same:], same):
            facts = {"block_id": block_id, "ref_count": self._count(block_id, 1)}
            self._tell("allocate", table, index=index, **facts)
            self._take_off(block_id)

    def _as_given_back(self, blocks: tuple[int, ...]) -> list[int]:
        """Blocks that a table let go, in the order in which they stand in the queue; else the last first."""
        places = {block_id: place for place, block_id in enumerate(self._their_queue())}
        return sorted(reversed(blocks), key=lambda block_id: places.get(block_id, len(places)))

    def _tell_if_queued(self, block_id: int, count: int) -> None:
        """A block that was let go has joined the free queue, as far as can be seen."""
        queued = self._their_queue().count(block_id) > self._queue.count(block_id)
        if queued if hasattr(self.theirs, "free_queue") else count == 0:
            self._tell("release", block_id=block_id)
            self._queue.append(block_id)
            self._pool.release(block_id)

    def _count_changed(self, op: str, block_id: int, otherwise: int) -> None:
        """A cache has taken a reference or given one back."""
        count = self._count(block_id, otherwise)
        self._tell(op, block_id=block_id, ref_count=count)
        self._tell_if_queued(block_id, count)
        self._agree_on_the_queue()
        if self.divergence is None:
            getattr(self._ours, op)(block_id)
            self._compare(f"{op}({block_id})", None)

    def _take_off(self, block_id: int) -> None:
        if block_id in self._queue:
            self._queue.remove(block_id)

    def _agree_on_the_queue(self) -> None:
        """Where steps alone do not lead to the queue they have, the log is told the queue itself."""
        theirs = self._their_queue()
        if theirs != self._queue:
            self._queue = theirs
            self._tell("queue", block_ids=theirs)

    # ---- what can be seen of their books -----------------------------------------------------

    def _their_queue(self) -> list[int]:
        """Their free queue; without one, as the log has it."""
        return [int(block_id) for block_id in getattr(self.theirs, "free_queue", self._queue)]

    def _count(self, block_id: int, otherwise: int) -> int:
        """Their count of a block's holders, or `otherwise` if they keep none."""
        try:
            if hasattr(self.theirs, "ref_counts"):
                return int(self.theirs.ref_counts[block_id])
            return int(self.theirs.blocks[block_id].ref_count)
        except (AttributeError, LookupError, TypeError):
            return otherwise

    def _twin(self, table: Any) -> BlockTable:
        """Our table beside theirs."""
        if id(table) not in self._twins:
            self._twins[id(table)] = (table, BlockTable(self.block_size, table.offset))
        return self._twins[id(table)][1]

    # ---- ours beside theirs ------------------------------------------------------------------

    def _compare(
        self, call: str, answers: tuple[Any, Any] | None, table: Any = None, broken: str | None = None
    ) -> None:
        """Note the first difference: in the two answers, else in the table, else in the free queue.

        Args:
            answers: theirs and ours, if the call has one.
            broken: the invariant that a difference would break.
        """
        if answers is not None and answers[0] != answers[1]:
            self._blame(f"The answer to {call} is {answers[0]!r}; it should be {answers[1]!r}.", None, broken)
            return
        compared = [("free queue", self._their_queue(), self._ours.free_queue)]
        if table is not None:
            compared.insert(0, ("table", table.block_ids, self._twin(table).block_ids))
        for what, theirs, ours in compared:
            if (block_id := _first_other(theirs, ours)) is not None:
                said = f"After {call} the {what} is {_ids(theirs)}; it should be {_ids(ours)}."
                self._blame(said, block_id, broken)
                return

    def _blame(self, sentence: str, block_id: int | None, broken: str | None) -> None:
        self._tell("note", text=sentence)
        self.divergence = Divergence(len(self._log) - 1, broken, block_id, sentence)


def _first_other(theirs: Sequence[int], ours: Sequence[int]) -> int | None:
    """The block at the first place where two lists differ: theirs, or ours where theirs has ended."""
    for place in range(max(len(theirs), len(ours))):
        if tuple(theirs[place : place + 1]) != tuple(ours[place : place + 1]):
            return (theirs if place < len(theirs) else ours)[place]
    return None


def _ids(blocks: Sequence[int]) -> str:
    return ", ".join(map(str, blocks)) or "empty"
