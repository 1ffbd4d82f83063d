"""The manager by hand: exact ids, the exact order of the free queue, the figures, and what observers hear."""

import subprocess
import sys
from typing import Any

import pytest

from minikv.block_table import BlockTable
from minikv.manager import KVBlock, KVCacheManager, Observer, Table, letters
from minikv.pool import BlockPool
from tests.books import ListeningPool


def test_blocks_come_from_the_head_and_go_to_the_tail() -> None:
    m, a, b = KVCacheManager(6, 4), BlockTable(4), BlockTable(4)
    assert m.allocate(a, 9)
    assert m.allocate(b, 4)
    assert (a.block_ids, b.block_ids, m.free_queue) == ((0, 1, 2), (3,), (4, 5))
    m.free(a)  # last block first: the head of the sequence is handed out last
    assert m.free_queue == (4, 5, 2, 1, 0)
    assert m.allocate(b, 13)
    assert (b.block_ids, m.free_queue) == ((3, 4, 5, 2), (1, 0))
    m.check()


def test_growing_takes_a_block_only_at_the_edge() -> None:
    m, t = KVCacheManager(4, 4), BlockTable(4)
    held = []
    for tokens in range(1, 14):
        assert m.allocate(t, tokens)
        held.append(t.num_blocks)
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4]
    assert m.allocate(t, 2), "fewer tokens than it has room for: nothing to do"
    assert t.num_blocks == 4


def test_a_shared_block_stays_until_the_last_holder_leaves() -> None:
    m, a = KVCacheManager(6, 4), BlockTable(4)
    m.allocate(a, 8)
    b = m.fork(a)
    m.inc_ref(1)
    m.free(a)
    assert (m.free_queue, m.blocks[0].ref_count, m.blocks[1].ref_count) == ((2, 3, 4, 5), 1, 2)
    m.free(b)
    assert m.free_queue == (2, 3, 4, 5, 0)
    m.dec_ref(1)
    assert m.free_queue == (2, 3, 4, 5, 0, 1)
    m.check()


def test_a_fork_is_a_table_of_the_same_kind_over_the_same_blocks() -> None:
    class Own(BlockTable):
        pass

    m, a = KVCacheManager(6, 4), Own(4, 3)
    m.allocate(a, 6)
    b = m.fork(a, "twin")
    assert (type(b), b.block_ids, b.offset, b.name, a.name) == (Own, a.block_ids, 3, "twin", None)
    m.allocate(b, 14)
    assert a.num_blocks == 3
    assert b.num_blocks == 5


def test_copy_on_write_copies_the_block_of_that_position_only() -> None:
    pool = ListeningPool()
    m, a = KVCacheManager(8, 4, pool), BlockTable(4, 2)
    m.allocate(a, 10)  # 2 + 10 slots: blocks 0, 1, 2
    b = m.fork(a)
    assert m.copy_on_write(b, 2) == (1, 3)
    assert (a.block_ids, b.block_ids, pool.calls) == ((0, 1, 2), (0, 3, 2), [("copy", 1, 3)])
    assert m.copy_on_write(b, 5) is None
    assert m.copy_on_write(a, 5) is None
    assert m.copy_on_write(a, 1) == (0, 4)
    m.check()


def test_with_a_cache_as_holder_the_only_table_copies_too() -> None:
    m, a = KVCacheManager(4, 4), BlockTable(4)
    m.allocate(a, 3)
    m.inc_ref(0)
    assert m.copy_on_write(a, 2) == (0, 1)
    m.dec_ref(0)
    assert m.free_queue == (2, 3, 0)


def test_the_pool_forgets_what_is_released() -> None:
    import torch

    pool = BlockPool(4, 4, num_layers=1, num_kv_heads=1, head_dim=2)
    m, a = KVCacheManager(4, 4, pool), BlockTable(4)
    m.allocate(a, 4)
    pool.write(0, a.slots(0, 4), torch.ones(4, 1, 2), torch.ones(4, 1, 2))
    b = m.fork(a)
    assert m.copy_on_write(b, 0) == (0, 1)
    assert pool.read_layer(0, [b], [4])[0].sum() == 8
    m.free(a)
    m.allocate(a, 12)  # 2, 3, and block 0 again
    assert a.block_ids == (2, 3, 0)
    with pytest.raises(Exception, match=r"I6 written-first: .*slot 0 of block 2"):
        pool.read_layer(0, [a], [12])


