"""Every way of reading gives what every other one gives, within 1e-5, over shapes known to go wrong."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
import torch
from torch import Tensor

from minikv.attention import paged_attention
from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool
from tests.attention.test_attention import READERS

LIMIT = 1e-5
LONG = 32 * 1024


class Cache:
    """A manager and a pool full of NaN; requests came and went before, so that free blocks lie shuffled."""

    def __init__(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> None:
        self.pool = BlockPool(num_blocks, block_size, 1, kv_heads, head_dim)
        self.pool.kv.fill_(math.nan)
        self.manager = KVCacheManager(num_blocks, block_size, self.pool)
        tables = [self.request(block_size) for _ in range(num_blocks)]
        random.Random(num_blocks).shuffle(tables)
        for table in tables:
            self.manager.free(table)
        self.pool.kv.fill_(math.nan)  # what was freed is poison, too

    def request(self, length: int) -> BlockTable:
        table = BlockTable(self.pool.block_size)
        assert self.manager.allocate(table, length)
        self.store(table, 0, length)
        return table

    def store(self, table: BlockTable, start: int, stop: int) -> None:
        self.manager.note_write(table, start, stop)
        _, _, _, kv_heads, _, head_dim = self.pool.kv.shape
        k, v = torch.randn(2, stop - start, kv_heads, head_dim)
        self.pool.write(0, table.slots(start, stop), k, v)


def assert_agreement(q: Tensor, pool: BlockPool, tables: list[BlockTable], lengths: list[int]) -> None:
    """Against the most straightforward reading there is: slot by slot, in 64 bits, no softmax trick."""
    for backend in READERS:
        out = paged_attention(q, pool, 0, tables, lengths, backend=backend)
        for row, query, table, length in zip(out, q, tables, lengths, strict=True):
            difference = (row - plain(query, pool, table, length)).abs().max()
            assert difference < LIMIT, (backend, length, float(difference))


def plain(q: Tensor, pool: BlockPool, table: BlockTable, length: int) -> Tensor:
    slots = torch.from_numpy(table.slots(0, length))
    k, v = pool.kv[0, slots // pool.block_size, :, :, slots % pool.block_size].double().unbind(1)
    k, v = (x.repeat_interleave(q.shape[0] // k.shape[1], 1) for x in (k, v))  # [length, heads, head_dim]
    weights = torch.einsum("hd,lhd->hl", q.double(), k).mul(q.shape[1] ** -0.5).softmax(-1)
    return torch.einsum("hl,lhd->hd", weights, v).float()


@pytest.mark.parametrize(
    ("block_size", "heads", "head_dim"), list(product((1, 4, 16, 64), ((4, 4), (6, 2)), (8, 32)))
)
def test_around_the_block_boundaries(block_size: int, heads: tuple[int, int], head_dim: int) -> None:
    torch.manual_seed(block_size)
    lengths = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 3 * block_size + 1})
    cache = Cache(sum(-(-n // block_size) for n in lengths) + 3, block_size, heads[1], head_dim)
    tables = [cache.request(length) for length in lengths]
    assert_agreement(torch.randn(len(lengths), heads[0], head_dim), cache.pool, tables, lengths)


def test_one_request_alone_and_256_together() -> None:
    torch.manual_seed(0)
    lengths = [1 + (7 * i) % 40 for i in range(256)]
    cache = Cache(sum(-(-n // 16) for n in lengths), 16, 2, 8)
    tables = [cache.request(length) for length in lengths]
    q = torch.randn(256, 2, 8)
    assert_agreement(q, cache.pool, tables, lengths)
    assert_agreement(q[5:6], cache.pool, tables[5:6], lengths[5:6])


def test_a_long_request_beside_a_short_one() -> None:
    torch.manual_seed(1)
    cache = Cache(LONG // 16 + 2, 16, 1, 16)
    lengths = [LONG, 1]
    tables = [cache.request(length) for length in lengths]
    assert_agreement(torch.randn(2, 2, 16), cache.pool, tables, lengths)


def test_shared_blocks_and_a_window() -> None:
    """A fork reads its parent's blocks, and after copy-on-write its own; a window begins inside a block."""
    torch.manual_seed(2)
    cache = Cache(12, 4, 2, 8)
    parent = cache.request(10)
    child = cache.manager.fork(parent)
    assert cache.manager.copy_on_write(child, 10)
    cache.store(child, 10, 11)
    window = cache.request(9)
    cache.manager.drop_front(window, 6)
    assert window.offset == 2
    assert_agreement(torch.randn(3, 4, 8), cache.pool, [parent, child, window], [10, 11, 3])


def test_blocks_larger_than_what_is_looked_at_in_one_go() -> None:
    """A GPU's program takes 64 places of 60 numbers at a time: 150 are three goes, the last not full."""
    torch.manual_seed(3)
    cache = Cache(14, 150, 2, 60)
    lengths = [1, 64, 65, 128, 129, 150, 151, 301]
    tables = [cache.request(length) for length in lengths]
    window = cache.request(290)
    cache.manager.drop_front(window, 130)
    assert window.offset == 130
    assert_agreement(torch.randn(9, 4, 60), cache.pool, [*tables, window], [*lengths, 160])
