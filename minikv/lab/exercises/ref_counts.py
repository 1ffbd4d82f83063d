"""Exercises of notebook 04: who holds a block, a log that does not add up, own counting, order of release."""

from __future__ import annotations

import inspect
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from minikv.block_table import BlockTable
from minikv.errors import RefCountError
from minikv.lab.exercises.exercise import Exercise, Verdict
from minikv.manager import KVCacheManager

# ---- 04.counts: the ref counts after a short story ----------------------------------------

POOL = 8  # blocks in the story's pool
SIZE = 4  # slots in each


def _counts(rng: random.Random) -> Exercise:
    prompt, words = 4 * rng.randint(1, 2) + rng.randint(0, 3), rng.randint(1, 5)
    kept = rng.randint(1, prompt // SIZE)  # full blocks that the cache takes
    right = _story(prompt, words, kept)
    slips = {
        tuple(min(1, count) for count in right): "several may hold a block: count them all",
        tuple(_story(prompt, words, kept, copied=False)): "a shared block is copied before it is written to",
        tuple(_story(prompt, words, kept, eager=True)): "a full block is not copied: nobody writes to it",
        tuple(_story(prompt, words, 0)): "the cache is a holder, too",
        tuple(_story(prompt, words, kept, ended=False)): "A has finished: its references are gone",
        tuple(_story(prompt, words, kept, counted=False)): "A's end takes A's references along, no others",
    }
    slips.pop(tuple(right), None)
    written = "its first word is" if words == 1 else f"its first {words} words are"
    return Exercise(
        question=f"A pool of {POOL} free blocks with {SIZE} slots each. Request A stores a prompt of "
        f"{prompt} words. Request B is forked from A, and {written} stored. A cache takes a reference to "
        f"A's first {'block' if kept == 1 else f'{kept} blocks'}. Then A finishes. "
        f"What are the ref counts of blocks 0 to {POOL - 1}, in order?",
        judge=lambda answer: _judge_counts(answer, right, slips),
        hints=(
            *_counts_hints(prompt, words),
            f"Now add up for each block: the tables that list it, and 1 more for the cache in "
            f"{'block 0' if kept == 1 else f'the first {kept}'}. Then take away what A held.",
        ),
        solution=f"{right}",
        right=right,
        wrong=tuple((why, list(counts)) for counts, why in slips.items()),
    )


def _counts_hints(prompt: int, words: int) -> tuple[str, str]:
    """The first two: who lists what, and where B's words go."""
    full, more = divmod(prompt, SIZE)
    enough = "" if words == 1 else f" With {words} stored, does B need one more block?"
    rows = "Draw one row for each table. A's prompt"
    if more:
        return (
            f"{rows} is in blocks 0 to {full}; block {full} is not full. The fork shares them all.",
            f"B's first word goes into block {full}, which is shared: B gets a copy, {full + 1}.{enough}",
        )
    return (
        f"{rows} fills block 0{f' to {full - 1}' if full > 1 else ''} to the last slot. The fork shares all.",
        f"B's first word finds no room there: a new block, {full}.{enough} Is a full block ever copied?",
    )


def _story(
    prompt: int,
    words: int,
    kept: int,
    copied: bool = True,
    eager: bool = False,
    ended: bool = True,
    counted: bool = True,
) -> list[int]:
    """The counts at its end as our manager has them; without a step, they are those of who forgets it.

    Args:
        eager: B's last block is copied although nobody writes to it.
    """
    manager, a = KVCacheManager(POOL, SIZE), BlockTable(SIZE)
    manager.allocate(a, prompt)
    b = manager.fork(a)
    if eager:
        manager.copy_on_write(b, prompt - 1)
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


# ---- 04.pairs: a log in which a reference is not given back, or once too often -------------

MISSING, TOO_MANY = "missing", "too many"
Act = tuple[str, list[int], int]  # who does it, with which blocks, and +1 or -1


def _pairs(rng: random.Random) -> Exercise:
    acts = _acts(rng.randint(2, 3), rng.randint(1, 2))
    kind = rng.choice((MISSING, TOO_MANY))
    block = rng.choice((0, 0, 1)) if kind == MISSING else rng.choice(acts[-1][1])
    leaving = [blocks for _, blocks, sign in acts if sign < 0 and block in blocks]
    blocks = rng.choice(leaving if kind == MISSING else leaving[:-1])  # the last one's second try is refused
    if kind == MISSING:
        blocks.remove(block)
    else:
        blocks.insert(blocks.index(block), block)
    taken, given = _times(acts, +1), _times(acts, -1)
    right = (block, kind)
    return Exercise(
        question="References taken (+) and given back (-), block by block. At the end nobody is running, and "
        f"the cache is empty.\n{_shown_acts(acts)}\nWith one block it does not add up. Which one? And is a - "
        f'missing there, or is there one too many?\nAnswer with both: check(…, (block, "{MISSING}")) or '
        f'check(…, (block, "{TOO_MANY}"))',
        judge=lambda answer: _judge_pairs(answer, right, taken, given),
        hints=(
            "Take one block after the other and look at nothing else: how many + has it, how many -?",
            f"Block {max(taken)} has {taken[max(taken)]} of each, so nothing is wrong with it.",
            f"Block {block} is taken {_often(taken[block])} and given back {_often(given[block])}.",
        ),
        solution=f"{right}\nBlock {block} is taken {_often(taken[block])} and given back "
        f"{_often(given[block])}. " + _consequence(block, kind),
        right=right,
        wrong=(
            ("the right block, the other way round", (block, TOO_MANY if kind == MISSING else MISSING)),
            *((f"block {other}, which adds up", (other, kind)) for other in taken if other != block),
            ("only the block", block),
            ("only what is wrong", kind),
            ("another word", (block, "wrong")),
        ),
    )


def _acts(prompt: int, prefix: int) -> list[Act]:
    """A stores a prompt, a cache takes its first blocks, C has them as a prefix; then all of them leave."""
    all_of_a, shared = list(range(prompt)), list(range(prefix))
    return [
        ("A stores its prompt", all_of_a, +1),
        ("a cache takes", list(shared), +1),
        ("C takes the prefix", list(shared), +1),
        ("C needs one more", [prompt], +1),
        ("A ends", all_of_a[::-1], -1),
        ("C ends", [prompt, *shared[::-1]], -1),
        ("the cache lets go", shared[::-1], -1),
    ]


def _times(acts: Sequence[Act], sign: int) -> Counter[int]:
    """How often each block is taken (+1) or given back (-1)."""
    return Counter(block for _, blocks, act_sign in acts if act_sign == sign for block in blocks)


def _shown_acts(acts: Sequence[Act]) -> str:
    lines = (f"  {who:21}{' '.join(f'{sign:+d}'[0] + str(b) for b in blocks)}" for who, blocks, sign in acts)
    return "\n".join(lines)


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _consequence(block: int, kind: str) -> str:
    if kind == MISSING:
        return "It leaks: at the end its count is 1 and it has no holder (I2), so it never becomes free."
    return (
        f"One holder too early its count is 0 (I2): block {block} joins the free queue while somebody still "
        "uses it. The last holder's own - is refused then, or robs whoever has got the block since."
    )


def _judge_pairs(answer: Any, right: tuple[int, str], taken: Counter[int], given: Counter[int]) -> Verdict:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        return Verdict(False, f'the answer is a block and a word, such as (7, "{MISSING}"), not {answer!r}')
    block, kind = answer
    if isinstance(block, bool) or not isinstance(block, int) or block not in taken:
        return Verdict(
            False, f"the blocks are {', '.join(map(str, sorted(taken)))}; {block!r} is none of them"
        )
    if kind not in (MISSING, TOO_MANY):
        return Verdict(False, f'the word is "{MISSING}" or "{TOO_MANY}", not {kind!r}')
    times = f"block {block} is taken {_often(taken[block])} and given back {_often(given[block])}"
    if block != right[0]:
        return Verdict(False, f"{times}: that adds up")
    if kind != right[1]:
        return Verdict(False, f"{times}: so is one - missing, or is there one too many?", "I2")
    return Verdict(True, times)


# ---- 12.Q2: A and B finish together; does the order matter? -------------------------------

STATEMENTS = {
    "a": "everything is the same",
    "b": "the ref counts are not the same",
    "c": "the counts and the set of free blocks are the same; the order of the free queue is not",
    "d": "in one of the two orders a block is lost, or freed while somebody uses it",
}


def _finish_together(rng: random.Random) -> Exercise:
    own = (rng.choice((0, 2, 1, 1)), rng.choice((0, 1, 2, 2)))
    shared = rng.randint(1, 3)
    manager, a, b = _pair(shared, own)
    tables, free = (list(a.block_ids), list(b.block_ids)), list(manager.free_queue)
    a_first, b_first = _queue_after(shared, own, (0, 1)), _queue_after(shared, own, (1, 0))
    right = (a_first, b_first, "a" if a_first == b_first else "c")
    listed = "\n".join(f"  {letter}  {text}" for letter, text in STATEMENTS.items())
    return Exercise(
        question=f"A's table is {tables[0]}, B's is {tables[1]}, and the free queue is {free}. "
        f"What both list, {tables[0][:shared]}, has ref count 2. Both requests finish in the same step. "
        "What is the free queue if A is released first, and what if B is? Which statement about the two "
        "ends is true here?\n"
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
        solution=f"({a_first}, {b_first}, {right[2]!r})\n{_why_together(right[2])}",
        right=right,
        wrong=tuple(slip for slip in _wrong_together(shared, tables, free, right) if slip[1] != right),
    )


def _why_together(letter: str) -> str:
    counts = (
        "A count only says how many are left, and 2 - 1 - 1 is 0 in either order: the same counts, the same "
        "blocks free, nothing lost. "
    )
    if letter == "a":
        return counts + (
            "Here not even the queue differs: at most one of the two has blocks of its own, and the shared "
            "ones come last both times."
        )
    return counts + (
        "But blocks join the queue as they become free, so the own blocks of the first to go stand before "
        "those of the second. The shared ones come last both times. The next request gets other block ids, "
        "and says the same words."
    )


def _wrong_together(
    shared: int, tables: tuple[list[int], list[int]], free: list[int], right: tuple[list[int], list[int], str]
) -> list[tuple[str, Any]]:
    """Mistakes and what they lead to; some of them do no harm in a small case, and give the right answer."""
    a_first, b_first, letter = right
    own = (tables[0][shared:], tables[1][shared:])
    head_first = (free + own[0] + tables[1], free + own[1] + tables[0], letter)
    at_once = (
        free + tables[0][::-1] + own[1][::-1],
        free + tables[1][::-1] + own[0][::-1],
        letter,
    )
    return [
        *((f'says "{text}"', (a_first, b_first, other)) for other, text in STATEMENTS.items()),
        ("the same queue both times", (a_first, a_first, "a")),
        ("the two queues mixed up", (b_first, a_first, letter)),
        ("first blocks first", head_first),
        ("shared blocks freed by the first to go", at_once),
        ("forgets what was free before", (a_first[len(free) :], b_first[len(free) :], letter)),
        (
            "put at the head of the queue",
            (a_first[len(free) :] + free, b_first[len(free) :] + free, letter),
        ),
        ("only one queue", a_first),
    ]


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
    plain = letter.strip(" ().").lower() if isinstance(letter, str) else ""
    if plain not in STATEMENTS:
        return Verdict(False, f"the statement is one of {', '.join(STATEMENTS)}, not {letter!r}")
    if plain != right[2]:
        return Verdict(
            False, f'both queues are right; compare them once more: is it true that "{STATEMENTS[plain]}"?'
        )
    return Verdict(True, STATEMENTS[plain])


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
        for block_id in block_ids:
            if self.counts[block_id] == 0:
                raise RefCountError(f"block {block_id} is free already")
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


class _FreesAndThenLooks(MyRefCounts):
    def free_table(self, block_ids):
        for block_id in reversed(block_ids):
            self.drop(block_id)


class _FreesWhatIsHeld(MyRefCounts):
    def free_table(self, block_ids):
        for block_id in reversed(block_ids):
            if self.counts[block_id] > 0:
                self.drop(block_id)


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
            "free_table looks at all its blocks first: is one of them free? Only then it drops each of them "
            "once, last one first: for block_id in reversed(block_ids).",
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
            ("free_table finds a free block when it has dropped others", _FreesAndThenLooks),
            ("free_table skips a free block", _FreesWhatIsHeld),
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
    *(("share", 1), ("take",), ("free_table", ()), ("take",), ("free_table", (1, 2)), ("free_table", (3, 2))),
)


def _judge_refs(answer: Any) -> Verdict:
    if not isinstance(answer, type):
        return Verdict(False, f"the answer is a class, not {answer!r}; leave off the brackets")
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
        named = arguments[0] if name == "free_table" else arguments
        free = next(block_id for block_id in named if ours.counts[block_id] == 0)
        return Verdict(False, f"{now}block {free} is free: raise RefCountError, not {_shown(said)}", "I2")
    if said is not true and (said is RefCountError or isinstance(said, _Raised)):
        return Verdict(False, f"{now}it raised {_shown(said)}")
    verdict = _compare_state(mine, ours, now)
    if verdict is not None and true is RefCountError:
        return replace(verdict, message=f"{verdict.message}; a call that raises changes nothing")
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


EXERCISES = {"04.counts": _counts, "04.pairs": _pairs, "04.refs": _refs, "12.Q2": _finish_together}
WITH_VARIANTS = ("04.counts", "04.pairs", "12.Q2")
