"""store_and_attend: what write and paged_attention do one after the other, in one call a layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minikv.attention import BACKENDS, paged_attention
from minikv.attention.step import store_and_attend
from minikv.attention.tables import TableArray
from minikv.block_table import BlockTable
from minikv.errors import UnwrittenSlotError
from minikv.pool import BlockPool
from tests.attention.test_attention import READERS

LAYERS, KV_HEADS, HEADS, HEAD_DIM, BLOCK_SIZE = 2, 2, 4, 8, 4
STORED = [6, 9, 1]  # tokens that each request has before the step


def pools(dtype: torch.dtype) -> tuple[BlockPool, BlockPool, list[BlockTable]]:
    """Two pools that hold the same, NaN wherever nothing was written, and tables for both."""
    generator = torch.Generator().manual_seed(0)
    both = [BlockPool(24, BLOCK_SIZE, LAYERS, KV_HEADS, HEAD_DIM, dtype=dtype) for _ in range(2)]
    tables = []
    ids = iter(torch.randperm(24, generator=generator).tolist())
    for offset, _ in zip((0, 3, 1), STORED, strict=True):
        table = BlockTable(BLOCK_SIZE, offset)
        for _ in range(6):
            table.append_block(next(ids))
        tables.append(table)
    for pool in both:
        pool.kv.fill_(math.nan)
    for table, length in zip(tables, STORED, strict=True):
        for layer in range(LAYERS):
            k, v = torch.randn(2, length, KV_HEADS, HEAD_DIM, generator=generator)
            for pool in both:
                pool.write(layer, table.slots(0, length), k, v)
    return both[0], both[1], tables


def as_array(tables: list[BlockTable]) -> TableArray:
    return TableArray(
        np.array([table.block_ids for table in tables], dtype=np.int32),
        np.array([table.offset for table in tables]),
    )


@pytest.mark.parametrize("backend", [*READERS, "auto"])
@pytest.mark.parametrize("num_new", [1, 3, 11])
@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_write_and_read(backend: str, num_new: int, array: bool, dtype: torch.dtype) -> None:
    ours, theirs, tables = pools(dtype)
    lengths = [length + num_new for length in STORED]
    given = as_array(tables) if array else tables
    step = store_and_attend(ours, given, lengths, num_new, backend=backend)
    slots = np.concatenate([t.slots(n - num_new, n) for t, n in zip(tables, lengths, strict=True)])
    for layer in range(LAYERS):
        q = torch.randn(3, num_new, HEADS, HEAD_DIM)
        k, v = torch.randn(2, 3, num_new, KV_HEADS, HEAD_DIM)
        out = step(layer, q, k, v)
        theirs.write(layer, slots, k.flatten(0, 1), v.flatten(0, 1))
        expected = paged_attention(q, theirs, layer, tables, lengths, backend="reference")
        assert out.isfinite().all()
        assert (out - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    assert torch.equal(ours.kv.nan_to_num(7.0), theirs.kv.nan_to_num(7.0))  # the same bits
    for layer in range(LAYERS):
        for a, b in zip(ours.marks(layer), theirs.marks(layer), strict=True):
            assert (a == b).all()


def test_queries_and_keys_may_be_views_of_one_tensor() -> None:
    """As the model hands them over: three parts of each row."""
    ours, theirs, tables = pools(torch.float32)
    lengths = [length + 1 for length in STORED]
    joined = torch.randn(3, 1, 3 * KV_HEADS * HEAD_DIM)
    q, k, v = (x.reshape(3, 1, KV_HEADS, HEAD_DIM) for x in joined.split(KV_HEADS * HEAD_DIM, dim=-1))
    assert not q.is_contiguous()
    out = store_and_attend(ours, tables, lengths, 1, backend="cpu")(0, q, k, v)
    assert torch.equal(out, store_and_attend(theirs, tables, lengths, 1, backend="cpu")(0, *_copied(q, k, v)))


def _copied(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """Every kind of number: ties to even, just beside them, tiny, huge, infinite, NaN."""
    bits = torch.arange(0, 1 << 16, dtype=torch.int32) << 16
    around = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    numbers = (bits[:, None] | around).view(torch.float32).flatten()
    pool = BlockPool(1, len(numbers) // 64, 1, 1, 64, dtype=torch.bfloat16)
    table = BlockTable(pool.block_size)
    table.append_block(0)
    k = numbers.view(1, pool.block_size, 1, 64)
    q = torch.zeros(1, pool.block_size, 1, 64)
    store_and_attend(pool, [table], [pool.block_size], pool.block_size, backend="cpu").__call__(
        0, q[:, :1].expand_as(q), k, k
    )
    stored, expected = pool.kv[0, 0, 0, 0].flatten(), numbers.bfloat16()
    same = (stored == expected) | (stored.isnan() & expected.isnan())
    assert same.all()


@pytest.mark.parametrize("backend", READERS)
def test_a_hole_in_what_is_stored_is_noticed(backend: str) -> None:
    ours, _, tables = pools(torch.float32)
    step = store_and_attend(ours, tables, [length + 2 for length in STORED], 1, backend=backend)
    with pytest.raises(UnwrittenSlotError, match="I6"):
        step(0, torch.randn(3, 1, HEADS, HEAD_DIM), *torch.randn(2, 3, 1, KV_HEADS, HEAD_DIM))


def test_a_request_shorter_than_its_new_tokens_is_refused() -> None:
    ours, _, tables = pools(torch.float32)
    with pytest.raises(ValueError, match="2 tokens cannot have 3 new ones"):
        store_and_attend(ours, tables, [8, 2, 9], 3)


def test_an_unknown_backend_is_refused_before_anything_is_written() -> None:
    ours, _, tables = pools(torch.float32)
    with pytest.raises(ValueError, match=f"'fast' is unknown; there are 'auto' and '{next(iter(BACKENDS))}'"):
        store_and_attend(ours, tables, [7, 10, 2], 1, backend="fast")


@pytest.mark.parametrize("backend", READERS)
@pytest.mark.parametrize("block_id", [-1, 24, 2**31 - 1])
@pytest.mark.parametrize("at", [(2, 0), (1, 0), (1, 1), (0, 1)])  # at (1, 0) and (1, 1) lie earlier tokens
def test_a_block_outside_the_pool_is_refused_and_nothing_is_written(
    block_id: int, at: tuple[int, int], backend: str
) -> None:
    """Wherever in the tables it stands: also where only earlier tokens lie."""
    ours, _, tables = pools(torch.float32)
    array = as_array(tables)
    assert isinstance(array.block_ids, np.ndarray)
    array.block_ids[at] = block_id
    before = ours.kv.clone()
    with pytest.raises(IndexError, match="outside"):
        step = store_and_attend(ours, array, [7, 10, 2], 1, backend=backend)
        step(0, torch.randn(3, 1, HEADS, HEAD_DIM), *torch.randn(2, 3, 1, KV_HEADS, HEAD_DIM))
    assert torch.equal(ours.kv.nan_to_num(7.0), before.nan_to_num(7.0))
