"""Exercises of notebook 04: who holds a block, counting of the learner's own, and the order of release."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from minikv.block_table import BlockTable
from minikv.errors import RefCountError
from minikv.lab.exercises.exercise import Exercise, Verdict
from minikv.manager import KVCacheManager

# ---- 04.counts: the ref counts after a short story ----------------------------------------

POOL = 8  # blocks in the story's pool
SIZE = 4  # slots in each


def _counts(rng: random.Random) -> Exercise:
    prompt, words = 4 * rng.randint(1, 2) + rng.randint(1, 3), rng.randint(1, 5)
    kept = rng.randint(1, prompt // SIZE)  # full blocks that the cache takes
    right = _story(prompt, words, kept)
    slips = {
        tuple(min(1, count) for count in right): "several may hold a block: count them all",
        tuple(_story(prompt, words, kept, copied=False)): "a shared block is copied before it is written to",
        tuple(_story(prompt, words, 0)): "the cache is a holder, too",
        tuple(_story(prompt, words, kept, ended=False)): "A has finished: its references are gone",
        tuple(_story(prompt, words, kept, counted=False)): "A's end takes A's references along, no others",
    }
    slips.pop(tuple(right), None)
    blocks, full = -(-prompt // SIZE), prompt // SIZE
    written = "its first word is" if words == 1 else f"its first {words} words are"
    return Exercise(
        question=f"A pool of {POOL} free blocks with {SIZE} slots each. Request A stores a prompt of "
        f"{prompt} words. Request B is forked from A, and {written} stored. A cache takes a reference to "
        f"A's first {'block' if kept == 1 else f'{kept} blocks'}. Then A finishes. "
        f"What are the ref counts of blocks 0 to {POOL - 1}, in order?",
        judge=lambda answer: _judge_counts(answer, right, slips),
        hints=(
            f"Draw one row for each table. A's prompt is in blocks 0 to {full}; block {full} is not full. "
            "The fork shares them all.",
            f"B's first word goes into block {full}, which is shared: B gets a copy, in block {blocks}. "
            f"With {words} stored, does B need one more block?",
            f"Now add up for each block: the tables that list it, and 1 more for the cache in the first "
            f"{kept}. Then take away what A held.",
        ),
        solution=f"{right}",
        right=right,
        wrong=tuple((why, list(counts)) for counts, why in slips.items()),
    )


def _story(
    prompt: int, words: int, kept: int, copied: bool = True, ended: bool = True, counted: bool = True
) -> list[int]:
    """The counts at its end as our manager has them; without a step, they are those of who forgets it."""
    manager, a = KVCacheManager(POOL, SIZE), BlockTable(SIZE)
    manager.allocate(a, prompt)
    b = manager.fork(a)
    for stored in range(prompt, prompt + words):
        manager.allocate(b, stored + 1)
        if copied:
            manager.copy_on_write(b, stored)
    for block_id in a.block_ids[:kept]:
        manager.inc_ref(block_id)
    gone = () if counted else a.block_ids
    if ended:
        manager.free(a)
    return [0 if block.block_id in gone else block.ref_count for block in manager.blocks]


def _judge_counts(answer: Any, right: list[int], slips: dict[tuple[int, ...], str]) -> Verdict:
    said = _ids(answer)
    if said is None or len(said) != len(right):
        return Verdict(False, f"the answer is a list of {len(right)} numbers, not {answer!r}")
    if list(said) == right:
        return Verdict(True, "every holder is counted, and only those")
    block = next(i for i, pair in enumerate(zip(said, right, strict=True)) if pair[0] != pair[1])
    why = slips.get(said, "hint(…) helps")
    return Verdict(False, f"block {block}'s count is not {said[block]}: {why}", "I2")


def _ids(answer: Any) -> tuple[int, ...] | None:
    """A list of whole numbers as a tuple; None for anything else."""
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        return None
    if any(isinstance(each, bool) or not isinstance(each, int) for each in answer):
        return None
    return tuple(answer)


# ---- 12.Q2: A and B finish together; does the order matter? -------------------------------

STATEMENTS = {
    "a": "everything is the same",
    "b": "the ref counts are not the same",
    "c": "the counts and the set of free blocks are the same; the order of the free queue is not",
    "d": "in one of the two orders a block is lost, or freed while somebody uses it",
}


def _finish_together(rng: random.Random) -> Exercise:
    shared, own = rng.randint(1, 3), (rng.randint(1, 2), rng.randint(1, 2))
    manager, a, b = _pair(shared, own)
    tables, free = (list(a.block_ids), list(b.block_ids)), list(manager.free_queue)
    a_first, b_first = _queue_after(shared, own, (0, 1)), _queue_after(shared, own, (1, 0))
    right = (a_first, b_first, "c")
    listed = "\n".join(f"  {letter}  {text}" for letter, text in STATEMENTS.items())
    head_first = (free + tables[0][shared:] + tables[1], free + tables[1][shared:] + tables[0])
    at_once = (
        free + tables[0][::-1] + tables[1][: shared - 1 : -1],
        free + tables[1][::-1] + tables[0][: shared - 1 : -1],
    )
    return Exercise(
        question=f"A's table is {tables[0]}, B's is {tables[1]}, and the free queue is {free}. "
        f"What both list, {tables[0][:shared]}, has ref count 2. Both requests finish in the same step. "
        "What is the free queue if A is released first, and what if B is? Which statement about the two "
        "ends is true?\n"
        f'{listed}\nAnswer with all three: check(…, ([…], […], "?"))',
        judge=lambda answer: _judge_together(answer, right, free),
        hints=(
            "A table's blocks are let go last first, and a block joins the end of the queue only when "
            "its count becomes 0.",
            "Whoever is released first gives back only what is its own. The shared ones come back with the "
            "second, after the second's own.",
            f"A first: {free}, then A's own {tables[0][: shared - 1 : -1]}, then B's own and the shared ones "
            f"{tables[1][::-1]}.",
        ),
        solution=f'({a_first}, {b_first}, "c")\nA count only says how many are left, and 2 - 1 - 1 is 0 in '
        "either order: the same counts, the same blocks free, nothing lost. But blocks join the queue as "
        "they become free, so the own blocks of the first to go stand before those of the second. The "
        "shared ones come last both times. The next request gets other block ids, and says the same words.",
        right=right,
        wrong=(
            ("says that nothing differs", (a_first, b_first, "a")),
            ("says that the counts differ", (a_first, b_first, "b")),
            ("says that one order loses a block", (a_first, b_first, "d")),
            ("the same queue both times", (a_first, a_first, "a")),
            ("the two queues mixed up", (b_first, a_first, "c")),
            ("first blocks first", (*head_first, "c")),
            ("shared blocks freed by the first to go", (*at_once, "c")),
            ("forgets what was free before", (a_first[len(free) :], b_first[len(free) :], "c")),
            ("put at the head of the queue", (a_first[len(free) :] + free, b_first[len(free) :] + free, "c")),
            ("only one queue", a_first),
        ),
    )


def _pair(shared: int, own: tuple[int, int]) -> tuple[KVCacheManager, BlockTable, BlockTable]:
    """Two tables over `shared` full blocks, each with blocks of its own, in a pool with two to spare."""
    manager, a = KVCacheManager(shared + sum(own) + 2, SIZE), BlockTable(SIZE)
    manager.allocate(a, shared * SIZE)
    b = manager.fork(a)
    for more in range(1, max(own) + 1):  # in turn, as they are when both decode
        for table, blocks in ((a, own[0]), (b, own[1])):
            manager.allocate(table, (shared + min(more, blocks)) * SIZE)
    return manager, a, b


def _queue_after(shared: int, own: tuple[int, int], order: tuple[int, int]) -> list[int]:
    manager, *tables = _pair(shared, own)
    for place in order:
        manager.free(tables[place])
    return list(manager.free_queue)


def _judge_together(answer: Any, right: tuple[list[int], list[int], str], free: list[int]) -> Verdict:
    if not isinstance(answer, tuple | list) or len(answer) != 3:
        return Verdict(False, 'the answer is two lists and a letter: ([…], […], "?")')
    a_first, b_first, letter = answer
    for who, said, true in (("A", a_first, right[0]), ("B", b_first, right[1])):
        ids = _ids(said)
        if ids is None:
            return Verdict(False, f"the free queue is a list of block ids, not {said!r}")
        if list(ids) != true:
            return Verdict(False, f"{who} first: {_queue_slip(list(ids), true, free)}")
    if letter not in STATEMENTS:
        return Verdict(False, f"the statement is one of {', '.join(STATEMENTS)}, not {letter!r}")
    if letter != right[2]:
        return Verdict(
            False, f'both queues are right; compare them once more: is it true that "{STATEMENTS[letter]}"?'
        )
    return Verdict(True, "the counts and the free blocks are the same, the order of the queue is not")


def _queue_slip(said: list[int], true: list[int], free: list[int]) -> str:
    if sorted(said) != sorted(true):
        odd = sorted(set(true) ^ set(said))
        return f"every block is free at the end, once; look at {odd or 'those listed twice'}"
    if said[: len(free)] != free:
        return f"what is given back joins the end; {free} were there before"
    place = next(i for i, pair in enumerate(zip(said, true, strict=True)) if pair[0] != pair[1])
    return f"block {said[place]} does not come back at that point; when does its count become 0?"


# ---- 04.refs: the learner's own counting --------------------------------------------------


# The solution of 04.refs, as a learner would write it; each wrong one differs in one thing.
class MyRefCounts:
    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks
        self.free_queue = deque(range(num_blocks))

    def take(self):
        block_id = self.free_queue.popleft()
        self.counts[block_id] = 1
        return block_id

    def share(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(f"block {block_id} is free, nobody can share it")
        self.counts[block_id] += 1

    def drop(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(f"block {block_id} is free already")
        self.counts[block_id] -= 1
        if self.counts[block_id] > 0:
            return False
        self.free_queue.append(block_id)
        return True

    def free_table(self, block_ids):
        for block_id in reversed(block_ids):
            self.drop(block_id)


class _FreesAtOne(MyRefCounts):
    def drop(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(block_id)
        self.counts[block_id] -= 1
        if self.counts[block_id] > 1:
            return False
        self.free_queue.append(block_id)
        return True


class _NeverFrees(MyRefCounts):
    def drop(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(block_id)
        self.counts[block_id] -= 1
        return self.counts[block_id] == 0


class _AlwaysFrees(MyRefCounts):
    def drop(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(block_id)
        self.counts[block_id] = 0
        self.free_queue.append(block_id)
        return True


class _BelowZero(MyRefCounts):
    def drop(self, block_id):
        self.counts[block_id] -= 1
        if self.counts[block_id] != 0:
            return False
        self.free_queue.append(block_id)
        return True


class _FreesAgain(MyRefCounts):
    def drop(self, block_id):
        self.counts[block_id] = max(0, self.counts[block_id] - 1)
        if self.counts[block_id] > 0:
            return False
        self.free_queue.append(block_id)
        return True


class _LooksAway(MyRefCounts):
    def drop(self, block_id):
        return self.counts[block_id] > 0 and super().drop(block_id)


class _SharesFree(MyRefCounts):
    def share(self, block_id):
        self.counts[block_id] += 1


class _SharesNothing(MyRefCounts):
    def share(self, block_id):
        if self.counts[block_id] == 0:
            raise RefCountError(block_id)


class _DropsThenLooks(MyRefCounts):
    def drop(self, block_id):
        self.counts[block_id] -= 1
        if self.counts[block_id] < 0:
            raise RefCountError(block_id)
        if self.counts[block_id] > 0:
            return False
        self.free_queue.append(block_id)
        return True


class _SharesThenLooks(MyRefCounts):
    def share(self, block_id):
        self.counts[block_id] += 1
        if self.counts[block_id] == 1:
            raise RefCountError(block_id)


class _ToTheHead(MyRefCounts):
    def drop(self, block_id):
        freed = super().drop(block_id)
        if freed:
            self.free_queue.appendleft(self.free_queue.pop())
        return freed


class _FirstBlockFirst(MyRefCounts):
    def free_table(self, block_ids):
        for block_id in block_ids:
            self.drop(block_id)


class _OnlyTheLastBlock(MyRefCounts):
    def free_table(self, block_ids):
        self.drop(block_ids[-1])


class _CountsTables(MyRefCounts):
    def share(self, block_id):
        super().share(block_id)
        self.counts = [count and max(self.counts) for count in self.counts]


class _SaysNothing(MyRefCounts):
    def drop(self, block_id):
        super().drop(block_id)


class _OtherError(MyRefCounts):
    def drop(self, block_id):
        assert self.counts[block_id] > 0
        return super().drop(block_id)


class _Untouched(MyRefCounts):
    def share(self, block_id): ...

    def drop(self, block_id):
        return ...

    def free_table(self, block_ids): ...


def _refs(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write a class MyRefCounts with share, drop and free_table, as described above.",
        judge=_judge_refs,
        hints=(
            "share is one more, drop is one less. Look before you change anything: a free block has count 0.",
            "drop frees the block when the count has become 0, and only then: append it to the free queue.",
            "free_table drops each of its blocks once, last one first: for block_id in reversed(block_ids).",
        ),
        solution=inspect.getsource(MyRefCounts),
        right=MyRefCounts,
        wrong=(
            ("frees at count 1", _FreesAtOne),
            ("never frees", _NeverFrees),
            ("frees at every drop", _AlwaysFrees),
            ("goes below zero without a word", _BelowZero),
            ("stops at zero, but frees again", _FreesAgain),
            ("looks away when a free block is dropped", _LooksAway),
            ("lets a free block be shared", _SharesFree),
            ("share counts nothing", _SharesNothing),
            ("drops first and looks then", _DropsThenLooks),
            ("shares first and looks then", _SharesThenLooks),
            ("frees to the head of the queue", _ToTheHead),
            ("free_table begins with the first block", _FirstBlockFirst),
            ("free_table drops the last block only", _OnlyTheLastBlock),
            ("counts tables, not holders of a block", _CountsTables),
            ("drop does not say whether the block is free", _SaysNothing),
            ("raises another error", _OtherError),
            ("untouched starter", _Untouched),
        ),
    )


# Calls, one after the other: ("take",), ("share", block), ("drop", block), ("free_table", blocks).
Call = tuple[Any, ...]
_ONE_BLOCK: tuple[Call, ...] = (
    *(("take",), ("take",), ("share", 0), ("share", 0), ("drop", 0), ("drop", 1), ("drop", 0), ("drop", 0)),
    *(("drop", 0), ("share", 0), ("share", 2), ("drop", 2), ("take",), ("take",), ("take",)),
)
_TWO_TABLES: tuple[Call, ...] = (
    *(("take",), ("take",), ("take",), ("share", 0), ("share", 1), ("take",)),
    *(("free_table", (0, 1, 2)), ("take",), ("free_table", (0, 1, 3)), ("free_table", (4,))),
    *(("share", 1), ("take",), ("free_table", ())),
)


def _judge_refs(answer: Any) -> Verdict:
    if not isinstance(answer, type):
        return Verdict(False, f"the answer is a class, not {answer!r}; leave the brackets away")
    try:
        untouched = answer(1)
        if _outcome(getattr(untouched, "drop", None), (untouched.take(),)) is ...:
            return Verdict(False, "not answered yet: drop still returns ...")
        for num_blocks, calls in ((3, _ONE_BLOCK), (5, _TWO_TABLES)):
            mine, ours = answer(num_blocks), MyRefCounts(num_blocks)
            for number in range(len(calls)):
                verdict = _one_call(mine, ours, calls[: number + 1])
                if verdict is not None:
                    return verdict
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        return Verdict(False, f"{answer.__name__} raised {type(error).__name__}: {error}")
    return Verdict(True, "right at every call, for one block with many holders and for two tables")


def _one_call(mine: Any, ours: MyRefCounts, calls: Sequence[Call]) -> Verdict | None:
    """The last of these calls, on the learner's counts and on ours: what is wrong with it, or None."""
    name, *arguments = calls[-1]
    said, true = _outcome(getattr(mine, name, None), arguments), _outcome(getattr(ours, name), arguments)
    now = f"{len(calls)} calls in, at {name}({', '.join(map(str, arguments))}): "
    if true is RefCountError and said is not true:
        text = f"{now}block {arguments[0]} is free: raise RefCountError, not {_shown(said)}"
        return Verdict(False, text, "I2")
    if said is not true and (said is RefCountError or isinstance(said, _Raised)):
        return Verdict(False, f"{now}it raised {_shown(said)}")
    verdict = _compare_state(mine, ours, now)
    if verdict is None and said != true and name == "drop":
        return Verdict(False, f"{now}the answer is {_shown(said)}; it should be {_shown(true)}")
    return verdict


