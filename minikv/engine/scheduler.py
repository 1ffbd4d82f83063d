"""Who computes what in the next step, and who must wait: continuous batching. (Yu et al., OSDI 2022)

    waiting   hold no block; first come, first served; who was preempted comes first
    running   hold blocks; the oldest first

A step has a budget of tokens. The oldest request takes from it first: one token if it decodes, or as
many as are left of its prompt (chunked prefill: Agrawal et al., OSDI 2024). When no block is free, the
prefix cache gives some back; when it has none, the youngest running request is preempted.

Nothing can stand still: a request that could not run alone is refused when it comes, and the oldest one
is never preempted for a younger one. If it finds no room even when all others are gone (contiguous memory in
pieces, a cached block that its own blocks pin), it begins again, and runs alone to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

from minikv.engine.prefix_cache import PrefixCache
from minikv.engine.request import Chunk, Request, Sequence, Status, common_prefix
from minikv.errors import OutOfBlocksError


class Manager(Protocol):
    """What the scheduler needs of the memory's management: KVCacheManager's, or ContiguousManager's."""

    block_size: int

    @property
    def num_free_blocks(self) -> int: ...
    def allocate(self, table: Any, num_tokens: int) -> bool: ...
    def free(self, table: Any) -> None: ...
    def fork(self, table: Any, name: str | None = None) -> Any: ...
    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None: ...
    def note_write(self, table: Any, start: int, stop: int, words: Many[str] = ()) -> None: ...


class Swap(Protocol):
    """Keeps the KV of preempted sequences somewhere else."""

    def save(self, table: Any, start: int, stop: int) -> Any: ...
    def load(self, saved: Any, table: Any, start: int, stop: int) -> None: ...


class Saved(NamedTuple):
    """What was swapped out of a request.

    Attributes:
        shared: tokens that all its sequences have stored and begin with; only the first one's copy has them.
        parts: (sequence, tokens it had stored, copy of its KV).
    """

    shared: int
    parts: list[tuple[Sequence, int, Any]]


