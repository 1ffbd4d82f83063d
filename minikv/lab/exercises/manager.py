"""Exercises of notebook 03: blocks for some tokens, the queue after a story, a manager, the chapter's Q1."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from minikv.block_table import BlockTable
from minikv.lab.exercises.exercise import Exercise, Verdict, number

# ---- 03.blocks: how many blocks does a table need? ------------------------------------------


def _blocks(rng: random.Random) -> Exercise:
    block_size = rng.choice((4, 8, 16))
    offset, full = rng.randint(2, block_size - 1), rng.randint(2, 4)
    # The tokens alone would fit into `full` blocks; the offset pushes the last ones into one more.
    tokens = full * block_size - rng.randint(0, offset - 1)
    slots, blocks = offset + tokens, full + 1
    slips = {
        full: "that ignores the offset, or rounds down: the last tokens need a block, too",
        full - 1: "that rounds down and ignores the offset; a block is taken whole",
        full + 2: "the offset costs part of one block, and only once",
        slots: "that is slots; a block has several",
        tokens: "that is tokens; a block holds several",
    }
    return Exercise(
        question=f"Block size {block_size}. A table without blocks has offset {offset}. "
        f"How many blocks does allocate(table, {tokens}) append?",
        judge=number(
            blocks, f"{offset} + {tokens} = {slots} slots take {blocks} blocks of {block_size}", slips
        ),
        hints=(
            "A capacity of at least that many tokens is asked for. What does the offset do to the capacity?",
            f"The blocks must have offset + tokens = {slots} slots.",
            f"{slots} / {block_size}, rounded up.",
        ),
        solution=f"ceil(({offset} + {tokens}) / {block_size}) = {blocks} blocks; their capacity is "
        f"{blocks} * {block_size} - {offset} = {blocks * block_size - offset} tokens.\n"
        f"With {full} blocks it would be {full * block_size - offset}.",
        right=blocks,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 03.queue: the free queue after a short story -------------------------------------------


class _Deal(NamedTuple):
    """One line of the story: a request gets so many blocks, or (0) gives all of its own back."""

    name: str
    blocks: int

    def __str__(self) -> str:
        if self.blocks:
            return f"{self.name} takes {self.blocks} block{'s' * (self.blocks > 1)}"
        return f"{self.name} ends"


def _play(
    num_blocks: int, story: Sequence[_Deal], *, tail_first: bool = True, at_head: bool = False
) -> list[int]:
    """The free queue after the story, by these rules."""
    queue = deque(range(num_blocks))
    tables: dict[str, list[int]] = {}
    for name, blocks in story:
        if blocks:
            tables.setdefault(name, []).extend(queue.popleft() for _ in range(blocks))
            continue
        held = tables.pop(name)
        for block_id in reversed(held) if tail_first else held:
            queue.appendleft(block_id) if at_head else queue.append(block_id)
    return list(queue)


def _queue(rng: random.Random) -> Exercise:
    a, b, c = rng.randint(2, 3), rng.randint(2, 3), rng.randint(3, 4)
    num_blocks, taken = a + b + c, c + rng.randint(1, 2)
    first, last = rng.sample(("A", "B"), 2)
    story = (_Deal("A", a), _Deal("B", b), _Deal(first, 0), _Deal("C", taken), _Deal(last, 0))
    queues = [_play(num_blocks, story[: n + 1]) for n in range(len(story))]
    right = queues[-1]
    slips = _queue_slips(num_blocks, story, right)
    return Exercise(
        question=f"A pool of {num_blocks} blocks, all free. {', '.join(map(str, story[:-1]))}, {story[-1]}. "
        "What is the free queue now, head first?",
        judge=_queue_judge(right, slips),
        hints=(
            "Write the queue down and cross out from the left; what is given back is written on the right.",
            f"After A and B have taken theirs it is {_ids(queues[1])}. "
            "A request that ends gives its last block back first.",
            f"When {first} has ended it is {_ids(queues[2])}. Now C takes {taken} from the left.",
        ),
        solution="\n".join(f"{deal!s:16} {_ids(queue)}" for deal, queue in zip(story, queues, strict=True)),
        right=right,
        wrong=tuple((why, list(queue)) for queue, why in slips.items()),
    )


def _queue_slips(num_blocks: int, story: Sequence[_Deal], right: list[int]) -> dict[tuple[int, ...], str]:
    """Wrong queues, and what probably led to them; the likelier of two mistakes is kept."""
    join = "blocks that are given back join the end, not the head"
    found = (
        ("a request gives its last block back first", _play(num_blocks, story, tail_first=False)),
        (join, _play(num_blocks, story, at_head=True)),
        (join, _play(num_blocks, story, tail_first=False, at_head=True)),
        ("the queue is in the order of giving back, not of the ids", sorted(right)),
        ("that is back to front: the head comes first", right[::-1]),
        ("C has taken some of these from the head", _play(num_blocks, [*story[:3], story[4]])),
        ("the one that ended last has given its blocks back, too", _play(num_blocks, story[:-1])),
    )
    return {tuple(queue): why for why, queue in reversed(found) if queue != right}


def _queue_judge(right: list[int], slips: dict[tuple[int, ...], str]) -> Any:
    def judge(answer: Any) -> Verdict:
        if isinstance(answer, str) or not isinstance(answer, Sequence | deque):
            return Verdict(False, f"the answer is a list of block ids, such as [4, 1, 0], not {answer!r}")
        said = list(answer)
        if said == right:
            return Verdict(True, f"first in, first out, and the last block of a request first: {_ids(right)}")
        if tuple(map(str, said)) == tuple(map(str, right)):
            return Verdict(False, "the right order, but block ids are whole numbers: write [4, 1, 0]")
        if why := slips.get(tuple(said) if all(type(each) is int for each in said) else ()):
            return Verdict(False, why)
        if len(said) != len(right):
            return Verdict(False, f"{len(right)} blocks are free, your list has {len(said)}", "I1")
        place = next(i for i, (a, b) in enumerate(zip(said, right, strict=True)) if a != b)
        return Verdict(False, f"the first difference is at place {place + 1} of the queue; hint(…) helps")

    return judge


# ---- 03.manager: the learner's own manager --------------------------------------------------


# The solution of 03.manager, as a learner would write it; each wrong one differs in one thing.
class MyManager:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_queue = deque(range(num_blocks))

    def allocate(self, table, num_tokens):
        if num_tokens == 0:
            return True
        blocks = -(-(table.offset + num_tokens) // self.block_size)  # rounded up
        needed = blocks - table.num_blocks
        if needed > len(self.free_queue):
            return False  # before anything has changed
        for _ in range(needed):
            table.append_block(self.free_queue.popleft())
        return True

    def free(self, table):
        for block_id in reversed(table.block_ids):
            self.free_queue.append(block_id)
        table.clear()


class _Counting(MyManager):
    """For those that are wrong in the count only."""

    def needed(self, table, num_tokens):
        return -(-(table.offset + num_tokens) // self.block_size) - table.num_blocks

    def allocate(self, table, num_tokens):
        needed = self.needed(table, num_tokens) if num_tokens else 0
        if needed > len(self.free_queue):
            return False
        for _ in range(needed):
            table.append_block(self.free_queue.popleft())
        return True


class _RoundsDown(_Counting):
    def needed(self, table, num_tokens):
        return (table.offset + num_tokens) // self.block_size - table.num_blocks


class _OneTooManyWhenFull(_Counting):
    def needed(self, table, num_tokens):
        return (table.offset + num_tokens) // self.block_size + 1 - table.num_blocks


class _IgnoresOffset(_Counting):
    def needed(self, table, num_tokens):
        return -(-num_tokens // self.block_size) - table.num_blocks


class _SubtractsOffset(_Counting):
    def needed(self, table, num_tokens):
        return -(-(num_tokens - table.offset) // self.block_size) - table.num_blocks


class _ForgetsWhatItHas(_Counting):
    def needed(self, table, num_tokens):
        return -(-(table.offset + num_tokens) // self.block_size)


class _OneBlockAToken(_Counting):
    def needed(self, table, num_tokens):
        return num_tokens - table.num_blocks


class _TakesABlockForNothing(_Counting):
    def allocate(self, table, num_tokens):
        return super().allocate(table, max(1, num_tokens))


class _PartialAllocation(MyManager):
    def allocate(self, table, num_tokens):
        while num_tokens and table.capacity < num_tokens:
            if not self.free_queue:
                return False
            table.append_block(self.free_queue.popleft())
        return True


class _LosesOnRefusal(MyManager):
    def allocate(self, table, num_tokens):
        taken: list[int] = []
        while num_tokens and table.capacity + len(taken) * self.block_size < num_tokens:
            if not self.free_queue:
                return False
            taken.append(self.free_queue.popleft())
        for block_id in taken:
            table.append_block(block_id)
        return True


class _KeepsOneInReserve(MyManager):
    def allocate(self, table, num_tokens):
        needed = -(-(table.offset + num_tokens) // self.block_size) - table.num_blocks
        if num_tokens and needed >= len(self.free_queue) and needed > 0:
            return False
        return super().allocate(table, num_tokens)


class _RaisesInsteadOfFalse(MyManager):
    def allocate(self, table, num_tokens):
        if not super().allocate(table, num_tokens):
            raise MemoryError("no block is free")
        return True


class _SaysTrueAnyway(MyManager):
    def allocate(self, table, num_tokens):
        super().allocate(table, num_tokens)
        return True


class _SaysNothing(MyManager):
    def allocate(self, table, num_tokens):
        super().allocate(table, num_tokens)


class _TakesFromTheTail(MyManager):
    def allocate(self, table, num_tokens):
        self.free_queue.reverse()
        answer = super().allocate(table, num_tokens)
        self.free_queue.reverse()
        return answer


class _LooksButDoesNotTake(MyManager):
    def allocate(self, table, num_tokens):
        before = len(self.free_queue)
        answer = super().allocate(table, num_tokens)
        if len(self.free_queue) < before:
            self.free_queue.appendleft(table.block_ids[-1])
        return answer


class _AppendsTwice(MyManager):
    def allocate(self, table, num_tokens):
        while num_tokens and table.capacity < num_tokens:
            if not self.free_queue:
                return False
            block_id = self.free_queue.popleft()
            table.append_block(block_id)
            table.append_block(block_id)
        return True


class _LastInFirstOut(MyManager):
    def free(self, table):
        self.free_queue.extendleft(table.block_ids)
        table.clear()


class _FreesHeadFirst(MyManager):
    def free(self, table):
        self.free_queue.extend(table.block_ids)
        table.clear()


class _SortsTheQueue(MyManager):
    def free(self, table):
        super().free(table)
        self.free_queue = deque(sorted(self.free_queue))


class _ForgetsToGiveBack(MyManager):
    def free(self, table):
        table.clear()


class _ForgetsTheLastBlock(MyManager):
    def free(self, table):
        self.free_queue.extend(reversed(table.block_ids[:-1]))
        table.clear()


class _ClearsFirst(MyManager):
    def free(self, table):
        table.clear()
        self.free_queue.extend(reversed(table.block_ids))


class _LeavesTheTableFilled(MyManager):
    def free(self, table):
        self.free_queue.extend(reversed(table.block_ids))


class _GivesBackTwice(MyManager):
    def free(self, table):
        self.free_queue.extend(reversed(table.block_ids))
        super().free(table)


class _OneQueueForAll(MyManager):
    together: deque[int] | None = None  # the mistake

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        if _OneQueueForAll.together is None:
            _OneQueueForAll.together = self.free_queue
        self.free_queue = _OneQueueForAll.together


class _Untouched:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_queue = deque(range(num_blocks))

    def allocate(self, table, num_tokens):
        return ...

    def free(self, table): ...


def _manager(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write a class MyManager with allocate(table, num_tokens) and free(table) over a deque of "
        "the free blocks, as described above.",
        judge=_judge_manager,
        hints=(
            "First count: how many blocks must the table have, the offset included? How many has it already?",
            "If more are needed than free_queue holds, answer False before anything has changed. Otherwise "
            "popleft one after the other into table.append_block.",
            "needed = ceil((table.offset + num_tokens) / block_size) - table.num_blocks; free appends "
            "reversed(table.block_ids) to the queue, then clears the table.",
        ),
        solution="from collections import deque\n\n\n" + inspect.getsource(MyManager),
        right=MyManager,
        wrong=(
            ("rounds down", _RoundsDown),
            ("one block too many at exact multiples", _OneTooManyWhenFull),
            ("forgets the offset", _IgnoresOffset),
            ("subtracts the offset", _SubtractsOffset),
            ("forgets the blocks that the table has", _ForgetsWhatItHas),
            ("one block a token", _OneBlockAToken),
            ("takes a block for 0 tokens", _TakesABlockForNothing),
            ("partial allocation", _PartialAllocation),
            ("loses what it took when it refuses", _LosesOnRefusal),
            ("refuses when the last free block is needed", _KeepsOneInReserve),
            ("raises instead of answering False", _RaisesInsteadOfFalse),
            ("answers True when it refused", _SaysTrueAnyway),
            ("answers nothing", _SaysNothing),
            ("takes from the tail of the queue", _TakesFromTheTail),
            ("hands out the head without taking it off", _LooksButDoesNotTake),
            ("lists each block twice", _AppendsTwice),
            ("last in, first out", _LastInFirstOut),
            ("frees the head of the table first", _FreesHeadFirst),
            ("sorts the queue", _SortsTheQueue),
            ("forgets to give blocks back", _ForgetsToGiveBack),
            ("forgets the last block", _ForgetsTheLastBlock),
            ("clears the table before it gives back", _ClearsFirst),
            ("leaves a freed table filled", _LeavesTheTableFilled),
            ("gives every block back twice", _GivesBackTwice),
            ("all managers share one queue", _OneQueueForAll),
            ("untouched starter", _Untouched),
        ),
    )


class _Step(NamedTuple):
    """One call, and what must be true after it: the answer, the table's blocks, the free queue."""

    table: str
    num_tokens: int | None  # None: free
    answer: bool | None
    block_ids: tuple[int, ...]
    queue: tuple[int, ...]

    @property
    def call(self) -> str:
        return (
            f"free({self.table})" if self.num_tokens is None else f"allocate({self.table}, {self.num_tokens})"
        )