def test_the_figures() -> None:
    m, a, b = KVCacheManager(8, 4), BlockTable(4), BlockTable(4)
    assert m.snapshot() == {
        "allocated_blocks": 0,
        "utilization": 0.0,
        "max_allocated": 0,
        "total_blocks": 8,
        "free_blocks": 8,
        "used_blocks": [],
        "ref_counts": {},
    }
    m.allocate(a, 8)
    m.allocate(b, 16)
    m.fork(b)
    m.free(a)
    assert m.snapshot() == {
        "allocated_blocks": 4,
        "utilization": 0.5,
        "max_allocated": 6,
        "total_blocks": 8,
        "free_blocks": 4,
        "used_blocks": [2, 3, 4, 5],
        "ref_counts": {2: 2, 3: 2, 4: 2, 5: 2},
    }
    assert (m.num_blocks, m.num_free_blocks, m.allocated_blocks, m.max_allocated) == (8, 4, 4, 6)
    assert len(m.tables) == 2


def test_the_defaults_are_the_chapters() -> None:
    m = KVCacheManager()
    assert (m.num_blocks, m.block_size, m.pool, m.observer) == (16384, 16, None, None)


def test_a_block_says_what_it_is() -> None:
    block = KVBlock(7)
    assert (repr(block), block.is_free) == ("KVBlock(block_id=7, ref_count=0)", True)


def test_the_names_that_others_import_are_here() -> None:
    assert [letters(number) for number in (0, 1, 25, 26, 27, 701, 702)] == "A B Z AA AB ZZ AAA".split()
    assert Observer is not None
    assert Table.__name__ == "Table"


@pytest.mark.parametrize("module", ["manager", "invariants", "protocols", "admission", "news", "checks"])
def test_the_books_need_no_array_library(module: str) -> None:
    code = f"import sys, minikv.{module}\nprint({{'torch', 'numpy'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# ---- observers -------------------------------------------------------------------------------------------


def test_an_observer_sees_whole_books() -> None:
    """It hears of an operation when this is over, so that it may look at the manager, or even check it."""
    seen: list[tuple[str, int]] = []

    def look(event: dict[str, Any]) -> None:
        if event["op"] != "pool":
            m.check()
            seen.append((event["op"], m.num_free_blocks))

    m = KVCacheManager(4, 4, observer=look)
    a = BlockTable(4)
    m.allocate(a, 8)
    m.free(a)
    assert seen == [("allocate", 2)] * 2 + [("drop", 4), ("release", 4)] * 2


OPERATIONS = {
    "allocate": lambda m, t: m.allocate(t, 12),
    "allocate, full": lambda m, t: m.allocate(t, 99),
    "free": lambda m, t: m.free(t),
    "inc_ref": lambda m, t: m.inc_ref(0),
    "dec_ref": lambda m, t: m.dec_ref(0),
    "fork": lambda m, t: m.fork(t),
    "copy_on_write": lambda m, t: m.copy_on_write(t, 0),
    "drop_front": lambda m, t: m.drop_front(t, 6),
    "note_write": lambda m, t: m.note_write(t, 7, 8),
    "release_all": lambda m, t: m.release_all(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_observer_that_raises_leaves_the_operation_done(name: str) -> None:
    """Compared with the same operation that nobody observes."""

    def scene(observer: Observer | None) -> KVCacheManager:
        m, table = KVCacheManager(8, 4), BlockTable(4)
        m.allocate(table, 8)
        m.copy_on_write(m.fork(table), 7)
        m.inc_ref(0)
        m.observer = observer
        if observer is None:
            OPERATIONS[name](m, table)
        else:
            with pytest.raises(RuntimeError, match="not today"):
                OPERATIONS[name](m, table)
        m.check()
        return m

    def refuse(event: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    watched, alone = scene(refuse), scene(None)
    assert watched.snapshot() == alone.snapshot()
    assert watched.free_queue == alone.free_queue
    assert [t.block_ids for t in watched.tables] == [t.block_ids for t in alone.tables]
    heard: list[dict[str, Any]] = []
    watched.observer = heard.append
    watched.allocate(BlockTable(4, name="next"), 4)
    assert [event["request"] for event in heard] == ["next"], "what was not told is lost, not told later"
