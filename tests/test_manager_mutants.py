"""Would the tests notice? Managers that are wrong in one point each; the random walk must catch every one."""

from typing import Any

import pytest

from minikv import admission
from minikv.errors import KVCacheError
from minikv.kv_block import KVBlock
from minikv.manager import KVCacheManager
from tests.books import Walk

MUTANTS: dict[str, type[KVCacheManager]] = {}


def mutant(kind: type[KVCacheManager]) -> type[KVCacheManager]:
    MUTANTS[kind.__name__] = kind
    return kind


# ---- I1 conservation ----------------------------------------------------------------------------------


@mutant
class HandsOutWithoutDequeuing(KVCacheManager):
    def _take(self) -> int:
        block_id = super()._take()
        self._free.appendleft(block_id)
        return block_id


@mutant
class QueuesAFreedBlockTwice(KVCacheManager):
    def _release(self, block_id: int) -> None:
        super()._release(block_id)
        self._free.append(block_id)


@mutant
class LosesFreedBlocks(KVCacheManager):
    def _release(self, block_id: int) -> None:
        super()._release(block_id)
        self._free.pop()


@mutant
class AllocatesWhatThereIs(KVCacheManager):
    """Not all or nothing: what is free is given, and then False."""

    def allocate(self, table: Any, num_tokens: int) -> bool:
        if super().allocate(table, num_tokens):
            return True
        super().allocate(table, (table.num_blocks + self.num_free_blocks) * self.block_size - table.offset)
        return False


@mutant
class IgnoresTheOffset(KVCacheManager):
    def allocate(self, table: Any, num_tokens: int) -> bool:
        return super().allocate(table, max(0, num_tokens - table.offset) if num_tokens > 0 else num_tokens)


@mutant
class AllocatesABlockTooMany(KVCacheManager):
    """`num_tokens // block_size + 1`, wrong at exact multiples only."""

    def allocate(self, table: Any, num_tokens: int) -> bool:
        exact = num_tokens > 0 and (num_tokens + table.offset) % self.block_size == 0
        return super().allocate(table, num_tokens + exact)


@mutant
class StacksTheFreeBlocks(KVCacheManager):
    """LIFO."""

    def _release(self, block_id: int) -> None:
        super()._release(block_id)
        self._free.rotate(1)


@mutant
class TakesFromTheTail(KVCacheManager):
    def _take(self) -> int:
        self._free.rotate(1)
        return super()._take()


@mutant
class FreesHeadFirst(KVCacheManager):
    def free(self, table: Any) -> None:
        for index, block_id in enumerate(table.block_ids):
            self._drop(table, index, block_id)
        table.clear()
        self._forget(table)


@mutant
class FreesAllButTheLast(KVCacheManager):
    def free(self, table: Any) -> None:
        for index, block_id in enumerate(table.block_ids[:-1]):
            self._drop(table, index, block_id)
        table.clear()
        self._forget(table)


@mutant
class LeavesAFreedTableFilled(KVCacheManager):
    def free(self, table: Any) -> None:
        ids, offset = table.block_ids, table.offset
        super().free(table)
        table.offset = offset
        for block_id in ids:
            table.append_block(block_id)


# ---- I2 ref-count ---------------------------------------------------------------------------------------


@mutant
class FreesWithoutLookingAtTheCount(KVCacheManager):
    def _drop(self, table: Any, index: int, block_id: int) -> None:
        self.blocks[block_id].ref_count = 1
        super()._drop(table, index, block_id)


@mutant
class ForgetsToRelease(KVCacheManager):
    def dec_ref(self, block_id: int) -> None:
        self._hand_back(admission.held_block(self, block_id, "it cannot be given back"))


@mutant
class CountsBelowZero(KVCacheManager):
    def dec_ref(self, block_id: int) -> None:
        block = self.blocks[block_id]
        self._hand_back(block) if block.is_free else super().dec_ref(block_id)


@mutant
class SharesAFreeBlock(KVCacheManager):
    def inc_ref(self, block_id: int) -> None:
        if self.blocks[block_id].is_free:
            self.blocks[block_id].ref_count += 1
        else:
            super().inc_ref(block_id)


@mutant
class TakesNegativeIds(KVCacheManager):
    """Python's own indexing: block -1 is the last one."""

    def inc_ref(self, block_id: int) -> None:
        super().inc_ref(block_id % self.num_blocks)


@mutant
class ForksWithoutCounting(KVCacheManager):
    def _share(self, table: Any, index: int, block_id: int, source: Any) -> None:
        if source is None:
            super()._share(table, index, block_id, source)


@mutant
class CopiesWithoutLettingGo(KVCacheManager):
    """After copy-on-write the source keeps the reference."""

    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        pair = super().copy_on_write(table, position)
        if pair is not None:
            self.blocks[pair[0]].ref_count += 1
        return pair


@mutant
class AdoptsWithoutTheReferences(KVCacheManager):
    """A table filled by hand counts, and the reference taken for it counts once more."""

    def _adopt(self, table: Any) -> None:
        self._keep(table)


@mutant
class ReleasesAllButTheCounts(KVCacheManager):
    def release_all(self) -> None:
        counts = [block.ref_count for block in self.blocks]
        super().release_all()
        for block, count in zip(self.blocks, counts, strict=True):
            block.ref_count = count


