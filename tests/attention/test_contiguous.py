"""Reading slices of a pool of one block, against `reference`, and what must be refused instead of read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minikv import attention
from minikv.attention import paged_attention
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.engine.contiguous import Run
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool
from tests.attention.test_attention import READERS

EVERY_WAY = [*READERS, "contiguous", "auto"]


class Stored:
    """Runs with a gap of one slot between them, in a pool of one block that is full of poison."""

    def __init__(
        self,
        lengths: list[int],
        kv_heads: int = 2,
        head_dim: int = 8,
        spare: int = 2,
        poison: float = math.nan,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(sum(lengths))
        num_slots = sum(lengths) + (spare + 1) * len(lengths) + 1
        self.pool = BlockPool(1, num_slots, 2, kv_heads, head_dim, dtype=dtype)
        self.pool.kv.fill_(poison)
        self.lengths, self.tables, start = lengths, list[Run](), 1
        for length in lengths:
            table = Run(num_slots)
            table.place(start, length + spare)
            self.tables.append(table)
            self.pool.write(1, table.slots(0, length), *torch.randn(2, length, kv_heads, head_dim).to(dtype))
            start += length + spare + 1

    def read(self, q: Tensor, backend: str, scale: float | None = None) -> Tensor:
        return paged_attention(q, self.pool, 1, self.tables, self.lengths, scale, backend)


def assert_same(stored: Stored, q: Tensor, scale: float | None = None, limit: float = 1e-5) -> None:
    out = stored.read(q, "contiguous", scale)
    assert out.dtype == q.dtype and out.shape == q.shape and out.isfinite().all()
    torch.testing.assert_close(out, stored.read(q, "reference", scale), atol=limit, rtol=limit)


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (5, 1), (3, 3), (48, 4)])
@pytest.mark.parametrize("num_new", [1, 2, 7])
def test_lengths_chunks_and_grouped_heads(num_new: int, heads: tuple[int, int]) -> None:
    lengths = [7, 8, 9, 40, 100]
    stored = Stored(lengths, kv_heads=heads[1])
    assert_same(stored, torch.randn(len(lengths), num_new, heads[0], 8))


@pytest.mark.parametrize("length", [1, 2, 511, 512, 513, 1300])
def test_one_request_of_any_length(length: int) -> None:
    assert_same(Stored([length], head_dim=64), torch.randn(1, 4, 64))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_all_around(poison: float) -> None:
    assert_same(Stored([5, 3, 8], poison=poison), torch.randn(3, 3, 4, 8))


def test_scale_and_large_scores() -> None:
    assert_same(Stored([9]), torch.randn(1, 4, 8), scale=1.7)
    assert_same(Stored([9]), 300 * torch.randn(1, 4, 8))


def test_bfloat16() -> None:
    assert_same(Stored([9, 30], dtype=torch.bfloat16), torch.randn(2, 4, 8).bfloat16(), limit=2e-2)
    assert_same(Stored([9, 30], dtype=torch.bfloat16), torch.randn(2, 4, 8))  # read in float32


def test_empty_rows_and_no_rows_give_zeros() -> None:
    out = Stored([5, 0, 3]).read(torch.randn(3, 2, 4, 8), "contiguous")
    assert out[0].any() and not out[1].any() and out[2].any()
    assert Stored([]).read(torch.zeros(0, 4, 8), "contiguous").shape == (0, 4, 8)


@pytest.mark.parametrize(("heads", "num_new"), [(2, 1), (6, 1), (6, 3)])
def test_nothing_is_copied(monkeypatch: pytest.MonkeyPatch, heads: int, num_new: int) -> None:
    """What torch's attention gets are views of the pool's own memory, grouped heads or not."""
    stored, kernel = Stored([5, 9]), F.scaled_dot_product_attention
    seen: list[tuple[int, int]] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        assert "enable_gqa" not in options and q.shape[1] == k.shape[1]
        seen.append((k.data_ptr(), v.data_ptr()))
        return kernel(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    stored.read(torch.randn(2, num_new, heads, 8), "contiguous")
    kv = stored.pool.kv[1, 0]
    assert seen == [
        (kv[0, 0, table.offset].data_ptr(), kv[1, 0, table.offset].data_ptr()) for table in stored.tables
    ]


def test_a_block_table_and_an_array_of_tables_are_read_too() -> None:
    stored = Stored([9])
    table, q = BlockTable(stored.pool.block_size, 1), torch.randn(1, 4, 8)
    table.append_block(0)
    expected = stored.read(q, "contiguous")
    array = TableArray(np.zeros((1, 1), dtype=np.int32), [1])
    for tables in ([table], array):
        assert torch.equal(paged_attention(q, stored.pool, 1, tables, [9], backend="contiguous"), expected)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", EVERY_WAY)
def test_no_way_of_reading_gets_past_the_end_of_a_run(backend: str) -> None:
    """The slots behind are written, by the next request: only the table knows that they are not its own."""
    stored = Stored([5, 6], spare=0)
    stored.pool.write(1, range(stored.pool.block_size), *torch.randn(2, stored.pool.block_size, 2, 8))
    stored.lengths[0] = 6
    with pytest.raises(IndexError, match=r"\[0, 6\) reach outside \[0, 5\)"):
        stored.read(torch.randn(2, 4, 8), backend)


@pytest.mark.parametrize("backend", EVERY_WAY)
def test_no_way_of_reading_gets_at_reserved_slots_that_were_never_written(backend: str) -> None:
    stored = Stored([5], spare=2)
    stored.lengths[0] = 6
    with pytest.raises(UnwrittenSlotError, match="I6"):
        stored.read(torch.randn(1, 4, 8), backend)


def test_a_pool_of_blocks_is_refused_and_told_the_way_out() -> None:
    pool, table = BlockPool(4, 4, 1, 2, 8), BlockTable(4)
    with pytest.raises(ValueError, match=r'one block, and this one has 4; read it with "gather"'):
        paged_attention(torch.randn(1, 4, 8), pool, 0, [table], [0], backend="contiguous")


def test_slots_that_are_no_run_are_refused() -> None:
    class Backwards:
        def slots(self, start: int, stop: int) -> np.ndarray:
            return np.arange(9 - start, 9 - stop, -1)

    stored = Stored([9])
    with pytest.raises(ValueError, match=r'begin at 9 and end at 1, but are no run of 9: .*"gather"'):
        paged_attention(torch.randn(1, 4, 8), stored.pool, 1, [Backwards()], [9], backend="contiguous")


@pytest.mark.parametrize(("lengths", "error"), [([-1], ValueError), ([12], IndexError), ([5, 5], ValueError)])
def test_lengths(lengths: list[int], error: type[Exception]) -> None:
    stored = Stored([9])
    stored.lengths = lengths
    with pytest.raises(error, match=r"length|capacity"):
        stored.read(torch.randn(1, 4, 8), "contiguous")


# ---- auto ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "dtype", "best"),
    [
        (1, torch.float32, "cpu"),
        (1, torch.bfloat16, "cpu"),
        (1, torch.float16, "contiguous"),
        (3, torch.float16, "gather"),
    ],
)
def test_auto_knows_runs(blocks: int, dtype: torch.dtype, best: str) -> None:
    """The compiled kernel walks a run as it walks any block table."""
    pool = BlockPool(blocks, 8, 1, 1, 8, dtype=dtype)
    assert attention._best(pool, [Run(8)]) == attention._best(pool, [BlockTable(8)]) == best