# Worked out by hand. Tables A and B begin empty with offset 0, table C with offset 2.
_STORY = (
    _Step("A", 9, True, (0, 1, 2), (3, 4, 5, 6, 7)),
    _Step("B", 8, True, (3, 4), (5, 6, 7)),  # exactly two blocks
    _Step("A", 12, True, (0, 1, 2), (5, 6, 7)),  # there is room in the last block
    _Step("A", 13, True, (0, 1, 2, 5), (6, 7)),
    _Step("B", 20, False, (3, 4), (6, 7)),  # three more, and two are free: nothing changes
    _Step("A", None, None, (), (6, 7, 5, 2, 1, 0)),  # last block first
    _Step("B", 20, True, (3, 4, 6, 7, 5), (2, 1, 0)),
    _Step("B", 3, True, (3, 4, 6, 7, 5), (2, 1, 0)),  # less than it has: nothing to do
    _Step("C", 8, True, (2, 1, 0), ()),  # offset 2: three blocks, and the last one that is free
    _Step("C", 10, True, (2, 1, 0), ()),
    _Step("C", 11, False, (2, 1, 0), ()),
    _Step("A", 0, True, (), ()),  # nothing asked, nothing needed
    _Step("A", 1, False, (), ()),
    _Step("A", None, None, (), ()),  # nothing to give back
    _Step("B", None, None, (), (5, 7, 6, 4, 3)),
    _Step("C", None, None, (), (5, 7, 6, 4, 3, 0, 1, 2)),
    _Step("C", None, None, (), (5, 7, 6, 4, 3, 0, 1, 2)),  # to free twice is to free once
    _Step("A", 32, True, (5, 7, 6, 4, 3, 0, 1, 2), ()),
)
_SMALL = (  # block size 1: every token needs a block
    _Step("A", 2, True, (0, 1), (2,)),
    _Step("B", 2, False, (), (2,)),
    _Step("A", 3, True, (0, 1, 2), ()),
    _Step("A", None, None, (), (2, 1, 0)),
)