class _Raised(str):
    """The name and the message of an error that was not asked for."""


def _outcome(method: Callable[..., Any] | None, arguments: Sequence[Any]) -> Any:
    """What a call gives back; RefCountError itself, or a _Raised, if it raises."""
    try:
        return method(*arguments)  # type: ignore[misc]  # no such method: that is a TypeError, shown as such
    except RefCountError:
        return RefCountError
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        return _Raised(f"{type(error).__name__} {error}".rstrip())


def _shown(outcome: Any) -> str:
    return "RefCountError" if outcome is RefCountError else str(outcome)


def _compare_state(mine: Any, ours: MyRefCounts, now: str) -> Verdict | None:
    """The first block whose count is not ours, or the free queue if that is not ours."""
    counts, queue = list(getattr(mine, "counts", ())), list(getattr(mine, "free_queue", ()))
    for block_id, (said, true) in enumerate(zip(counts, ours.counts, strict=False)):
        if said != true:
            return Verdict(False, f"{now}the count of block {block_id} is {said}; it should be {true}", "I2")
    if queue == list(ours.free_queue):
        return None
    odd = sorted(set(range(len(ours.counts))) & {b for b in queue if queue.count(b) > 1})
    missing = sorted(set(ours.free_queue) ^ set(queue))
    which = f"; see block {(odd or missing)[0]}" if odd or missing else ""
    invariant = "I1" if odd or missing else None
    return Verdict(
        False, f"{now}the free queue is {queue}; it should be {list(ours.free_queue)}{which}", invariant
    )


EXERCISES = {"04.counts": _counts, "04.refs": _refs, "12.Q2": _finish_together}
WITH_VARIANTS = ("04.counts", "12.Q2")