class Scheduler:
    """Plans steps, and keeps the books of who runs and who waits.

    Args:
        new_table: makes an empty table for a sequence of a request.
        prefix_cache: where requests leave their blocks when they end or are preempted; None: nowhere.
        swap: where preempted requests leave their KV; None: they compute it again.
        max_batch_size: sequences that run side by side, at least 1.
        max_step_tokens: tokens stored in one step, at least 1.
        words: what some tokens are, for pictures; with it, each write is told one by one.
    """

    def __init__(
        self,
        manager: Manager,
        new_table: Callable[[Request, Sequence], Any],
        prefix_cache: PrefixCache | None = None,
        swap: Swap | None = None,
        max_batch_size: int = 64,
        max_step_tokens: int = 1024,
        words: Callable[[list[int]], list[str]] | None = None,
    ) -> None:
        self.manager, self.new_table, self.prefix_cache, self.swap = manager, new_table, prefix_cache, swap
        self.max_batch_size, self.max_step_tokens, self.words = max_batch_size, max_step_tokens, words
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted: list[Request] = []  # while the last step was planned
        self.alone: Request | None = None  # nobody runs beside it
        self.stuck: Request | None = None  # it finds no room, and nobody is left who could make any
        self._steady: list[Chunk] = []  # the last plan, if it is the next one as well; else empty

    def schedule(self) -> list[Chunk]:
        """The work of the next step. Room for it is made, and it is noted as about to be written."""
        self.preempted, self.stuck = [], None
        if self._goes_on():
            return self._steady
        plan: list[Chunk] = []
        budget = self.max_step_tokens
        for request in list(self.running):
            if request.status is Status.RUNNING:  # not preempted for an older one
                chunks = self._chunks(request, budget)
                if self._make_room(request, chunks):
                    plan += chunks
                    for chunk in chunks:
                        budget -= chunk.num_new
        while self.waiting and budget and not self.preempted and self.alone not in self.running:
            chunks = self._admit(self.waiting[0], budget)
            if not chunks:
                break
            plan += chunks
            budget -= sum(chunk.num_new for chunk in chunks)
        if self.waiting and not plan and not self.running and not self.preempted:
            self.stuck = self.waiting[0]
        for _, sequence, num_new in plan:
            if self.words is not None or sequence.num_stored + num_new > sequence.writable:
                self._note_write(sequence, num_new)
        if self.words is None and all(
            c.sequence.pending == 1 and not c.request.params.beam_width for c in plan
        ):
            self._steady = plan
        return plan

    def _goes_on(self) -> bool:
        """Whether the last plan is the next one: all decode, nobody waits, nobody needs a block or has gone.

        Most steps are such. Who has gone, or shares its last block since a fork, has no slot to write to.
        """
        if self.waiting or not all(s.num_stored < s.writable for _, s, _ in self._steady):
            self._steady = []
        return bool(self._steady)

    # ---- a running request ----------------------------------------------------------------

    def _chunks(self, request: Request, budget: int) -> list[Chunk]:
        """What the request can do in a step of `budget` tokens: nothing, if others have used it up."""
        if len(request.sequences) == 1:  # as nearly always
            sequence = request.sequences[0]
            num_new = min(len(sequence.token_ids) - sequence.num_stored, budget)
            return [Chunk(request, sequence, num_new)] if num_new else []
        going = request.running
        if any(sequence.table is None for sequence in going):  # they have yet to part
            shared = common_prefix(going)
            if going[0].num_stored < shared:
                num_new = min(shared - going[0].num_stored, budget)
                return [Chunk(request, going[0], num_new)] if num_new else []
            for sequence in going[1:]:
                if sequence.table is None:
                    self.fork(request, going[0], sequence)
        limits = [sequence.pending for sequence in going]
        if request.params.beam_width:  # beams choose together, so all come to their last token together
            if any(pending > 1 for pending in limits):
                limits = [pending - 1 for pending in limits]
            elif budget < len(going):
                return []
        chunks = []
        for sequence, limit in zip(going, limits, strict=True):
            num_new = min(limit, budget)
            if num_new:
                chunks.append(Chunk(request, sequence, num_new))
                budget -= num_new
        return chunks

    def _make_room(self, request: Request, chunks: Many[Chunk]) -> bool:
        """Blocks for these chunks, if need be those of younger requests. False: it was preempted itself."""
        for _, sequence, num_new in chunks:
            while not self._reserve(sequence, num_new):
                youngest = self.running[-1]
                self.preempt(youngest)
                if youngest is request:
                    if not self.running:
                        self.stuck = request if self.alone is request else None
                        self.alone = request
                    return False
        return True

    def _reserve(self, sequence: Sequence, num_new: int) -> bool:
        """Blocks of its own for the sequence's next tokens. False: too few are free."""
        stop = sequence.num_stored + num_new
        if stop <= sequence.writable:
            return True
        table, begun = sequence.table, sequence.num_stored < sequence.table.capacity
        if not self._allocate(table, stop):
            return False
        if begun and not self._own(table, sequence.num_stored):  # only the last block is written to again
            return False
        sequence.version += 1
        return True

    def _allocate(self, table: Any, num_tokens: int) -> bool:
        """Grow the table, if need be with blocks that only the prefix cache holds."""
        if self.manager.allocate(table, num_tokens):
            return True
        if self.prefix_cache is None:
            return False
        missing = -(-num_tokens // self.manager.block_size) - table.num_blocks - self.manager.num_free_blocks
        return self.prefix_cache.evict(missing) >= missing and self.manager.allocate(table, num_tokens)

    def _own(self, table: Any, position: int) -> bool:
        """Copy the block at this position, if others hold it, too. False: no block is free for the copy."""
        try:
            self.manager.copy_on_write(table, position)
        except OutOfBlocksError:
            if self.prefix_cache is None or not self.prefix_cache.evict(1):
                return False
            self.manager.copy_on_write(table, position)
        return True

    def _note_write(self, sequence: Sequence, num_new: int) -> None:
        """Tell the manager, which looks whether the blocks are the sequence's own (I4) and enough (I5).

        Once for each block: what holds for its first slot holds for the others.
        """
        start, stop = sequence.num_stored, sequence.num_stored + num_new
        words = self.words(sequence.token_ids[start:stop]) if self.words is not None else ()
        self.manager.note_write(sequence.table, start, stop, words)
        sequence.writable = sequence.table.capacity

    # ---- a waiting request ----------------------------------------------------------------

    def _admit(self, request: Request, budget: int) -> list[Chunk]:
        """Let the oldest waiting request run, if there is room; else nothing has changed."""
        if sum(other.seats for other in (request, *self.running)) > self.max_batch_size:
            return []
        if request.saved is None or self.swap is None:
            self._begin(request)
        elif not self._swap_in(request, request.saved, self.swap):
            self._let_go(request)
            return []
        chunks = self._chunks(request, budget)
        if not chunks or not all(self._reserve(chunk.sequence, chunk.num_new) for chunk in chunks):
            self._let_go(request)
            return []
        if not request.num_preemptions:
            request.num_cached_tokens = request.running[0].num_stored
        request.saved = None
        request.status = Status.RUNNING
        self.running.append(self.waiting.popleft())
        return chunks

    def _begin(self, request: Request) -> None:
        """Give the first sequence a table, with what the prefix cache has of its tokens."""
        going = request.running
        first = going[0]
        if self.prefix_cache is None:
            first.table = self.new_table(request, first)
        else:  # of sequences that have parted, only what they have in common
            known = first.token_ids if len(going) == 1 else first.token_ids[: common_prefix(going) + 1]
            first.table, first.num_stored = self.prefix_cache.acquire(known, request.params.salt, first.name)
        first.version += 1

    def fork(self, request: Request, parent: Sequence, child: Sequence) -> None:
        """Let `child` hold what `parent` has stored."""
        try:
            child.table = self.manager.fork(parent.table, child.name)
            child.num_stored = parent.num_stored
        except OutOfBlocksError:  # only where a fork copies and there is no room: then it is computed again
            child.table = self.new_table(request, child)
        child.version += 1
        parent.writable = child.writable = 0  # whoever writes next to the last block copies it first

    # ---- who lets go ----------------------------------------------------------------------

    def preempt(self, request: Request) -> None:
        """Take a running request's blocks away; it is the next to come back."""
        if self.swap is not None:
            self._swap_out(request, self.swap)
        self.running.remove(request)
        self.waiting.appendleft(request)
        self.preempted.append(request)
        request.status = Status.WAITING
        request.num_preemptions += 1
        self._publish_all(request)
        self._let_go(request)

    def remove(self, request: Request) -> None:
        """Forget a request, wherever it is; its blocks come back."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._publish_all(request)
        else:
            self.waiting.remove(request)
        request.saved = None
        self._let_go(request)

    def retire(self, request: Request, sequence: Sequence) -> None:
        """A sequence is at its end: its blocks come back, while others of the request may go on."""
        self.publish(request, sequence)
        self._drop(sequence)

    def publish(self, request: Request, sequence: Sequence) -> None:
        """Let the prefix cache hold the sequence's full blocks, too. Only what is stored counts."""
        if self.prefix_cache is not None and sequence.table is not None:
            stored = sequence.token_ids[: sequence.num_stored]
            self.prefix_cache.insert(stored, sequence.table, request.params.salt)

    def _publish_all(self, request: Request) -> None:
        for sequence in request.running:
            self.publish(request, sequence)

    def _let_go(self, request: Request) -> None:
        with ExitStack() as stack:  # goes on to the last one, even if an observer raises
            for sequence in request.sequences:
                stack.callback(self._drop, sequence)

    def _drop(self, sequence: Sequence) -> None:
        self._steady = []
        table, sequence.table = sequence.table, None
        sequence.num_stored = sequence.writable = 0
        if table is not None:
            self.manager.free(table)

    # ---- swapping -------------------------------------------------------------------------

    def _swap_out(self, request: Request, swap: Swap) -> None:
        """Keep copies of what the sequences have stored; what all of them begin with, once."""
        going = [sequence for sequence in request.running if sequence.table is not None]
        shared = min(common_prefix(going), *(sequence.num_stored for sequence in going)) if going else 0
        starts = [0] + [shared] * (len(going) - 1)
        parts = [
            (sequence, sequence.num_stored, swap.save(sequence.table, start, sequence.num_stored))
            for sequence, start in zip(going, starts, strict=True)
        ]
        request.saved = Saved(shared, parts)

    def _swap_in(self, request: Request, saved: Saved, swap: Swap) -> bool:
        """Blocks for all that was saved, and its KV into them. False: too few are free."""
        first, _, copy = saved.parts[0]
        first.table = self.new_table(request, first)
        if not self._fill(first, copy, saved.shared, swap):
            return False
        for sequence, _, _ in saved.parts[1:]:
            self.fork(request, first, sequence)
            if sequence.num_stored < saved.shared:
                return False
        return all(self._fill(sequence, copy, stop, swap) for sequence, stop, copy in saved.parts)

    def _fill(self, sequence: Sequence, copy: Any, stop: int, swap: Swap) -> bool:
        """Bring the sequence's KV back up to `stop` tokens. False: too few blocks are free."""
        start = sequence.num_stored
        if not self._reserve(sequence, stop - start):
            return False
        self._note_write(sequence, stop - start)
        swap.load(copy, sequence.table, start, stop)
        sequence.num_stored = stop
        return True