@mutant
class LetsOldTablesLive(KVCacheManager):
    """release_all forgets to make the tables void."""

    def release_all(self) -> None:
        tables, stored = dict(self._tables), dict(self._stored)
        super().release_all()
        self._tables, self._stored = tables, stored


@mutant
class ForgetsTheCachesReferences(KVCacheManager):
    """release_all leaves what inc_ref took."""

    def release_all(self) -> None:
        cached = self._cached.copy()
        super().release_all()
        self._cached = cached


# ---- I3 no-repeat ----------------------------------------------------------------------------------------


@mutant
class GivesTheSameBlockTwice(KVCacheManager):
    def allocate(self, table: Any, num_tokens: int) -> bool:
        done = super().allocate(table, num_tokens)
        if table.num_blocks > 1:
            table.replace_block(1, table.block_ids[0])
        return done


# ---- I4 no-shared-write ----------------------------------------------------------------------------------


@mutant
class ForgetsCopyOnWrite(KVCacheManager):
    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        table.slot(position)
        return None


@mutant
class CopiesNoData(KVCacheManager):
    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        pool, self.pool = self.pool, None
        try:
            return super().copy_on_write(table, position)
        finally:
            self.pool = pool


@mutant
class CopiesWithoutTheOffset(KVCacheManager):
    """Looks for the block that `position` would have at offset 0."""

    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        return super().copy_on_write(table, position - table.offset if position > table.offset else position)


@mutant
class CopiesItsOwn(KVCacheManager):
    """A copy although nobody shares the block."""

    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        pair = super().copy_on_write(table, position)
        if pair is None and self._free:
            source, copy = table.slot(position) // self.block_size, self._take()
            table.replace_block((table.offset + position) // self.block_size, copy)
            self.blocks[source].ref_count -= 1
            self._release_if_unheld(self.blocks[source])
            return source, copy
        return pair


@mutant
class WritesAnywhere(KVCacheManager):
    def note_write(self, table: Any, start: int, stop: int, words: Any = ()) -> None:
        try:
            super().note_write(table, start, stop, words)
        except KVCacheError as error:
            if "I4" not in str(error):
                raise


@mutant
class LooksAtTheFirstBlockOnly(KVCacheManager):
    def note_write(self, table: Any, start: int, stop: int, words: Any = ()) -> None:
        super().note_write(table, start, min(stop, start + 1) if stop <= table.capacity else stop, words)


# ---- I5 capacity -----------------------------------------------------------------------------------------


@mutant
class WritesBeyondTheTable(KVCacheManager):
    def note_write(self, table: Any, start: int, stop: int, words: Any = ()) -> None:
        super().note_write(table, start, min(stop, max(start, table.capacity)), words)


@mutant
class DropsButKeepsTheLength(KVCacheManager):
    def drop_front(self, table: Any, num_tokens: int) -> None:
        stored = self._stored.get(id(table))
        super().drop_front(table, num_tokens)
        if stored is not None and id(table) in self._stored:
            self._stored[id(table)] = stored


@mutant
class DropsButKeepsTheOffset(KVCacheManager):
    def drop_front(self, table: Any, num_tokens: int) -> None:
        offset = table.offset
        super().drop_front(table, num_tokens)
        table.offset = offset


@mutant
class DropsTheBack(KVCacheManager):
    def drop_front(self, table: Any, num_tokens: int) -> None:
        ids = table.block_ids
        super().drop_front(table, num_tokens)
        for index in range(table.num_blocks):
            table.replace_block(index, ids[index])


@mutant
class DropsOneTooMany(KVCacheManager):
    """A block goes although its last token stays."""

    def drop_front(self, table: Any, num_tokens: int) -> None:
        last_stays = (table.offset + num_tokens) % self.block_size == self.block_size - 1
        fits = 0 <= num_tokens < table.capacity
        super().drop_front(table, num_tokens + (last_stays and fits))


@mutant
class ForksWithoutTheOffset(KVCacheManager):
    def fork(self, table: Any, name: str | None = None) -> Any:
        child = super().fork(table, name)
        child.offset = 0
        return child


# ---- figures and the pool ----------------------------------------------------------------------------------


@mutant
class ForgetsThePeak(KVCacheManager):
    def _take(self) -> int:
        block_id = super()._take()
        self.max_allocated = len(self._used)
        return block_id


@mutant
class TellsThePoolNothing(KVCacheManager):
    def _release_if_unheld(self, block: KVBlock) -> None:
        pool, self.pool = self.pool, None
        super()._release_if_unheld(block)
        self.pool = pool


def caught(kind: type[KVCacheManager]) -> str | None:
    """What the walk says of this manager; None if it finds nothing."""
    for seed, pool in enumerate([(6, 4), (12, 1), (8, 3)]):
        try:
            Walk(*pool, kind).random_steps(1500, seed)
        except (AssertionError, KVCacheError, ValueError, LookupError) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_every_wrong_manager_is_caught(name: str) -> None:
    said = caught(MUTANTS[name])
    print(f"{name}: {said}")
    assert said is not None, f"{name} went through all random operations unnoticed"


def test_the_right_manager_is_not_caught() -> None:
    assert caught(KVCacheManager) is None
