"""Exercises of notebook 02: positions, slots, and a block table of the learner's own."""

from __future__ import annotations

import inspect
import random
from typing import Any

from minikv.lab.exercises.exercise import Exercise, Verdict, number

# ---- 02.slot: where does a token live? ----------------------------------------------------


def _slot(rng: random.Random) -> Exercise:
    block_size = rng.choice((4, 8))
    ids = rng.sample(range(2, 20), 3)
    offset, position = rng.randint(1, block_size - 1), rng.randint(block_size, 2 * block_size - 1)
    index, place = divmod(offset + position, block_size)
    slot = ids[index] * block_size + place
    slips = {
        ids[position // block_size] * block_size + position % block_size: "that ignores the offset",
        index * block_size + place: "that is the logical place; the table says which block holds it",
        ids[index] * block_size + position % block_size: "the offset shifts the place within the block, too",
        ids[index]: "that is the block; the slot is a place within it",
        ids[index] + place: "a block's first slot is block_id * block_size",
    }
    slips.pop(slot, None)
    return Exercise(
        question=f"Block size {block_size}, block_ids {ids}, offset {offset}. "
        f"In which slot of the memory does position {position} live?",
        judge=number(slot, f"entry {index} is block {ids[index]}, place {place}: slot {slot}", slips),
        hints=(
            f"Position 0 lies {offset} slots into block {ids[0]}. Count on from there.",
            f"offset + position = {offset + position}. "
            "Which entry of the table is that, and which place in it?",
            f"{offset + position} = {index} * {block_size} + {place}: entry {index}, place {place}.",
        ),
        solution=f"divmod({offset} + {position}, {block_size}) = ({index}, {place}); "
        f"block_ids[{index}] * {block_size} + {place} = {ids[index]} * {block_size} + {place} = {slot}",
        right=slot,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 02.new_block: when does a sequence need a new block? ---------------------------------


def _new_block(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write needs_new_block(num_stored, block_size): a request (offset 0) has the K and V of "
        "num_stored tokens stored. Does storing one more need a new block?",
        judge=_judge_new_block,
        hints=(
            "Draw 0, 1, 2, 3, 4 stored tokens with a block size of 4. When is there no empty slot?",
            "With 0 stored there is no block at all; with 4 the first is full; with 5 the second has room.",
            "All blocks are full exactly when num_stored is a multiple of block_size.",
        ),
        solution="def needs_new_block(num_stored, block_size):\n    return num_stored % block_size == 0",
        right=lambda num_stored, block_size: num_stored % block_size == 0,
        wrong=(
            ("tests == 1, as code does that has counted the new token already", lambda n, b: n % b == 1),
            ("one too late", lambda n, b: n % b == b - 1),
            ("forgets the first block", lambda n, b: n > 0 and n % b == 0),
            ("always", lambda n, b: True),
            ("never", lambda n, b: False),
            ("answers with the rest, not with True or False", lambda n, b: n % b),
            ("untouched starter", lambda n, b: ...),
        ),
    )


def _judge_new_block(answer: Any) -> Verdict:
    if not callable(answer):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    for block_size in (1, 3, 4, 16):
        blocks = 0
        for stored in range(3 * block_size + 2):
            full = blocks * block_size == stored
            try:
                said = answer(stored, block_size)
            except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
                return Verdict(
                    False, f"needs_new_block({stored}, {block_size}) raised {type(error).__name__}: {error}"
                )
            if said is ...:
                return Verdict(False, "not answered yet: the function still returns ...")
            if said is not True and said is not False:
                return Verdict(
                    False, f"needs_new_block({stored}, {block_size}) is {said!r}; say True or False"
                )
            if said != full:
                have = f"{blocks} block{'s' * (blocks != 1)} of {block_size}"
                return Verdict(
                    False,
                    f"needs_new_block({stored}, {block_size}) is {said}, but {stored} tokens in {have} "
                    f"leave {'no' if full else 'an'} empty slot",
                    "I5",
                )
            blocks += full
    return Verdict(True, "right at every count, for block sizes 1, 3, 4 and 16")


# ---- 02.table: the learner's own block table ----------------------------------------------


# The solution of 02.table, as a learner would write it; each wrong one differs in one thing.
class MyBlockTable:
    def __init__(self, block_size, offset=0):
        self.block_size = block_size
        self.offset = offset
        self.entries = []

    @property
    def block_ids(self):
        return tuple(self.entries)

    @property
    def num_blocks(self):
        return len(self.entries)

    @property
    def capacity(self):
        return self.num_blocks * self.block_size - self.offset

    def append_block(self, block_id):
        self.entries.append(block_id)

    def slot(self, position):
        if not 0 <= position < self.capacity:
            raise IndexError(f"position {position} is outside [0, {self.capacity})")
        index, place = divmod(self.offset + position, self.block_size)
        return self.entries[index] * self.block_size + place

    def slots(self, start, stop):
        return [self.slot(position) for position in range(start, stop)]

    def clear(self):
        self.entries.clear()
        self.offset = 0


class _IgnoresOffset(MyBlockTable):
    def slot(self, position):
        if not 0 <= position < self.capacity:
            raise IndexError(position)
        return self.entries[position // self.block_size] * self.block_size + position % self.block_size


class _OffsetInPlaceOnly(MyBlockTable):
    def slot(self, position):
        if not 0 <= position < self.capacity:
            raise IndexError(position)
        place = (self.offset + position) % self.block_size
        return self.entries[position // self.block_size] * self.block_size + place


class _LogicalAsPhysical(MyBlockTable):
    def slot(self, position):
        if not 0 <= position < self.capacity:
            raise IndexError(position)
        return self.offset + position


class _ForgetsBlockSize(MyBlockTable):
    def slot(self, position):
        super().slot(position)
        index, place = divmod(self.offset + position, self.block_size)
        return self.entries[index] + place


class _CapacityIgnoresOffset(MyBlockTable):
    @property
    def capacity(self):
        return self.num_blocks * self.block_size


class _NoBounds(MyBlockTable):
    def slot(self, position):
        index, place = divmod(self.offset + position, self.block_size)
        return self.entries[index % max(1, len(self.entries))] * self.block_size + place


class _LiveList(MyBlockTable):
    @property
    def block_ids(self):
        return self.entries


class _ClearKeepsOffset(MyBlockTable):
    def clear(self):
        self.entries.clear()


class _PutsInFront(MyBlockTable):
    def append_block(self, block_id):
        self.entries.insert(0, block_id)


class _SlotsInOneRun(MyBlockTable):
    def slots(self, start, stop):
        first = self.slot(start) if stop > start else 0
        return list(range(first, first + stop - start))


class _SharedEntries(MyBlockTable):
    together: list[int] = []  # noqa: RUF012 - the mistake

    def __init__(self, block_size, offset=0):
        super().__init__(block_size, offset)
        self.entries = self.together


class _Untouched:
    def __init__(self, block_size, offset=0):
        self.block_size = block_size
        self.offset = offset
        self.entries = []

    block_ids = num_blocks = capacity = property(lambda self: ...)

    def append_block(self, block_id): ...

    def slot(self, position): ...

    def slots(self, start, stop): ...

    def clear(self): ...


def _table(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write a class MyBlockTable with block_size, offset, block_ids, num_blocks, capacity, "
        "append_block, slot, slots and clear, as described above.",
        judge=_judge_table,
        hints=(
            "Keep the block ids in a list, in logical order. Everything else can be computed from it.",
            "Position p is the (offset + p)-th slot of the row of blocks. divmod by block_size splits that "
            "into an entry and a place.",
            "slot(p) is block_ids[entry] * block_size + place, and IndexError outside [0, capacity).",
        ),
        solution=inspect.getsource(MyBlockTable),
        right=MyBlockTable,
        wrong=(
            ("slot ignores the offset", _IgnoresOffset),
            ("the offset moves the place but not the entry", _OffsetInPlaceOnly),
            ("takes the logical place for the physical one", _LogicalAsPhysical),
            ("adds the block id without multiplying", _ForgetsBlockSize),
            ("capacity ignores the offset", _CapacityIgnoresOffset),
            ("no IndexError outside the capacity", _NoBounds),
            ("block_ids hands out the list itself", _LiveList),
            ("clear keeps the offset", _ClearKeepsOffset),
            ("new blocks are put in front", _PutsInFront),
            ("slots runs on into the neighbouring block", _SlotsInOneRun),
            ("all tables share one list", _SharedEntries),
            ("untouched starter", _Untouched),
        ),
    )


def _judge_table(answer: Any) -> Verdict:
    if not isinstance(answer, type):
        return Verdict(False, f"the answer is a class, not {answer!r}; leave off the brackets")
    for block_size, offset, ids in (
        (4, 0, (7, 3, 12)),
        (4, 2, (7, 3, 12)),
        (3, 1, (0, 5)),
        (1, 0, (9, 2, 4)),
    ):
        try:
            verdict = _walk(answer, block_size, offset, ids)
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(
                False, f"with block_size {block_size}, offset {offset}: {type(error).__name__}: {error}"
            )
        if verdict is not None:
            return verdict
    return Verdict(True, "right for four tables, at every position, inside and outside")


def _walk(table_class: type, block_size: int, offset: int, ids: tuple[int, ...]) -> Verdict | None:
    """Grow a table block by block and compare it with the row of slots, written out one by one."""
    table, other = table_class(block_size, offset), table_class(block_size)
    row: list[int] = []
    for count, block_id in enumerate(ids, 1):
        kept = table.block_ids
        table.append_block(block_id)
        row += range(block_id * block_size, (block_id + 1) * block_size)
        wanted = row[offset:]
        now = f"block_size {block_size}, offset {offset}, after append_block({block_id}): "
        for name, true in (("block_ids", ids[:count]), ("num_blocks", count), ("capacity", len(wanted))):
            said = getattr(table, name)
            if said is ...:
                return Verdict(False, f"not answered yet: {name} is still ...")
            if said != true:
                return Verdict(
                    False, f"{now}{name} is {said}, should be {true}", "I5" if name == "capacity" else None
                )
        if kept == table.block_ids:
            return Verdict(False, f"{now}a block_ids that was read before changed, too; hand out a tuple")
        for position, slot in enumerate(wanted):
            said = table.slot(position)
            if said != slot:
                owner = f"block {said // block_size}" if isinstance(said, int) else "no block"
                return Verdict(
                    False,
                    f"{now}first divergence at slot({position}): {said} ({owner}), should be {slot} "
                    f"(block {slot // block_size})",
                    "I5",
                )
        said = table.slots(0, len(wanted))
        if not hasattr(said, "__len__"):
            return Verdict(False, f"slots(…) is {said!r}; make it a list")
        if list(said) != wanted:
            return Verdict(
                False,
                f"{now}slots(0, {len(wanted)}) is {list(said)}, should be {wanted}",
                "I5",
            )
        for outside in (-1, len(wanted)):
            try:
                said = table.slot(outside)
            except IndexError:
                continue
            return Verdict(
                False, f"{now}slot({outside}) is {said}; outside the capacity it must raise IndexError", "I5"
            )
    if tuple(other.block_ids):
        return Verdict(False, "two tables share their entries; each needs a list of its own", "I2")
    table.clear()
    if tuple(table.block_ids) or table.offset:
        return Verdict(
            False,
            f"after clear, block_ids is {table.block_ids} and offset {table.offset}; should be () and 0",
        )
    return None


EXERCISES = {"02.slot": _slot, "02.new_block": _new_block, "02.table": _table}
WITH_VARIANTS = ("02.slot",)