def _judge_manager(answer: Any) -> Verdict:
    if not isinstance(answer, type):
        return Verdict(False, f"the answer is a class, not {answer!r}; leave off the brackets")
    for num_blocks, block_size, offset, story in ((8, 4, 2, _STORY), (3, 1, 0, _SMALL)):
        tables = {"A": BlockTable(block_size), "B": BlockTable(block_size)}
        tables["C"] = BlockTable(block_size, offset)
        where = f"a pool of {num_blocks} blocks of {block_size}"
        try:
            verdict = _walk(answer(num_blocks, block_size), tables, story, where)
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(False, f"in {where}: {type(error).__name__}: {error}")
        if verdict is not None:
            return verdict
    calls = len(_STORY) + len(_SMALL)
    return Verdict(True, f"right in {calls} calls: every answer, every block, and the queue after each")


def _walk(manager: Any, tables: dict[str, BlockTable], story: Sequence[_Step], where: str) -> Verdict | None:
    """Play the story; the first call after which something is not as it must be."""
    for place, step in enumerate(story, 1):
        table, now = tables[step.table], f"{where}, call {place}, {step.call}"
        try:
            said = _call(manager, table, step.num_tokens)
        except Exception as error:
            return Verdict(False, f"{now} raised {type(error).__name__}: {error}")
        if said is ...:
            return Verdict(False, "not answered yet: allocate still returns ...")
        if fault := _fault(step, said, table, tuple(getattr(manager, "free_queue", step.queue))):
            what, invariant = fault
            return Verdict(False, f"{now}: {what}", invariant)
    if not hasattr(manager, "free_queue"):
        return Verdict(False, "right so far; now keep the free blocks in free_queue, for that is judged, too")
    return None


