"""Faults that real systems had, played through to exact block ids, counts and queues.

The numbers are those of the reports; what they say went wrong is told at each case.
"""

import pytest

from minikv.block_table import BlockTable
from minikv.decode import DecodeLoop
from minikv.errors import OutOfBlocksError, RefCountError
from minikv.gpt2 import GPT2
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained()


def counts(manager: KVCacheManager) -> dict[int, int]:
    manager.check()
    counted: dict[int, int] = manager.snapshot()["ref_counts"]
    return counted


# ---- 1. sharing past a sliding window (vLLM 1556) -------------------------------------------------------


def test_case_1_a_window_slides_over_shared_blocks() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    assert m.allocate(t, 12)
    assert t.block_ids == (0, 1, 2)
    f = m.fork(t)
    m.drop_front(t, 4)
    assert t.block_ids == (1, 2)
    assert m.num_free_blocks == 5
    assert m.allocate(t, 12)
    assert t.block_ids == (1, 2, 3)
    assert counts(m) == {0: 1, 1: 2, 2: 2, 3: 1}
    m.free(t)
    assert m.num_free_blocks == 5
    assert m.free_queue == (4, 5, 6, 7, 3)
    m.free(f)
    assert m.free_queue == (4, 5, 6, 7, 3, 2, 1, 0)
    assert sorted(m.free_queue) == list(range(8))


def test_case_1_the_other_way_round_the_fork_goes_first() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    m.allocate(t, 12)
    f = m.fork(t)
    m.drop_front(t, 4)
    m.allocate(t, 12)
    m.free(f)
    assert (m.free_queue, counts(m)) == ((4, 5, 6, 7, 0), {1: 1, 2: 1, 3: 1})
    m.free(t)
    assert m.free_queue == (4, 5, 6, 7, 0, 3, 2, 1)


def test_case_1_a_fork_of_what_slid_starts_where_it_starts() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    m.allocate(t, 12)
    m.drop_front(t, 6)
    f = m.fork(t)
    assert (f.block_ids, f.offset, f.capacity, m.free_queue) == ((1, 2), 2, 6, (3, 4, 5, 6, 7, 0))
    assert [f.slot(p) for p in range(6)] == [t.slot(p) for p in range(6)] == [6, 7, 8, 9, 10, 11]


# ---- 2. a count below zero (mllm 656) -------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["dec_ref", "inc_ref"])
def test_case_2_no_reference_to_a_free_block(operation: str) -> None:
    m, t = KVCacheManager(4, 4), BlockTable(4)
    before = m.snapshot()
    with pytest.raises(RefCountError, match=r"I2 ref-count: block 0 is free, its count is 0"):
        getattr(m, operation)(0)
    assert (m.snapshot(), m.free_queue) == (before, (0, 1, 2, 3))
    assert m.allocate(t, 4)
    assert (t.block_ids, counts(m)) == ((0,), {0: 1})


def test_case_2_once_more_than_it_was_taken() -> None:
    m, t = KVCacheManager(4, 4), BlockTable(4)
    m.allocate(t, 4)
    m.inc_ref(0)
    m.free(t)
    m.dec_ref(0)
    assert m.free_queue == (1, 2, 3, 0)
    with pytest.raises(RefCountError, match="block 0"):
        m.dec_ref(0)
    assert (m.free_queue, counts(m)) == ((1, 2, 3, 0), {})


# ---- 3. an allocation that fails half-way (kvcached 364); 4. a roll-back too far (inference-sim 1061)


def a_and_b() -> tuple[KVCacheManager, BlockTable, BlockTable]:
    m, a, b = KVCacheManager(4, 4), BlockTable(4), BlockTable(4)
    assert m.allocate(a, 8)
    assert m.allocate(b, 4)
    assert (a.block_ids, b.block_ids) == ((0, 1), (2,))
    return m, a, b


def test_case_3_all_or_nothing() -> None:
    m, _, b = a_and_b()
    before = m.snapshot()
    assert m.allocate(b, 16) is False
    assert (b.block_ids, m.free_queue) == ((2,), (3,))
    assert m.snapshot() == before
    assert counts(m) == {0: 1, 1: 1, 2: 1}


def test_case_3_exactly_what_is_there_is_given() -> None:
    m, _, b = a_and_b()
    assert m.allocate(b, 9) is False
    assert m.allocate(b, 8) is True
    assert (b.block_ids, m.free_queue, m.utilization) == ((2, 3), (), 1.0)


def test_case_4_a_refusal_took_nothing_so_nothing_is_given_back() -> None:
    m, a, b = a_and_b()
    m.allocate(b, 16)
    m.free(b)
    assert (m.num_free_blocks, m.free_queue) == (2, (3, 2))
    assert counts(m) == {0: 1, 1: 1}
    m.free(a)
    assert (m.num_free_blocks, m.free_queue) == (4, (3, 2, 1, 0))


def test_case_4_freeing_twice_frees_once() -> None:
    m, _, b = a_and_b()
    m.free(b)
    m.free(b)
    assert (m.free_queue, counts(m)) == ((3, 2), {0: 1, 1: 1})


# ---- 5. a missed copy-on-write (atlas 1193) -------------------------------------------------------------


class Lists:
    """A pool of plain lists."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.rows: list[list[str | None]] = [[None] * block_size for _ in range(num_blocks)]

    def copy_block(self, src: int, dst: int) -> None:
        self.rows[dst] = list(self.rows[src])

    def release(self, block_id: int) -> None:
        self.rows[block_id] = [None] * len(self.rows[block_id])

    def write(self, table: BlockTable, position: int, word: str) -> None:
        block, place = divmod(table.slot(position), table.block_size)
        self.rows[block][place] = word

    def read(self, table: BlockTable, length: int) -> list[str | None]:
        return [self.rows[table.slot(p) // table.block_size][table.slot(p) % 4] for p in range(length)]


def test_case_5_two_writers_part_ways() -> None:
    pool = Lists(8, 4)
    m, t = KVCacheManager(8, 4, pool), BlockTable(4)
    m.allocate(t, 6)
    m.note_write(t, 0, 6)
    for position, word in enumerate("abcdef"):
        pool.write(t, position, word)
    f = m.fork(t)
    assert m.copy_on_write(t, 6) == (1, 2)
    assert m.copy_on_write(f, 6) is None
    assert counts(m) == {0: 2, 1: 1, 2: 1}
    assert (t.block_ids, f.block_ids) == ((0, 2), (0, 1))
    for table, word in ((t, "g"), (f, "h")):  # not the same word: identical writers hide the fault
        m.note_write(table, 6, 7)
        pool.write(table, 6, word)
    assert pool.read(t, 7) == list("abcdefg")
    assert pool.read(f, 7) == list("abcdefh")
    assert pool.rows[1][:2] == pool.rows[2][:2] == ["e", "f"]


def test_case_5_three_writers_copy_twice() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    m.allocate(t, 6)
    f, g = m.fork(t), m.fork(t)
    assert [m.copy_on_write(each, 6) for each in (t, f, g)] == [(1, 2), (1, 3), None]
    assert counts(m) == {0: 3, 1: 1, 2: 1, 3: 1}


def test_case_5_without_a_free_block_both_keep_sharing() -> None:
    m, t = KVCacheManager(2, 4), BlockTable(4)
    m.allocate(t, 6)
    f = m.fork(t)
    with pytest.raises(OutOfBlocksError, match="block 1 is shared by 2 and no block is free"):
        m.copy_on_write(f, 6)
    assert (counts(m), t.block_ids, f.block_ids) == ({0: 2, 1: 2}, (0, 1), (0, 1))


# ---- 6. aliased id lists (omlx 391): the manager's half; a prefix cache keeps ids, not tables -----------


def test_case_6_ids_that_were_read_do_not_follow_the_table() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    m.allocate(t, 8)
    kept = t.block_ids
    for block_id in kept:
        m.inc_ref(block_id)
    m.allocate(t, 12)
    assert m.copy_on_write(t, 4) == (1, 3)
    m.free(t)
    assert (kept, counts(m)) == ((0, 1), {0: 1, 1: 1})
    again = BlockTable(4)
    for block_id in kept:
        m.inc_ref(block_id)
        again.append_block(block_id)
    assert m.allocate(again, 9)
    assert (again.block_ids, counts(m)) == ((0, 1, 4), {0: 2, 1: 2, 4: 1})


# ---- 7. an offset ignored (the chapter's E4) --------------------------------------------------------------


def test_case_7_the_offset_takes_room() -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4, offset=2)
    assert m.allocate(t, 8)
    assert (t.num_blocks, t.capacity) == (3, 10)
    assert m.allocate(t, 10)
    assert t.num_blocks == 3
    assert m.allocate(t, 11)
    assert t.num_blocks == 4


@pytest.mark.parametrize(
    ("dropped", "block_ids", "offset", "capacity"),
    [
        (0, (0, 1, 2), 0, 12),
        (3, (0, 1, 2), 3, 9),
        (4, (1, 2), 0, 8),
        (6, (1, 2), 2, 6),
        (11, (2,), 3, 1),
        (12, (), 0, 0),
    ],
)
def test_case_7_dropping_the_front(
    dropped: int, block_ids: tuple[int, ...], offset: int, capacity: int
) -> None:
    m, t = KVCacheManager(8, 4), BlockTable(4)
    m.allocate(t, 10)
    m.drop_front(t, dropped)
    assert (t.block_ids, t.offset, t.capacity) == (block_ids, offset, capacity)
    assert m.free_queue == (3, 4, 5, 6, 7, *range(3 - len(block_ids)))
    m.check()


# ---- 8. exact multiples (nano-vllm 30, 91, 150, 240) ------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "blocks"),
    [(3, 1, 1), (3, 2, 1), (3, 3, 2), (4, 1, 1), (4, 2, 2), (4, 5, 2), (4, 6, 3), (1, 4, 1), (1, 5, 2)],
)
def test_case_8_the_last_tokens_kv_is_never_stored(model: GPT2, prompt: int, new: int, blocks: int) -> None:
    """A token's KV is stored when it is fed to the model: prompt + new - 1 slots, ceil(… / 4) blocks."""
    assert blocks == -(-(prompt + new - 1) // 4)
    pool = BlockPool(blocks, 4, model.num_layers, model.num_heads, model.head_dim)
    m = KVCacheManager(blocks, 4, pool)
    assert [len(ids) for ids in DecodeLoop(model, m, pool).generate([list(range(prompt))], new)] == [new]
    assert (m.max_allocated, m.num_free_blocks) == (blocks, blocks)


def test_case_8_one_block_less_is_not_enough(model: GPT2) -> None:
    pool = BlockPool(1, 4, model.num_layers, model.num_heads, model.head_dim)
    m = KVCacheManager(1, 4, pool)
    with pytest.raises(OutOfBlocksError):
        DecodeLoop(model, m, pool).generate([[0, 1, 2, 3]], 2)
    assert m.num_free_blocks == 1


def test_case_8_the_other_convention_stores_the_newest_token_too() -> None:
    """Who appends the token before asking (nano-vllm) needs a block when len % block_size == 1."""
    for appended in range(2, 14):
        ours = (appended - 1) % 4 == 0  # stored before this token: a multiple fills all blocks
        assert ours == (appended % 4 == 1)
    assert not any(appended % 1 == 1 for appended in range(14)), "with blocks of one slot, == 1 never holds"


def test_case_8_filling_a_block_to_the_brim_needs_no_block() -> None:
    m, t, other = KVCacheManager(2, 4), BlockTable(4), BlockTable(4)
    m.allocate(t, 3)
    m.allocate(other, 4)
    assert m.num_free_blocks == 0
    assert m.allocate(t, 4) is True
    assert m.allocate(t, 5) is False
    assert (t.block_ids, m.free_queue) == ((0,), ())


def test_case_8_blocks_of_one_slot() -> None:
    m, t = KVCacheManager(4, 1), BlockTable(1)
    for tokens in range(1, 5):
        assert m.allocate(t, tokens)
        assert t.num_blocks == tokens
    assert m.allocate(t, 5) is False