def _call(manager: Any, table: BlockTable, num_tokens: int | None) -> Any:
    if num_tokens is None:
        manager.free(table)
        return None
    return manager.allocate(table, num_tokens)


def _fault(
    step: _Step, said: Any, table: BlockTable, queue: tuple[int, ...]
) -> tuple[str, str | None] | None:
    """What is not as it must be after a call, and the invariant that this breaks, if it breaks one."""
    short = table.capacity < (step.num_tokens or 0)
    if step.answer is not None and said is not step.answer:
        return f"the answer is {said!r}, should be {step.answer}", "I5" if said is True and short else None
    if table.block_ids != step.block_ids:
        repeats = len(set(table.block_ids)) < table.num_blocks
        broken = "I3" if repeats else "I5" if step.answer and short else None
        if step.num_tokens is None:
            broken = "I1"  # still listed, though its blocks are free
        listed, wanted = _ids(table.block_ids) or "no block", _ids(step.block_ids) or "none"
        return f"the table lists {listed}, should list {wanted}", broken
    if queue != step.queue:
        lost_or_doubled = sorted(queue) != sorted(step.queue)
        has, wanted = _ids(queue) or "empty", _ids(step.queue) or "empty"
        return f"the free queue is {has}, should be {wanted}", "I1" if lost_or_doubled else None
    return None


# ---- 12.Q1: the chapter's first question ----------------------------------------------------


def _q1(rng: random.Random) -> Exercise:
    return Exercise(
        question="30 tokens are stored. How full is the last block with a block size of 16, and how full "
        "with a block size of 4? Answer with two shares, such as (0.25, 0.75), or per cent, as in (25, 75).",
        judge=_judge_q1,
        hints=(
            "How many blocks are full to the last slot, and how many tokens are left over for the last one?",
            "30 = 1 * 16 + 14, and 30 = 7 * 4 + 2.",
            "14 of 16 slots, and 2 of 4.",
        ),
        solution="Block size 16: 2 blocks, 32 slots; the last one holds 14 of 16, 87.5 per cent.\n"
        "Block size 4: 8 blocks, 32 slots; the last one holds 2 of 4, 50 per cent.\n"
        "Both leave 2 slots empty, so how full the last block of one request is says little. What counts\n"
        "is the mean over many lengths: (block_size - 1) / 2 empty slots a request, 7.5 against 1.5, and\n"
        "a table that is a quarter as long.",
        right=(14 / 16, 2 / 4),
        wrong=(
            ("slots in use, not a share", (14, 2)),
            ("the share that is empty", (2 / 16, 3 / 4)),
            ("the share of all slots, not of the last block's", (30 / 32, 30 / 32)),
            ("the wrong way round", (2 / 4, 14 / 16)),
            ("the last block at block size 4 taken for full", (14 / 16, 1)),
            ("one number for both", (14 / 16,)),
            ("30 of 32 blocks of 4", (14 / 16, 7 / 8)),
            ("numbers of blocks", (2, 8)),
        ),
    )


def _judge_q1(answer: Any) -> Verdict:
    if isinstance(answer, str) or not isinstance(answer, Sequence) or len(answer) != 2:
        return Verdict(False, f"the answer is two shares, such as (0.25, 0.75), not {answer!r}")
    if any(isinstance(share, bool) or not isinstance(share, int | float) for share in answer):
        return Verdict(False, f"the shares are numbers; these are {answer!r}")
    for size, tokens, share in ((16, 14, answer[0]), (4, 2, answer[1])):
        said = 100 * share if max(answer) <= 1 else share
        if abs(said - 100 * tokens / size) > 1:  # 0.88 is 14 / 16, rounded
            return Verdict(
                False,
                f"with a block size of {size} it is not {said:g} per cent; how many of the 30 tokens lie in "
                "the last block?",
            )
    return Verdict(True, "14 of 16 and 2 of 4. And yet both leave 2 of 32 slots empty: what does that say?")


def _ids(blocks: Sequence[int]) -> str:
    return " ".join(map(str, blocks))


EXERCISES = {"03.blocks": _blocks, "03.queue": _queue, "03.manager": _manager, "12.Q1": _q1}
WITH_VARIANTS = ("03.blocks", "03.queue")
